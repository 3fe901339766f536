"""Accuracy of an advantage estimate by turn, and the variances it is made of."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from tabular.estimation.estimators import Estimate, continuation_returns, paid_before
from tabular.exact import advantages, occupancy
from tabular.mdp import TurnMDP, check_policy


class Accuracy(NamedTuple):
    """How an estimate relates to the true advantage, by turn, given that the turn is reached.

    Attributes:
      squared_bias: [H] E[(E[estimate | s,a] - A)^2].
      variance: [H] E[Var(estimate | s,a)].
      mse: [H] the sum of the two, E[(estimate - A)^2].
      signal: [H] E[A^2], which is also the mse of estimating 0 everywhere.
      correlation_squared: [H] squared correlation of estimate and A; no scale enters. NaN where one
        of the two does not vary.
    """

    squared_bias: jax.Array
    variance: jax.Array
    mse: jax.Array
    signal: jax.Array
    correlation_squared: jax.Array


class BoundaryVariances(NamedTuple):
    """What the return of an episode owes to what, seen from the boundary of each turn.

    The first four are conditional on reaching turn h; P_h is the reward paid before it. If all
    episodes have full length, upstream + turn + downstream = total at every turn, and the parts are
    those of `tabular.variance_decomposition`.

    Attributes:
      reach: [H] probability that an episode reaches turn h.
      upstream: [H] E[(P_h + V_h(S_h) - mean return)^2], RTPO's sigma_V^2.
      turn: [H] E[A_h^2], sigma_A^2.
      downstream: [H] E[Var(G_h | s, a)], sigma_Q^2 averaged.
      total: [H] variance of the return of an episode, the same number at every turn.
    """

    reach: jax.Array
    upstream: jax.Array
    turn: jax.Array
    downstream: jax.Array
    total: jax.Array


def accuracy(mdp: TurnMDP, policy: jax.Array, estimate: Estimate) -> Accuracy:
    """Compare an estimate with the true advantage at every turn.

    Averages are over the states and actions an episode meets at turn h, given that it gets there:
    weights d_h(s) pi_h(a | s) / sum_s d_h(s). All are NaN at a turn that is never reached.

    Returns:
      `Accuracy`, five arrays [H].
    """
    return _accuracy(mdp, check_policy(mdp, policy), estimate)


def boundary_variances(mdp: TurnMDP, policy: jax.Array) -> BoundaryVariances:
    """Variances of the whole return by origin, given that turn h is reached (`BoundaryVariances`).

    With them the mean squared errors of both groups are (derived here; self-included baselines)

        siblings, n:   (n-1)/n downstream + turn / n
        episodes, G:   ((G-1)/G)^2 (upstream + downstream) + (G-1)/G^2 total + turn / G^2,

    the latter (G-1)/G (upstream + downstream) + turn / G if all episodes have full length.
    """
    return _boundary_variances(mdp, check_policy(mdp, policy))


def sibling_error(parts: BoundaryVariances, num_siblings: int) -> jax.Array:
    """Mean squared error [H] of `sibling_group`, from the parts alone."""
    kept = (num_siblings - 1) / num_siblings
    return kept * parts.downstream + parts.turn / num_siblings


def trajectory_error(parts: BoundaryVariances, group_size: int) -> jax.Array:
    """Mean squared error [H] of `trajectory_group`, from the parts alone."""
    kept = (group_size - 1) / group_size
    spread = kept**2 * (parts.upstream + parts.downstream)
    return spread + kept / group_size * parts.total + parts.turn / group_size**2


@jax.jit
def _accuracy(mdp, policy, estimate):
    weights = occupancy(mdp, policy)[:, :, None] * policy
    weights = weights / weights.sum((1, 2), keepdims=True)
    truth = advantages(mdp, policy)

    def average(table):
        return (weights * table).sum((1, 2))

    squared_bias = average((estimate.mean - truth) ** 2)
    noise = average(estimate.variance)
    mean, signal = average(estimate.mean), average(truth**2)
    spread = average(estimate.mean**2) - mean**2 + noise
    # The mean of the advantage under the policy is 0 in every state.
    correlation = average(estimate.mean * truth) ** 2 / (spread * signal)
    return Accuracy(squared_bias, noise, squared_bias + noise, signal, correlation)


@jax.jit
def _boundary_variances(mdp, policy):
    mass = occupancy(mdp, policy)
    reach = mass.sum(-1)
    own, (mean, variance) = continuation_returns(mdp, policy)
    paid, paid_variance = paid_before(mdp, policy)
    start_mean = mdp.start @ mean[0]
    total = mdp.start @ (variance[0] + mean[0] ** 2) - start_mean**2
    upstream = (mass * ((paid + mean - start_mean) ** 2 + paid_variance)).sum(-1) / reach
    weights = mass[:, :, None] * policy
    turn = (weights * (own.mean - mean[:, :, None]) ** 2).sum((1, 2))
    downstream = (weights * own.variance).sum((1, 2))
    return BoundaryVariances(
        reach, upstream, turn / reach, downstream / reach, jnp.full_like(reach, 1.0) * total
    )
