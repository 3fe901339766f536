"""Prefill once, then one token at a time from a key/value cache.

Slots and positions differ. A row's cache has P context slots followed by the slots of generated
tokens. Contexts are right-padded to P, so slots length .. P-1 hold padding and ``visible_slots``
hides them; every row writes its g-th generated token to the same slot P + g, while its rotary
position is length + g, as in the training forward. A cache is a tuple with one (keys, values) pair
per layer.

Layers are a Python loop here and a scan in training. Inside a decoding loop a scan over layers must
copy each layer's weights and cache out of, and the cache back into, the stacked arrays at every
token; separate arrays are read and updated in place.
"""

import jax
import jax.numpy as jnp

from rtpo_jax.models.attention import attend, rotary_table
from rtpo_jax.models.blocks import Block, Ends, bind
from rtpo_jax.models.config import TransformerConfig
from rtpo_jax.models.transformer import run_layers


def prefill(
    config: TransformerConfig, params: dict, tokens: jax.Array, lengths: jax.Array
) -> tuple[jax.Array, tuple]:
    """Run the contexts once and keep their keys and values.

    Args:
      tokens: [U, P] right-padded context ids, all within the vocabulary.
      lengths: [U] real tokens of each row, 1 .. P; outside that range its logits are NaN.

    Returns:
      logits of the first new token [U, V], float32, and the cache: per layer
      (keys, values), each [U, num_kv_heads, P, head_dim], keys rotated.
    """
    hidden, keys, values = run_layers(config, params, tokens, remat=False)
    rows = jnp.arange(tokens.shape[0])
    last = hidden.at[rows, lengths - 1].get(
        mode="fill", fill_value=jnp.nan, wrap_negative_indices=False
    )
    caches = tuple((keys[i], values[i]) for i in range(config.num_layers))
    return bind(Ends, config, params["ends"]).logits(last), caches


def expand_cache(caches: tuple, context_index: jax.Array, num_new: int) -> tuple:
    """One cache row per sampled row, with room for ``num_new`` generated tokens.

    Args:
      caches: of U contexts, from ``prefill``.
      context_index: [N] the context of each row; rows that share a context share its prefill.
      num_new: slots to add.

    Returns:
      per layer (keys, values), each [N, num_kv_heads, P + num_new, head_dim].

    Raises:
      ValueError: num_new below 1.
    """
    if num_new < 1:
        raise ValueError(f"num_new is {num_new}; leave room for at least 1 generated token")

    def grow(cache):
        rows = jnp.take(cache, context_index, axis=0, mode="fill", fill_value=jnp.nan)
        return jnp.pad(rows, ((0, 0), (0, 0), (0, num_new), (0, 0)))

    return jax.tree.map(grow, caches)


def layer_parameters(config: TransformerConfig, params: dict) -> tuple:
    """Parameters of each layer by itself, in the compute dtype; call once, outside the loop."""
    dtype = jnp.dtype(config.compute_dtype)

    def cut(index):
        return jax.tree.map(lambda stacked: jnp.asarray(stacked[index], dtype), params["layers"])

    return tuple(cut(index) for index in range(config.num_layers))


def visible_slots(
    lengths: jax.Array, num_context_slots: int, num_slots: int, slot: int | jax.Array
) -> jax.Array:
    """Slots a token written at ``slot`` may see: bool [N, num_slots], True = keep.

    Context slots below the row's length [N], and generated slots up to ``slot`` itself.
    """
    slots = jnp.arange(num_slots)[None, :]
    return (slots < lengths[:, None]) | ((slots >= num_context_slots) & (slots <= slot))


def decode_step(
    config: TransformerConfig,
    params: dict,
    layers: tuple,
    caches: tuple,
    tokens: jax.Array,
    positions: jax.Array,
    slot: int | jax.Array,
    key_mask: jax.Array,
) -> tuple[jax.Array, tuple]:
    """Feed one token per row, return the logits of the next.

    Args:
      params: the full tree (embedding and head are read from it).
      layers: from ``layer_parameters``.
      caches: from ``expand_cache`` or the previous step; donate it, it is updated in place.
      tokens: [N] the ids to feed.
      positions: [N] their true positions, length + tokens generated before.
      slot: scalar cache slot to write, the same for all rows, P + tokens generated before; must
        be below the cache length (a larger one would overwrite the last slot).
      key_mask: [N, P + num_new] bool, True = may be seen; see ``visible_slots``.

    Returns:
      (logits [N, V] float32, caches).
    """
    ends = bind(Ends, config, params["ends"])
    table = rotary_table(
        positions[:, None], config.head_dim, config.rope_theta, config.compute_dtype
    )
    x = ends.embed(tokens[:, None])
    updated = []
    for parameters, (keys, values) in zip(layers, caches, strict=True):
        block = bind(Block, config, parameters)
        queries, new_key, new_value = block.project(x, table)
        keys = jax.lax.dynamic_update_slice_in_dim(keys, new_key, slot, axis=2)
        values = jax.lax.dynamic_update_slice_in_dim(values, new_value, slot, axis=2)
        x = block.finish(x, attend(queries, keys, values, key_mask[:, None, :]))
        updated.append((keys, values))
    return ends.logits(ends.norm(x)[:, 0]), tuple(updated)
