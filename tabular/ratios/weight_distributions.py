"""Distribution of the weight of a continuation, for functions of it that do not factor over turns.

RTPO's off-policy variant (arXiv 2608.18682, Eqs. 105, 109, 110) clamps the product of all ratios
after turn h. Its moments do not follow from those of single turns; they follow from the joint
distribution of the product and the return, built backward over turns with equal products merged. If
factors take few values the support stays small (N + 1 points for two values and N turns); if all
differ it has a point for every path. In numpy, one MDP at a time.
"""

from typing import NamedTuple

import jax
import numpy as np

from tabular.exact import values
from tabular.mdp import TurnMDP, check_integer, check_policy, is_concrete
from tabular.moments import reward_noise
from tabular.ratios.importance import ContinuationError

# Relative distance below which two products of ratios are one: far above the rounding of a product
# of hundreds of factors, far below the distance of products that differ.
MERGE_TOLERANCE = 1e-12


class WeightDistribution(NamedTuple):
    """Distribution of a weight together with the return it multiplies; K different weights.

    Attributes:
      weights: [K] ascending.
      probability: [K] P(w), sum 1.
      first: [K] E[G 1{w}], in units of reward.
      second: [K] E[G^2 1{w}].
    """

    weights: np.ndarray
    probability: np.ndarray
    first: np.ndarray
    second: np.ndarray


_ENDED = WeightDistribution(np.ones(1), np.ones(1), np.zeros(1), np.zeros(1))


def continuation_distributions(
    mdp: TurnMDP,
    sampler: jax.Array,
    factors: jax.Array,
    reward_variances: jax.Array | None = None,
    *,
    limit: int = 200_000,
) -> np.ndarray:
    """Joint distribution of weight and return of the continuation after every (h, s, a).

    Args:
      mdp: the MDP, concrete.
      sampler: [H, S, A] who samples the turns after h, concrete.
      factors: [H, S, A] factor of every action, concrete.
      reward_variances: see `continuation_estimate`.
      limit: the largest number of points, before merging, of one distribution.

    Returns:
      [H, S, A] array of objects, each a `WeightDistribution`.

    Raises:
      ValueError: a malformed sampler, traced arguments, or a support above `limit`.
    """
    if not all(is_concrete(leaf) for leaf in jax.tree.leaves((mdp, sampler, factors))):
        raise ValueError("arguments are traced: build distributions outside jit, grad and vmap")
    check_integer("limit", limit, 1)
    sampler, factors = np.asarray(check_policy(mdp, sampler)), np.asarray(factors)
    transitions, rewards = np.asarray(mdp.transitions), np.asarray(mdp.rewards)
    noise = np.asarray(reward_noise(mdp, reward_variances))
    after = np.empty(rewards.shape, dtype=object)
    following = [_ENDED] * mdp.num_states
    for turn in reversed(range(mdp.num_turns)):
        acted = np.empty(rewards.shape[1:], dtype=object)
        for place in np.ndindex(acted.shape):
            row = transitions[turn][place]
            mixture = [*zip(row, following, strict=True), (1.0 - row.sum(), _ENDED)]
            after[turn][place] = found = _mix(mixture, limit)
            acted[place] = _act(found, *(table[turn][place] for table in (factors, rewards, noise)))
        following = [
            _mix(zip(sampler[turn, state], acted[state], strict=True), limit)
            for state in range(mdp.num_states)
        ]
    return after


def clamped_estimate(
    mdp: TurnMDP,
    policy: jax.Array,
    distributions: np.ndarray,
    clamp_low: float,
    clamp_high: float,
    reward_variances: jax.Array | None = None,
) -> ContinuationError:
    """Bias and variance of Q-hat = r_h + clamp(w, clamp_low, clamp_high) G (RTPO, Eqs. 109, 110).

    Args:
      mdp: the MDP.
      policy: [H, S, A] whose action values are estimated.
      distributions: [H, S, A] of `continuation_distributions` with exact ratios as factors.
      clamp_low: lower end, at least 0; the paper does not give its value.
      clamp_high: upper end, may be infinite; the paper does not give its value.
      reward_variances: those the distributions were built with.

    Returns:
      `ContinuationError` of numpy arrays [H, S, A]. Raises ValueError unless 0 <= clamp_low <=
      clamp_high.
    """
    if not 0.0 <= clamp_low <= clamp_high:
        raise ValueError(
            f"clamp_low is {clamp_low}, clamp_high {clamp_high}: give 0 <= clamp_low <= clamp_high"
        )

    def moments(distribution):
        clamped = np.clip(distribution.weights, clamp_low, clamp_high)
        return clamped @ distribution.first, clamped**2 @ distribution.second

    found = [moments(distribution) for distribution in distributions.ravel()]
    first, second = np.array(found).T.reshape(2, *distributions.shape)
    mean = np.asarray(mdp.rewards) + first
    variance = np.asarray(reward_noise(mdp, reward_variances)) + second - first**2
    return ContinuationError(mean - np.asarray(values(mdp, policy).Q), variance)


def _act(after, factor, reward, spread):
    """One turn earlier: the weight times `factor`, the return plus a reward."""
    weights, probability, first, second = after
    squares = (reward**2 + spread) * probability + 2.0 * reward * first + second
    return WeightDistribution(factor * weights, probability, reward * probability + first, squares)


def _mix(mixture, limit):
    """The mixture of (share, distribution) pairs with equal weights merged."""
    mixture = [(share, part) for share, part in mixture if share > 0]
    size = sum(part.weights.size for _, part in mixture)
    if size > limit:
        raise ValueError(
            f"limit is {limit} but a distribution has {size} points: use a shorter horizon, "
            "factors with fewer different values, or raise limit"
        )
    weights = np.concatenate([part.weights for _, part in mixture])
    order = np.argsort(weights, kind="stable")
    weights = weights[order]
    starts = np.append(True, np.diff(weights) > MERGE_TOLERANCE * weights[1:])
    first = np.flatnonzero(starts)
    sums = [
        np.add.reduceat(np.concatenate([share * part[i] for share, part in mixture])[order], first)
        for i in (1, 2, 3)
    ]
    return WeightDistribution(weights[first], *sums)
