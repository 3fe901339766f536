"""The modules: definition and initialisation of one decoder block and of what surrounds the stack.

Everything outside this package sees the parameters as a nested dict of float32 arrays. A module is
bound to such a dict with ``bind`` (microseconds, at trace time only).
"""

import functools

import jax
import jax.numpy as jnp
from flax import nnx

from rtpo_jax.models.attention import rotate
from rtpo_jax.models.config import TransformerConfig

_EMBEDDING_STD = 0.02


class RMSNorm(nnx.Module):
    """x / sqrt(mean(x^2) + eps) * scale over the last axis, computed in float32 at least."""

    def __init__(self, size: int, eps: float):
        self.scale = nnx.Param(jnp.ones(size, jnp.float32))
        self.eps = eps

    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalise [..., size]; shape and dtype of ``x`` are kept."""
        wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        wide = wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + self.eps)
        scale = self.scale[...].astype(x.dtype)
        return wide.astype(x.dtype) * scale.reshape((1,) * (x.ndim - 1) + scale.shape)


def _linear(inputs: int, outputs: int, config: TransformerConfig, rngs: nnx.Rngs, gain=1.0):
    """Matrix without bias, drawn with standard deviation gain / sqrt(inputs)."""
    return nnx.Linear(
        inputs,
        outputs,
        use_bias=False,
        dtype=jnp.dtype(config.compute_dtype),
        param_dtype=jnp.float32,
        kernel_init=nnx.initializers.normal(gain * inputs**-0.5, jnp.float32),
        rngs=rngs,
    )


class Block(nnx.Module):
    """One pre-norm decoder block, cut in two around attention.

    x = x + out(attention(rotate(norm(q)), rotate(norm(k)), v)),  q, k, v linear in norm(x)
    x = x + down(silu(gate(y)) * up(y)),  y = norm(x)

    Training, prefill and decoding differ only in where keys and values live, so the block yields
    (q, k, v) and takes back what attention made of them. Matrices that write to the residual
    stream start smaller by sqrt(2 * num_layers), so its variance does not grow with depth
    (Radford et al., GPT-2, Sec. 2.3).
    """

    def __init__(self, config: TransformerConfig, rngs: nnx.Rngs):
        c = config
        residual_gain = (2 * c.num_layers) ** -0.5
        self.head_dim = c.head_dim
        self.attention_norm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.query = _linear(c.hidden_size, c.num_heads * c.head_dim, c, rngs)
        self.key = _linear(c.hidden_size, c.num_kv_heads * c.head_dim, c, rngs)
        self.value = _linear(c.hidden_size, c.num_kv_heads * c.head_dim, c, rngs)
        self.out = _linear(c.num_heads * c.head_dim, c.hidden_size, c, rngs, residual_gain)
        if c.qk_norm:
            self.query_norm = RMSNorm(c.head_dim, c.rms_norm_eps)
            self.key_norm = RMSNorm(c.head_dim, c.rms_norm_eps)
        self.qk_norm = c.qk_norm
        self.mlp_norm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.gate = _linear(c.hidden_size, c.intermediate_size, c, rngs)
        self.up = _linear(c.hidden_size, c.intermediate_size, c, rngs)
        self.down = _linear(c.intermediate_size, c.hidden_size, c, rngs, residual_gain)

    def project(self, x: jax.Array, table: tuple) -> tuple:
        """Queries, keys, values of x [N, L, hidden], each [N, heads, L, head_dim], q and k rotated.

        ``table`` is ``rotary_table`` of the true positions.
        """
        normed = self.attention_norm(x)
        shape = (*x.shape[:2], -1, self.head_dim)
        queries, keys, values = (
            linear(normed).reshape(shape).swapaxes(1, 2)
            for linear in (self.query, self.key, self.value)
        )
        if self.qk_norm:
            queries, keys = self.query_norm(queries), self.key_norm(keys)
        return rotate(queries, table), rotate(keys, table), values

    def finish(self, x: jax.Array, attended: jax.Array) -> jax.Array:
        """Residual stream after attention [N, heads, L, head_dim] and SwiGLU: [N, L, hidden]."""
        x = x + self.out(attended.swapaxes(1, 2).reshape(*x.shape[:2], -1))
        normed = self.mlp_norm(x)
        return x + self.down(jax.nn.silu(self.gate(normed)) * self.up(normed))


class Ends(nnx.Module):
    """What surrounds the stack: token embedding, final norm, output head (absent when tied)."""

    def __init__(self, config: TransformerConfig, rngs: nnx.Rngs):
        shape = (config.vocab_size, config.hidden_size)
        draw = nnx.initializers.normal(_EMBEDDING_STD, jnp.float32)
        self.dtype = jnp.dtype(config.compute_dtype)
        self.embedding = nnx.Param(draw(rngs.params(), shape, jnp.float32))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        if not config.tie_embeddings:
            self.head = nnx.Param(draw(rngs.params(), shape, jnp.float32))
        self.tie_embeddings = config.tie_embeddings

    def embed(self, tokens: jax.Array) -> jax.Array:
        """[N, L] ids -> [N, L, hidden]; an id outside 0 .. V-1 gives NaN instead of a neighbour."""
        rows = jnp.asarray(self.embedding[...]).at[tokens]
        found = rows.get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)
        return found.astype(self.dtype)

    def logits(self, hidden: jax.Array) -> jax.Array:
        """[..., hidden] after the final norm -> [..., V], float32 at least."""
        head = self.embedding if self.tie_embeddings else self.head
        return jnp.einsum(
            "...d,vd->...v",
            hidden,
            jnp.asarray(head[...], self.dtype),
            preferred_element_type=jnp.promote_types(self.dtype, jnp.float32),
        )


@functools.lru_cache(maxsize=64)
def _definition(module: type, config: TransformerConfig):
    return nnx.split(nnx.eval_shape(lambda: module(config, nnx.Rngs(0))))[0]


def bind(module: type, config: TransformerConfig, parameters: dict):
    """The module ``Block`` or ``Ends`` with these parameters (nested dict of arrays)."""
    return nnx.merge(_definition(module, config), parameters)


def draw(module: type, config: TransformerConfig, key: jax.Array) -> dict:
    """Freshly initialised parameters of ``module``: nested dict of float32 arrays."""
    return nnx.to_pure_dict(nnx.state(module(config, nnx.Rngs(key)), nnx.Param))
