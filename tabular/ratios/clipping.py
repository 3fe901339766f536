"""What clipping takes out of a gradient, exactly (SORL, Lemmas 4.1 and 4.2).

For tokens t of a batch with measure m_t, ratios w_t of token or turn, and advantages A-hat_t,

    J = sum_t m_t min(w_t A-hat_t, clip(w_t, 1 - low, 1 + high) A-hat_t)
    grad J = sum_t m_t w_t A_t g_t                     the policy gradient, A_t the true advantage
           + sum_t m_t w_t (A-hat_t - A_t) g_t         the error of the advantage
           - C,   C = sum_t m_t (1 - B_t) w_t A-hat_t g_t,   the clipping bias

(SORL, arXiv 2511.20718, Lemma 4.2). B_t is 0 where `core.is_clipped`, and g_t the gradient of log w_t:
of log pi(a_t) at token level; of its mean over the turn for SORL's geometric turn ratio (Eq. 4); of
its sum over the turn for the ratio of the whole action. m_t contains the 1 / |y| of the paper.
"""

import math
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from rtpo_jax import core
from tabular.ratios.token_rows import TokenRows

Level = Literal["token", "turn_mean", "turn_product"]


class GradientTerms(NamedTuple):
    """Coefficients [N, T] of the gradients of the tokens' log-probabilities.

    The three parts of grad J: policy_gradient + advantage_error - clipping_bias.
    """

    policy_gradient: jax.Array
    advantage_error: jax.Array
    clipping_bias: jax.Array

    @property
    def gradient(self) -> jax.Array:
        """[N, T] coefficients of the gradient of the clipped objective."""
        return self.policy_gradient + self.advantage_error - self.clipping_bias


def unit_ratios(log_probs: jax.Array, rows: TokenRows, num_turns: int, level: Level) -> jax.Array:
    """Ratio of the unit every token belongs to, [N, T]: of itself, or of its turn.

    Args:
      log_probs: [N, T] of the tokens under the policy, in nats.
      rows: the batch.
      num_turns: H of the batch's turn ids.
      level: "token"; "turn_mean", the geometric mean (SORL, Eq. 4); "turn_product", the ratio of
        the whole action.

    Returns:
      [N, T]; 1 outside actions.
    """
    mask = rows.action_mask
    log_ratios = core.token_log_ratios(log_probs, rows.behavior_log_probs, mask)
    if level == "token":
        return core.ratios(log_ratios, limit=math.inf)
    mean = level == "turn_mean"
    by_turn = core.turn_log_ratios(log_ratios, rows.turn_ids, num_turns, mean=mean)
    return jnp.where(mask, core.to_tokens(core.ratios(by_turn, limit=math.inf), rows.turn_ids), 1.0)


def clipped_objective(
    log_probs: jax.Array, rows: TokenRows, num_turns: int, level: Level, clip: float
) -> jax.Array:
    """The clipped objective J, a scalar to maximise; clip is the distance of both bounds from 1."""
    ratios = unit_ratios(log_probs, rows, num_turns, level)
    values = core.clipped_surrogate(ratios, rows.advantages, clip, clip)
    return core.weighted_sum(values, rows.weights)


def clipping_bias_objective(
    log_probs: jax.Array, rows: TokenRows, num_turns: int, level: Level, clip: float
) -> jax.Array:
    """A scalar whose gradient is the clipping bias C: the unclipped surrogate of clipped tokens."""
    ratios = unit_ratios(log_probs, rows, num_turns, level)
    clipped = core.is_clipped(ratios, rows.advantages, clip, clip)
    values = core.importance_weighted(ratios, rows.advantages)
    return core.weighted_sum(values, jnp.where(clipped, rows.weights, 0.0))


def score_coefficients(
    values: jax.Array, log_probs: jax.Array, rows: TokenRows, num_turns: int, level: Level
) -> jax.Array:
    """Coefficients [N, T] of grad log pi(a_t) in sum_t m_t w_t x_t g_t, for values x.

        token         m_t w_t x_t
        turn_mean     w_k (1 / T_k) sum_{t' in k} m_t' x_t'      (SORL, Lemma 4.1)
        turn_product  w_k sum_{t' in k} m_t' x_t'

    With x the advantages it is the gradient where nothing is clipped; with x = B A-hat, that of the
    clipped objective: the sum of Lemma 4.1 then runs over the tokens that are not clipped.

    Args:
      values: [N, T].
      log_probs: [N, T] of the tokens under the policy, in nats.
      rows: the batch.
      num_turns: H of the batch's turn ids.
      level: see `unit_ratios`.

    Returns:
      [N, T]; 0 outside actions.
    """
    weighed = rows.weights * values
    if level != "token":
        mean = level == "turn_mean"
        sums = core.turn_log_ratios(weighed, rows.turn_ids, num_turns, mean=mean)
        weighed = core.to_tokens(sums, rows.turn_ids)
    found = unit_ratios(log_probs, rows, num_turns, level) * weighed
    return jnp.where(rows.action_mask, found, 0.0)


def gradient_terms(
    log_probs: jax.Array,
    true_advantages: jax.Array,
    rows: TokenRows,
    num_turns: int,
    level: Level,
    clip: float,
) -> GradientTerms:
    """The decomposition of Lemma 4.2 by its formula, as coefficients of the tokens' scores.

    `pull_back` turns each part into a gradient with respect to parameters.

    Args:
      log_probs: [N, T] of the tokens under the policy, in nats.
      true_advantages: [N, T].
      rows: the batch, with the advantages the objective uses.
      num_turns: H of the batch's turn ids.
      level: see `unit_ratios`.
      clip: distance of both bounds from 1.

    Returns:
      `GradientTerms` of [N, T] each.
    """
    ratios = unit_ratios(log_probs, rows, num_turns, level)
    clipped = core.is_clipped(ratios, rows.advantages, clip, clip)
    parts = (
        true_advantages,
        rows.advantages - true_advantages,
        jnp.where(clipped, rows.advantages, 0.0),
    )
    return GradientTerms(
        *(score_coefficients(part, log_probs, rows, num_turns, level) for part in parts)
    )


def pull_back(log_probs_of, params: jax.Array, coefficients: jax.Array) -> jax.Array:
    """sum_nt c_nt grad log pi(a_nt): from coefficients [N, T] to the shape of the parameters.

    `log_probs_of` maps parameters to the log-probabilities [N, T] of the batch's tokens.
    """
    return jax.vjp(log_probs_of, params)[1](coefficients)[0]
