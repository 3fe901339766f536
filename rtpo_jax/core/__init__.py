"""Equations on arrays: returns, advantages, ratios, surrogates, divergences and their measures.

Imports jax and chex only. Axis letters: N rows, H turns, T tokens, V vocabulary. Functions that
name no axis are elementwise and keep their shape; only `weighted_sum` reduces.
"""

from rtpo_jax.core.advantages import (
    group_relative,
    has_no_signal,
    leave_one_out,
    sibling_relative,
    to_tokens,
    whiten,
)
from rtpo_jax.core.clipping import clipping_bias, clipping_triggered_scale
from rtpo_jax.core.divergences import entropy, keep_top_entropy, kl_estimate
from rtpo_jax.core.ratios import ratios, token_log_ratios, trajectory_log_ratios, turn_log_ratios
from rtpo_jax.core.reductions import (
    sequence_mean_weights,
    token_mean_weights,
    trajectory_mean_weights,
    turn_mean_weights,
    weighted_sum,
)
from rtpo_jax.core.returns import discounted_returns, gae
from rtpo_jax.core.surrogates import clipped_surrogate, importance_weighted, is_clipped

__all__ = [
    "clipped_surrogate",
    "clipping_bias",
    "clipping_triggered_scale",
    "discounted_returns",
    "entropy",
    "gae",
    "group_relative",
    "has_no_signal",
    "importance_weighted",
    "is_clipped",
    "keep_top_entropy",
    "kl_estimate",
    "leave_one_out",
    "ratios",
    "sequence_mean_weights",
    "sibling_relative",
    "to_tokens",
    "token_log_ratios",
    "token_mean_weights",
    "trajectory_log_ratios",
    "trajectory_mean_weights",
    "turn_log_ratios",
    "turn_mean_weights",
    "weighted_sum",
    "whiten",
]
