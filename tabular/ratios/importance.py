"""Exact moments of continuation weights, and of the estimates that use them (RTPO, Theorem 3).

RTPO (arXiv 2608.18682) scores an action a of a boundary state s at turn h by the rewards that
follow it. Whoever samples turns h+1.. decides what is estimated, and a weight can repair it:

    Q-hat = r_h(s, a) + w G,   G = sum_{t > h} r_t,   a_t ~ sampler_t(. | s_t),
    w = prod_{t > h} f_t(s_t, a_t)

    fresh    sampler = policy, f = 1     regenerated: what RTPO does (Eq. 8), w = 1
    stale    sampler = behavior, f = 1   the recorded continuations as they are
    exact    sampler = behavior, f = policy / behavior                         (Eq. 4)
    clipped  sampler = behavior, f = clip(policy / behavior), or for actions made of tokens the
             product of the clipped token ratios                               (Eqs. 14-16)
    clamped  sampler = behavior, w = clamp of the whole exact product          (Eqs. 109, 110)

The first four are products of one factor a turn, so moments follow from a recursion backward in
turns, for any horizon, under `jit` and `vmap`. A clamp acts on the whole product and needs its
distribution: `tabular.ratios.weight_distributions` builds it.
Where an episode ended there is nothing left to weigh: w = 1 and G = 0.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rtpo_jax import core
from tabular.exact import values
from tabular.mdp import TurnMDP, check_policy, is_concrete
from tabular.moments import reward_noise


class WeightMoments(NamedTuple):
    """E[w] and E[w^2] of the product of factors from turn h on, in state s; [H+1, S], last row 1."""

    first: jax.Array
    second: jax.Array


class ContinuationError(NamedTuple):
    """Error of one continuation estimate as a function of what it estimates.

    Attributes:
      bias: [H, S, A] E[Q-hat | h, s, a] - Q_h(s, a) of the policy, in units of reward.
      variance: [H, S, A] Var(Q-hat | h, s, a), in squared units of reward.
    """

    bias: jax.Array
    variance: jax.Array


def policy_ratios(mdp: TurnMDP, policy: jax.Array, behavior: jax.Array) -> jax.Array:
    """Ratios policy / behavior of every action, [H, S, A]; 0 where neither ever acts.

    Raises:
      ValueError: a malformed policy, or an action the policy takes and the behavior never does:
        no weight makes up for what cannot be sampled.
    """
    policy, behavior = check_policy(mdp, policy), check_policy(mdp, behavior)
    if is_concrete(policy) and is_concrete(behavior):
        unseen = (np.asarray(behavior) == 0) & (np.asarray(policy) > 0)
        if unseen.any():
            index = [int(i) for i in np.argwhere(unseen)[0]]
            raise ValueError(
                f"behavior{index} is 0 but policy{index} is {policy[tuple(index)]}: give the "
                "behavior positive probability wherever the policy has some"
            )
    return _policy_ratios(policy, behavior)


@jax.jit
def clip_ratios(ratios: jax.Array, clip_low: float, clip_high: float) -> jax.Array:
    """clip(r, 1 - clip_low, 1 + clip_high) of any shape, by the core's clipped surrogate.

    With advantage 1 the surrogate is min(r, 1 + clip_high), with advantage -1 it is
    -max(r, 1 - clip_low); one after the other they clip on both sides.
    """
    ones = jnp.ones_like(ratios)
    capped = core.clipped_surrogate(ratios, ones, clip_low, clip_high)
    return -core.clipped_surrogate(capped, -ones, clip_low, clip_high)


def weight_moments(mdp: TurnMDP, sampler: jax.Array, factors: jax.Array) -> WeightMoments:
    """First two moments of w = prod_{t >= h} f_t(s_t, a_t) when the sampler acts.

        E_h[w](s) = sum_a b_h(a | s) f_h(s, a) (sum_s' P_h(s' | s, a) E_{h+1}[w](s') + end_h(s, a))

    and the same with f^2 for E[w^2]; `end` is the probability that the episode ends. For exact
    ratios E[w] = 1 and Var w = E[w^2] - 1 (RTPO, Eqs. 100-102).

    Args:
      mdp: the MDP.
      sampler: [H, S, A] policy that acts.
      factors: [H, S, A] factor of every action.

    Returns:
      `WeightMoments` of shape [H+1, S] each. Raises ValueError on a malformed sampler.
    """
    sampler = check_policy(mdp, sampler)
    here, _ = _moments(mdp, sampler, factors, jnp.zeros_like(mdp.rewards))
    return WeightMoments(here[:, 0], here[:, 2])


def continuation_estimate(
    mdp: TurnMDP,
    policy: jax.Array,
    sampler: jax.Array,
    factors: jax.Array,
    reward_variances: jax.Array | None = None,
) -> ContinuationError:
    """Bias and variance of Q-hat = r_h + w G with a weight that is a product over turns.

    Which sampler and factors give which estimate stands at the top of this module. The variance
    includes that of the rewards, also of r_h itself. Fresh continuations have bias 0; the bias of
    stale ones is sum_s' P (V_{h+1} of the behavior - V_{h+1} of the policy).

    Args:
      mdp: the MDP.
      policy: [H, S, A] whose action values are estimated.
      sampler: [H, S, A] who samples the turns after h.
      factors: [H, S, A] factor of every action of these turns; 1 for no weight.
      reward_variances: [H, S, A] variance of each reward given (h, s, a), independent of
        everything else; None for 0. A Bernoulli outcome with mean r has r (1 - r).

    Returns:
      `ContinuationError` with [H, S, A] each. Raises ValueError on a malformed policy or sampler.
    """
    sampler = check_policy(mdp, sampler)
    noise = reward_noise(mdp, reward_variances)
    _, after = _moments(mdp, sampler, factors, noise)
    mean, second = mdp.rewards + after[:, 1], after[:, 4]
    return ContinuationError(mean - values(mdp, policy).Q, noise + second - after[:, 1] ** 2)


@jax.jit
def _policy_ratios(policy, behavior):
    seen = behavior > 0
    log_ratios = jnp.log(policy) - jnp.log(jnp.where(seen, behavior, 1.0))
    return jnp.where(seen, core.ratios(log_ratios, limit=math.inf), 0.0)


@jax.jit
def _moments(mdp, sampler, factors, noise):
    """E of w, w G, w^2, w^2 G, w^2 G^2: before a turn [H+1, 5, S], after an action [H, 5, S, A]."""
    ended = jnp.array([1.0, 0.0, 1.0, 0.0, 0.0])

    def step(following, turn):
        transitions, rewards, spread, probabilities, factor = turn
        end = 1.0 - transitions.sum(-1)
        after = jnp.einsum("sat,mt->msa", transitions, following)
        after = after + end[None] * ended[:, None, None]
        w, wg, ww, wwg, wwgg = after
        squares = (rewards**2 + spread) * ww + 2.0 * rewards * wwg + wwgg
        acted = [w, rewards * w + wg, factor * ww, factor * (rewards * ww + wwg), factor * squares]
        here = ((probabilities * factor)[None] * jnp.stack(acted)).sum(-1)
        return here, (here, after)

    last = jnp.broadcast_to(ended[:, None], (5, mdp.start.size))
    turns = (mdp.transitions, mdp.rewards, noise, sampler, factors)
    _, (here, after) = jax.lax.scan(step, last, turns, reverse=True)
    return jnp.concatenate([here, last[None]]), after
