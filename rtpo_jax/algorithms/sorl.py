"""SO-GRPO: ratios of turns and clipping-triggered normalisation (SORL, arXiv 2511.20718).

For a turn k with tokens y^k, A the advantage of grpo.py::

    w_k = exp((1 / |y^k|) sum_t log [pi(y_t | .) / pi_behaviour(y_t | .)])                    (Eq. 4)
    J   = mean_i (1 / |y_i|) sum_k sum_{t in k} min(w_k A_t, clip(w_k, 1 - low, 1 + high) A_t)
    C   = gradient of the same mean of w_k A_t over the clipped tokens                  (Lemma 4.2)
    step along  grad J * scale(|grad J|, |C|)

`normalization` names the scale (`core.clipping_triggered_scale`): the paper divides by |C|, and what
it does where nothing is clipped is not published. "guarded", 1 / max(1, |C|), changes a step only where
|C| is above 1, and |C| is small unless the batch is far off-policy: it is in the metrics, next to the
norm of grad J and the share of tokens that would be clipped at token and at turn level.

Differs from grpo.py in the level of the ratio and in the scale of the step. One ingredient alone:
`ratio="token"` keeps the scale only (S-PPO's), `normalization=None` the turn ratio only. Under Adam a
factor that changes little from step to step changes nothing; only its variation counts.
"""

import dataclasses
from typing import get_args

import jax
import jax.numpy as jnp

from rtpo_jax import core
from rtpo_jax.algorithms.grpo import GRPO
from rtpo_jax.algorithms.method import Level, require_one_of
from rtpo_jax.core.clipping import ClippingScale


@dataclasses.dataclass(frozen=True, kw_only=True)
class SOGRPO(GRPO):
    """Stabilised off-policy GRPO; see the module docstring for the equations."""

    ratio: Level = "turn"
    normalization: ClippingScale | None = "guarded"  # of the step by the clipping bias

    def __post_init__(self):
        super().__post_init__()
        kinds = (*get_args(ClippingScale), None)
        require_one_of("normalization", self.normalization, kinds)

    def objective(self, scores, batch):
        """The clipped surrogate, and beside it the scalar whose gradient is the clipping bias."""
        values, sums = super().objective(scores, batch)
        clip = (self.clip_low, self.clip_high)
        for level in ("token", "turn"):
            own = self.log_ratios(scores.log_probs, batch.rows, level)
            clipped = core.is_clipped(core.ratios(own), batch.advantages, *clip)
            share = core.weighted_sum(clipped.astype(batch.weights.dtype), batch.weights)
            sums[f"{level}_clip_fraction"] = share
        if self.normalization is not None:
            moved = self.log_ratios(scores.log_probs, batch.rows)
            ratios = core.ratios(moved, limit=self.log_ratio_limit)
            terms = core.clipping_bias(ratios, batch.advantages, *clip)
            values["clipping_bias"] = core.weighted_sum(terms, batch.weights)
        return values, sums

    def ascent(self, gradients):
        """The gradient of the clipped surrogate times the scale."""
        gradient = gradients["objective"]
        if self.normalization is None:
            return gradient, {}
        norm, bias_norm = (_norm(gradients[name]) for name in ("objective", "clipping_bias"))
        scale = core.clipping_triggered_scale(norm, bias_norm, self.normalization)
        metrics = {
            "clipped_gradient_norm": norm,
            "clipping_bias_norm": bias_norm,
            "normalization_scale": scale,
        }
        return jax.tree.map(lambda leaf: scale.astype(leaf.dtype) * leaf, gradient), metrics


def _norm(tree):
    return jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(tree)))
