"""Rotary positions and grouped-query attention, as functions of arrays.

Axis letters: N rows, L query positions, S key positions, Q query heads, K key/value heads,
R query heads per key/value head (Q = K * R), D head size.
"""

import jax
import jax.numpy as jnp
import numpy as np

# Large enough that exp underflows to 0 beside any real score, finite so that a query that may see
# no key gets a uniform average instead of NaN.
_MASKED_SCORE = -1e30


def inverse_frequencies(head_dim: int, theta: float) -> np.ndarray:
    """theta^(-2i / head_dim) for i = 0 .. head_dim/2 - 1, radians per position, float64.

    Su et al., "RoFormer", Sec. 3.2.2.
    """
    return theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)


def rotary_table(positions: jax.Array, head_dim: int, theta: float, dtype) -> tuple:
    """Cosine and sine of every position's angles: [N, L] -> two arrays [N, L, D/2].

    Angles are formed in float32 at least: bfloat16 cannot tell position 257 from 258.
    """
    wide = jnp.promote_types(dtype, jnp.float32)
    frequencies = jnp.asarray(inverse_frequencies(head_dim, theta), wide)
    angles = positions.astype(wide)[:, :, None] * frequencies[None, None, :]
    return jnp.cos(angles), jnp.sin(angles)


def rotate(vectors: jax.Array, table: tuple) -> jax.Array:
    """Turn each pair (x_i, x_{i + D/2}) by its position's angle; [N, heads, L, D] keeps its shape.

    The pairing of halves is that of Hugging Face checkpoints; RoFormer pairs neighbours, which is
    the same function after a permutation of the rows of the query and key matrices.
    """
    cosine, sine = (part[:, None, :, :] for part in table)
    first, second = jnp.split(vectors.astype(cosine.dtype), 2, axis=-1)
    turned = [first * cosine - second * sine, second * cosine + first * sine]
    return jnp.concatenate(turned, axis=-1).astype(vectors.dtype)


def attend(queries: jax.Array, keys: jax.Array, values: jax.Array, mask: jax.Array) -> jax.Array:
    """softmax(q k / sqrt(D)) v over the keys where ``mask`` is True.

    Each key/value head serves R query heads without being repeated in memory. Heads come before
    positions so that both products are plain batched matrix products: with positions first, the
    CPU backend transposes the whole cache for every generated token. The softmax runs in float32
    at least.

    Args:
      queries: [N, Q, L, D].
      keys, values: [N, K, S, D]; must be finite even where masked, since 0 * NaN is NaN.
      mask: bool [N or 1, L, S], True = may be seen.

    Returns:
      [N, Q, L, D] in the dtype of ``values``. A query with no visible key gets the mean value.
    """
    num_rows, num_heads, length, head_dim = queries.shape
    num_kv_heads, num_slots = keys.shape[1:3]
    shared = num_heads // num_kv_heads
    grouped = queries.reshape(num_rows, num_kv_heads, shared * length, head_dim)
    wide = jnp.promote_types(queries.dtype, jnp.float32)
    scores = jnp.einsum("nkld,nksd->nkls", grouped, keys, preferred_element_type=wide)
    scores = (scores * head_dim**-0.5).reshape(num_rows, num_kv_heads, shared, length, num_slots)
    weights = jax.nn.softmax(jnp.where(mask[:, None, None, :, :], scores, _MASKED_SCORE), axis=-1)
    weights = weights.astype(values.dtype).reshape(num_rows, num_kv_heads, -1, num_slots)
    return jnp.einsum("nkls,nksd->nkld", weights, values).reshape(queries.shape)


def attend_causal(queries: jax.Array, keys: jax.Array, values: jax.Array) -> jax.Array:
    """Attention of each position to itself and what precedes it; shapes as ``attend`` with S = L.

    The one place to put a fused kernel for long rows on an accelerator.
    """
    length = queries.shape[2]
    causal = jnp.tril(jnp.ones((length, length), bool))
    return attend(queries, keys, values, causal[None, :, :])
