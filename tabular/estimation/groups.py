"""Advantage estimators by enumerating groups: every group of n returns goes through the core.

What `tabular.estimation.estimators` states in closed form is here a finite sum over groups, and the
estimates are those of `rtpo_jax.core` itself, whatever they are: standardised ones have no closed
form. Returns take few different values (the outcome of a lock takes two), and the companions of a
row are exchangeable, so the sum runs over the value of the row times the multisets of values of its
companions, weighted by multinomial probabilities; n = 6 with a dozen values, or n = 16 with two, is
quick.
"""

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rtpo_jax import core
from tabular.estimation.estimators import Estimate
from tabular.mdp import TurnMDP, check_integer
from tabular.paths import Paths, at_states, group_by_step, path_probabilities, path_rewards
from tabular.trajectories import trajectories

# Numbers closer than this, relative to the largest, are one number: the order in which an episode's
# rewards are added moves a sum by 1e-16.
_SAME = 1e-10

Advantage = Callable[[jax.Array, jax.Array, int], jax.Array]  # (returns, group_ids, num_groups)


class ReturnLaws(NamedTuple):
    """Distributions of returns on a common list of Y values, as numpy arrays.

    Attributes:
      values: [Y] the different returns, ascending.
      action: [H, S, A, Y] law of an episode's return given turn, state and action.
      state: [H, S, Y] law given turn and state.
      episode: [H, Y] law of what an episode contributes at turn h, whether it gets there or not.
    """

    values: np.ndarray
    action: np.ndarray
    state: np.ndarray
    episode: np.ndarray


class GroupStatistics(NamedTuple):
    """Exact law of an advantage estimate, summarised; numpy arrays of the leading shape of `own`.

    Attributes:
      mean: expectation of the estimate.
      variance: its variance.
      positive: probability that it is positive.
      negative: probability that it is negative; it is 0 otherwise.
      no_signal: probability that all returns of the group are equal (`core.has_no_signal`).
    """

    mean: np.ndarray
    variance: np.ndarray
    positive: np.ndarray
    negative: np.ndarray
    no_signal: np.ndarray

    @property
    def estimate(self) -> Estimate:
        """Mean and variance alone."""
        return Estimate(self.mean, self.variance)


class SignRates(NamedTuple):
    """Signs of an estimate at every turn that is reached. All [H].

    Attributes:
      wrong: probability that the sign is wrong, given an advantage and an estimate that are not 0.
      spurious: share of the estimates that are not 0 where the advantage is 0: signal from nothing.
      zero: probability that the estimate is 0.
      no_signal: probability that all returns of the group are equal.
    """

    wrong: np.ndarray
    spurious: np.ndarray
    zero: np.ndarray
    no_signal: np.ndarray


def return_laws(
    mdp: TurnMDP, policy: jax.Array, *, to_go: bool, values: np.ndarray | None = None
) -> ReturnLaws:
    """Distribution of returns, by enumeration of episodes (outside jit).

    A law given (h, s) or (h, s, a) is all zeros where an episode never gets there.

    Args:
      mdp: the MDP, concrete.
      policy: [H, S, A] action probabilities, concrete.
      to_go: returns from turn h on, what siblings compare, instead of whole returns; an episode that
        ended before turn h then contributes 0 to `episode`.
      values: [Y] ascending list to use, so that laws of several MDPs can be stacked; None for the
        returns that occur.

    Returns:
      `ReturnLaws`.

    Raises:
      ValueError: a return that is not among `values`; as `tabular.trajectories`.
    """
    found = trajectories(mdp, policy)
    returns = found.rewards[:, ::-1].cumsum(1)[:, ::-1]
    if not to_go:
        returns = np.repeat(returns[:, :1], mdp.num_turns, axis=1)
    values = _distinct(returns) if values is None else np.asarray(values, dtype=float)
    index = _indices(returns, values)
    action = np.zeros((*mdp.rewards.shape, values.size))
    episode = np.zeros((mdp.num_turns, values.size))
    turns = np.broadcast_to(np.arange(mdp.num_turns)[None, :], index.shape)
    mass = np.broadcast_to(found.probability[:, None], index.shape)
    np.add.at(episode, (turns, index), mass)
    here = found.turn_mask
    place = (turns[here], found.states[here], found.actions[here], index[here])
    np.add.at(action, place, mass[here])
    return ReturnLaws(values, _normalised(action), _normalised(action.sum(2)), episode)


def group_statistics(
    advantage: Advantage,
    values: np.ndarray,
    own: np.ndarray,
    others: np.ndarray,
    group_size: int,
    *,
    trunk: np.ndarray | None = None,
) -> GroupStatistics:
    """Exact law of the estimate of one row of a group, by enumeration (outside jit).

    Args:
      advantage: `core.group_relative`, `core.leave_one_out` or another function of (returns [N],
        group_ids [N], num_groups) that treats members of a group alike. Compiled once for each
        function object and size, so make a `functools.partial` once.
      values: [Y] the different returns.
      own: [..., Y] law of the row's return, such as [H, S, A, Y].
      others: law of the return of each other member; broadcasts against `own`.
      group_size: n, at least 2, the row included.
      trunk: law, as `others`, of one member that differs from them and takes the place of one; None
        for none.

    Returns:
      `GroupStatistics`. Estimates below 1e-10 of the spread of `values` count as 0 in the signs.

    Raises:
      ValueError: group_size below 2.
    """
    check_integer("group_size", group_size, 2)
    singled_out = 0 if trunk is None else 1
    companions, orders = _multisets(len(values), group_size - 1 - singled_out)
    chances = orders * others[..., companions].prod(-1)
    if singled_out:
        first = np.repeat(np.arange(len(values)), len(companions))
        companions = np.concatenate([first[:, None], np.tile(companions, (len(values), 1))], axis=1)
        chances = trunk[..., first] * np.concatenate([chances] * len(values), axis=-1)
    estimates, flat = _estimates(advantage, np.asarray(values, dtype=float), companions)
    threshold = _SAME * (values.max() - values.min())

    def average(table):
        # Linear in the law of the row and in the probability of its companions.
        return ((own @ table) * chances).sum(-1)

    mean, square = average(estimates), average(estimates**2)
    positive, negative = average(estimates > threshold), average(estimates < -threshold)
    return GroupStatistics(mean, square - mean**2, positive, negative, average(flat))


def sign_rates(
    statistics: GroupStatistics, advantages: np.ndarray, weights: np.ndarray
) -> SignRates:
    """Average the signs of an estimate over the states and actions of each turn.

    Args:
      statistics: of the estimate, [..., H, S, A].
      advantages: [..., H, S, A] true advantages.
      weights: [..., H, S, A] probability of being at (h, s, a): occupancy times policy.

    Returns:
      `SignRates` [..., H]; NaN where there is nothing to condition on.
    """
    truth, weights = np.asarray(advantages), np.asarray(weights)
    differs = np.abs(truth) > _SAME * (1.0 + np.abs(truth).max())
    nonzero = statistics.positive + statistics.negative
    wrong = np.where(truth > 0, statistics.negative, statistics.positive)

    def total(table):
        return (weights * table).sum((-2, -1))

    def share(part, whole):
        return np.divide(part, whole, out=np.full_like(whole, np.nan), where=whole > 0)

    reach = total(np.ones_like(truth))
    return SignRates(
        share(total(differs * wrong), total(differs * nonzero)),
        share(total(~differs * nonzero), total(nonzero)),
        share(total(1.0 - nonzero), reach),
        share(total(statistics.no_signal), reach),
    )


def path_estimate(mdp: TurnMDP, policy: jax.Array, paths: Paths, advantages: jax.Array) -> Estimate:
    """Moments of any advantage [M, H] that is known episode by episode, given turn, state, action.

    Conditional moments under the policy: sums over the paths through (h, s, a), over their
    probability. 0 where no path leads.
    """
    shape = mdp.rewards.shape
    probabilities = path_probabilities(mdp, policy, paths)[:, None]
    measure = jnp.broadcast_to(probabilities, advantages.shape)
    mass = group_by_step(measure, paths, shape)
    divisor = jnp.where(mass > 0, mass, 1.0)
    mean = group_by_step(measure * advantages, paths, shape) / divisor
    return Estimate(mean, group_by_step(measure * advantages**2, paths, shape) / divisor - mean**2)


def path_generalised_advantages(
    mdp: TurnMDP, paths: Paths, values: jax.Array, trace_decay: float
) -> jax.Array:
    """`core.gae` on every path, [M, H], with values [H+1, S]; 0 after the end of an episode."""
    after = jnp.zeros((len(paths.states), 1))
    discounts = np.pad(paths.turn_mask[:, 1:], ((0, 0), (0, 1))).astype(float)
    along_values = jnp.concatenate([at_states(values, paths), after], axis=1)
    return core.gae(path_rewards(mdp, paths), discounts, along_values, trace_decay)


def _distinct(returns):
    """Different values, ascending; of values that differ by rounding the smallest."""
    flat = np.sort(returns, axis=None)
    return flat[np.concatenate([[True], np.diff(flat) > _tolerance(flat)])]


def _indices(returns, values):
    """Index of each return among the values."""
    index = np.searchsorted(values, returns + _tolerance(values), side="right") - 1
    gaps = abs(values[index] - returns)
    if gaps.max() > _tolerance(values):
        missing = returns.flat[gaps.argmax()]
        raise ValueError(f"values lack the return {missing}: list every return there is")
    return index


def _tolerance(values):
    return _SAME * (1.0 + np.abs(values).max())


def _normalised(weights):
    total = weights.sum(-1, keepdims=True)
    return weights / np.where(total > 0, total, 1.0)


def _multisets(num_values, size):
    """All multisets [C, size] of value indices, and how many orders [C] each has."""
    rows = list(itertools.combinations_with_replacement(range(num_values), size))
    rows = np.array(rows, dtype=int).reshape(len(rows), size)
    counts = (rows[:, None, :] == np.arange(num_values)[None, :, None]).sum(-1)
    factorials = np.array([math.factorial(k) for k in range(size + 1)], dtype=float)
    return rows, math.factorial(size) / factorials[counts].prod(-1)


def _estimates(advantage, values, companions):
    """Estimate [Y, C] of the first row of each group, and whether all its returns are equal."""
    shape, group_size = (len(values), len(companions)), companions.shape[1] + 1
    first = np.repeat(np.arange(len(values)), len(companions))
    members = np.concatenate([first[:, None], np.tile(companions, (len(values), 1))], axis=1)
    # Rows without a group fill up to a few sizes, so that few programs are compiled.
    num_rows = 4096
    while num_rows < members.size:
        num_rows *= 8
    spare = num_rows - members.size
    returns = np.pad(values[members].ravel(), (0, spare))
    ids = np.pad(np.repeat(np.arange(len(members)), group_size), (0, spare), constant_values=-1)
    estimates, flat = _through_core(advantage, jnp.asarray(returns), jnp.asarray(ids))
    estimates = np.asarray(estimates)[: members.size : group_size]
    return estimates.reshape(shape), np.asarray(flat)[: len(members)].reshape(shape)


@partial(jax.jit, static_argnums=0)
def _through_core(advantage, returns, ids):
    num_groups = len(returns) // 2  # groups have two members or more
    return advantage(returns, ids, num_groups), core.has_no_signal(returns, ids, num_groups)
