"""Log-probabilities of chosen tokens, without ever holding [N, T, V]."""

import jax
import jax.numpy as jnp

from rtpo_jax.models.config import TransformerConfig
from rtpo_jax.models.transformer import hidden_states, logits


def token_log_probs(
    config: TransformerConfig,
    params: dict,
    tokens: jax.Array,
    action_positions: jax.Array,
    *,
    temperature: float = 1.0,
    chunk: int | None = None,
    remat: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """log pi(tokens[n, p] | tokens[n, :p]) and the entropy of that choice, p = action_positions.

    With logits z: log pi(a) = z_a / temperature - log sum_v exp(z_v / temperature), the
    distribution a sampler at this temperature draws from.

    Args:
      tokens: [N, L] right-padded ids, all within the vocabulary.
      action_positions: [N, T] indices into L. 0 marks padding: such entries are finite and
        meaningless (no token precedes position 0), the caller masks them.
      temperature: of the sampler; positive.
      chunk: tokens whose logits exist at one time, forward and backward; None for all N * T.
      remat: recompute the layers in the backward pass.

    Returns:
      (log_probs [N, T], entropies [N, T]) in nats, float32 (float64 in a float64 model).

    Raises:
      ValueError: temperature or chunk not positive, or rows of the two arrays differ.
    """
    _check(tokens, action_positions, temperature, chunk)
    hidden = hidden_states(config, params, tokens, remat=remat)
    before = jnp.maximum(action_positions - 1, 0)
    hidden = jnp.take_along_axis(hidden, before[:, :, None], axis=1)
    chosen = jnp.take_along_axis(tokens, action_positions, axis=1)

    def score(pair):
        scaled = logits(config, params, pair[0]) / temperature
        return _choice_statistics(scaled, pair[1])

    flat = (hidden.reshape(-1, hidden.shape[-1]), chosen.reshape(-1))
    log_probs, entropies = score(flat) if chunk is None else _map_in_chunks(score, flat, chunk)
    return log_probs.reshape(chosen.shape), entropies.reshape(chosen.shape)


def _check(tokens, action_positions, temperature, chunk):
    if tokens.ndim != 2 or action_positions.ndim != 2:
        raise ValueError(
            f"tokens {tokens.shape} and action_positions {action_positions.shape} must be [N, L] "
            "and [N, T]; add the row axis"
        )
    if tokens.shape[0] != action_positions.shape[0]:
        raise ValueError(
            f"action_positions has {action_positions.shape[0]} rows, tokens {tokens.shape[0]}; "
            "give one row of positions per row of tokens"
        )
    if not isinstance(temperature, jax.core.Tracer) and not temperature > 0:
        raise ValueError(f"temperature is {temperature}; use a positive number")
    if chunk is not None and chunk < 1:
        raise ValueError(f"chunk is {chunk}; use a positive number of tokens, or None")


def _choice_statistics(scaled: jax.Array, chosen: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Log-probability of ``chosen`` [M] and entropy, both [M], under logits ``scaled`` [M, V]."""
    log_normalizer = jax.nn.logsumexp(scaled, axis=-1)
    log_probs = jnp.take_along_axis(scaled, chosen[:, None], axis=-1)[:, 0] - log_normalizer
    mean_logit = jnp.sum(jax.nn.softmax(scaled, axis=-1) * scaled, axis=-1)
    return log_probs, log_normalizer - mean_logit


def _map_in_chunks(score, flat: tuple, chunk: int) -> tuple[jax.Array, jax.Array]:
    """``score`` on slices of ``chunk`` tokens; recomputed in the backward pass, nothing kept."""
    count = flat[0].shape[0]
    missing = -count % chunk
    pieces = jax.tree.map(
        lambda x: jnp.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1)).reshape(
            -1, chunk, *x.shape[1:]
        ),
        flat,
    )
    scored = jax.lax.map(jax.checkpoint(score), pieces)
    return jax.tree.map(lambda x: x.reshape(-1)[:count], scored)
