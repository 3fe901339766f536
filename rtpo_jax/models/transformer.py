"""The training forward: parameters as a nested dict, layers stacked and scanned.

Parameter tree: ``{"ends": {embedding, norm, head}, "layers": {query, key, ...}}``; every array
under ``layers`` has a leading layer axis, so the traced program is the same at any depth.
"""

import jax
import jax.numpy as jnp

from rtpo_jax.models.attention import attend_causal, rotary_table
from rtpo_jax.models.blocks import Block, Ends, bind, draw
from rtpo_jax.models.config import TransformerConfig


def init(config: TransformerConfig, key: jax.Array) -> dict:
    """Random parameters, float32 whatever the compute dtype.

    Matrices: normal, standard deviation 1/sqrt(inputs), smaller by sqrt(2 * num_layers) where they
    write to the residual stream. Embedding and head: normal, 0.02. Norm scales: 1.
    """
    ends_key, layers_key = jax.random.split(key)
    layer_keys = jax.random.split(layers_key, config.num_layers)
    layers = jax.vmap(lambda layer_key: draw(Block, config, layer_key))(layer_keys)
    return {"ends": draw(Ends, config, ends_key), "layers": layers}


def run_layers(config: TransformerConfig, params: dict, tokens: jax.Array, *, remat: bool):
    """Causal pass over right-padded rows.

    Args:
      tokens: [N, L] ids, all within the vocabulary (padding too); positions are 0 .. L-1.
      remat: recompute each layer in the backward pass instead of keeping its activations.

    Returns:
      hidden states after the final norm [N, L, hidden], and the keys and values of every layer,
      each [Layers, N, num_kv_heads, L, head_dim], keys rotated.
    """
    ends = bind(Ends, config, params["ends"])
    positions = jnp.arange(tokens.shape[1])[None, :]
    table = rotary_table(positions, config.head_dim, config.rope_theta, config.compute_dtype)

    def layer(x, parameters):
        block = bind(Block, config, parameters)
        queries, keys, values = block.project(x, table)
        return block.finish(x, attend_causal(queries, keys, values)), (keys, values)

    step = jax.checkpoint(layer) if remat else layer
    x, (keys, values) = jax.lax.scan(step, ends.embed(tokens), params["layers"])
    return ends.norm(x), keys, values


def hidden_states(
    config: TransformerConfig, params: dict, tokens: jax.Array, *, remat: bool = False
) -> jax.Array:
    """Final-norm hidden states [N, L, hidden] of right-padded token rows [N, L].

    Attention is causal, so padding after the real tokens cannot influence them and no mask is
    needed. ``remat`` trades one more forward for activation memory that does not grow with depth.
    """
    return run_layers(config, params, tokens, remat=remat)[0]


def logits(config: TransformerConfig, params: dict, hidden: jax.Array) -> jax.Array:
    """Next-token logits [..., V] of hidden states [..., hidden]; float32 at least."""
    return bind(Ends, config, params["ends"]).logits(hidden)
