"""What a schedule of flat and sibling groups buys per generated turn, and which one is best.

A schedule is measured by how well it estimates the gradient g = (g_0, .., g_{H-1}), one block per
turn, for its cost in generated turns:

    M1  sum_l v_l x cost                       total variance times cost; low is good
    M2  sum_l |g_l|^4 / v_l / cost             squared cosine per turn generated when noise dominates
    M3  cost at which max_w cos^2(w estimate, g) = 1/2, one weight per turn (between M2 and M1)

v_l is the variance of one unit of the schedule and cost its price; N units have variance v_l / N.
Estimates of one g_l from several kinds of groups are combined by precision. All are derived here;
covariances between blocks do not enter, because no parameters are shared between turns.

Works on concrete numbers: `GroupMoments` of one MDP.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from scipy import optimize

from tabular.mdp import check_integer
from tabular.regimes.group_gradient import GroupMoments
from tabular.regimes.group_variance import (
    Reach,
    boundary_variance,
    sampling_variance,
    shared_trunk_covariance,
)

SETTLED = 1e-12  # below this share of the largest variance a state counts as settled


class Schedule(NamedTuple):
    """One unit of a schedule.

    Attributes:
      variances: [L] variance of its estimate of g_l, infinite for turns it does not train.
      cost: generated turns.
    """

    variances: np.ndarray
    cost: float


def variance_cost(schedule: Schedule) -> float:
    """M1: total variance times cost, in units of reward squared times turns."""
    return float(schedule.variances.sum() * schedule.cost)


def information_rate(schedule: Schedule, signals: np.ndarray) -> float:
    """M2: sum_l |g_l|^4 / v_l / cost; `signals` are |g_l|^2, and |g_l| = 0 adds nothing."""
    signals = np.asarray(signals)
    useful = signals > 0
    return float((signals[useful] ** 2 / schedule.variances[useful]).sum() / schedule.cost)


def squared_cosine(precisions: np.ndarray, signals: np.ndarray) -> float:
    """max_w E[<w C, g>]^2 / (|g|^2 E|w C|^2) = sum_l |g_l|^4 p_l / (|g_l|^2 p_l + 1) / |g|^2.

    C_l estimates g_l with variance 1/p_l; the best weights are w_l = |g_l|^2 p_l / (|g_l|^2 p_l+1).
    """
    signals = np.asarray(signals)
    return float((signals**2 * precisions / (signals * precisions + 1.0)).sum() / signals.sum())


def cost_of_cosine(schedule: Schedule, signals: np.ndarray, target: float = 0.5) -> float:
    """M3: the cost at which `squared_cosine` reaches `target`.

    Raises:
      ValueError: the turns that the schedule trains hold no more than `target` of |g|^2.
    """
    signals = np.asarray(signals)
    reachable = signals[np.isfinite(schedule.variances)].sum() / signals.sum()
    if reachable <= target:
        raise ValueError(f"target={target} but the trained turns hold {reachable:.3g} of |g|^2")
    precisions = 1.0 / schedule.variances

    def excess(log_units):
        return squared_cosine(np.exp(log_units) * precisions, signals) - target

    return float(np.exp(optimize.brentq(excess, -60.0, 60.0, xtol=1e-13)) * schedule.cost)


def flat(moments: GroupMoments, size: int = 8, *, reach: Reach = "known") -> Schedule:
    """One group of `size` whole episodes of one task, all turns trained (GRPO, RLOO).

    With "known" or "counted" reach it is the same: every episode starts.
    """
    variances = np.asarray(boundary_variance(moments, size, reach=reach))[0]
    return Schedule(variances, size * _cost(moments)[0])


def rtpo(
    moments: GroupMoments,
    size: int,
    *,
    trunk: bool = False,
    turns: Sequence[int] | None = None,
    reach: Reach = "known",
) -> Schedule:
    """A trunk with a group at every turn it reaches, each training its own turn (RTPO, Alg. 1).

    Args:
      moments: of the policy.
      size: chains compared at each turn: n = G - 1 siblings, or G with the trunk among them.
      trunk: whether the trunk is a member of its groups; the paper throws it away.
      turns: boundaries with a group, None for all; other turns are not trained.
      reach: see `boundary_variance`.
    """
    cost = _cost(moments)
    forked = np.isin(np.arange(len(cost)), range(len(cost)) if turns is None else turns)
    own = np.diagonal(np.asarray(boundary_variance(moments, size, reach=reach)))
    siblings = size - 1 if trunk else size
    generated = siblings * cost[forked].sum()
    return Schedule(np.where(forked, own, np.inf), float(cost[0] + generated))


def rtpo_with_tails(moments: GroupMoments, size: int) -> tuple[Schedule, Schedule]:
    """A trunk with n siblings at every turn, which train all their later turns as well.

    The estimates of g_l at boundaries 0..l are combined by precision, reach "counted". Groups of
    one trunk are correlated (`shared_trunk_covariance`).

    Returns:
      The schedule with its exact variance, and the one that takes the groups for independent.
    """
    variances = np.asarray(boundary_variance(moments, size, reach="counted"))
    shared = np.asarray(shared_trunk_covariance(moments))
    cost = _cost(moments)
    price = float(cost[0] + size * cost.sum())
    precisions = 1.0 / variances
    independent = 1.0 / precisions.sum(0)
    weights = precisions * independent
    exact = independent + _pair_sum(weights, shared)
    return Schedule(exact, price), Schedule(independent, price)


def fork_once(
    moments: GroupMoments,
    turn: int,
    size: int = 8,
    *,
    flat_size: int = 8,
    share: float | Literal["best"] = "best",
) -> Schedule:
    """Flat groups that train turns before `turn`, sibling groups forked there that train the rest.

    The siblings start from states of the flat episodes. With c the cost and v the variance summed
    over the trained turns, the best share of the cost for the flat part is sqrt(v_f c_f) /
    (sqrt(v_f c_f) + sqrt(v_s c_s)) and M1 is then (sqrt(v_f c_f) + sqrt(v_s c_s))^2.

    Args:
      moments: of the policy.
      turn: the boundary, 1..H-1.
      size: siblings in a group.
      flat_size: episodes in a flat group.
      share: of the cost that goes to the flat part, or "best".

    Returns:
      The schedule for a cost of 1.
    """
    check_integer("turn", turn, 1, len(moments.signals) - 1)
    cost = _cost(moments)
    early = np.asarray(boundary_variance(moments, flat_size))[0] * flat_size * cost[0]
    late = np.asarray(boundary_variance(moments, size))[turn] * size * cost[turn]
    before = np.arange(len(early)) < turn
    if share == "best":
        parts = np.sqrt([early[before].sum(), late[~before].sum()])
        share = parts[0] / parts.sum()
    if not 0.0 < share < 1.0:
        raise ValueError(f"share={share}: the flat part needs between 0 and 1 of the cost")
    return Schedule(np.where(before, early / share, late / (1.0 - share)), 1.0)


class Candidates(NamedTuple):
    """Kinds of groups a design may buy; row 0 is a trajectory, as a flat row or as a mere trunk.

    Attributes:
      precisions: [C, L] precision of g_l that one visit adds; a visit is a trunk with a group of
        this kind at its boundary, if reached.
      costs: [C] mean cost of a visit.
      boundaries: [C] turn forked at, -1 in row 0.
      sizes: [C] chains in the group.
    """

    precisions: np.ndarray
    costs: np.ndarray
    boundaries: np.ndarray
    sizes: np.ndarray


def candidates(
    moments: GroupMoments,
    *,
    tails: bool,
    oracle: bool = False,
    flat_rows: bool = True,
    sizes: tuple[int, ...] = (2, 4, 8, 16),
    flat_size: int = 8,
    reach: Reach = "known",
) -> Candidates:
    """Flat rows and sibling groups of several sizes at every turn.

    Args:
      moments: of the policy.
      tails: siblings train all their later turns, and fork at turn 1 or later (at turn 0 that is a
        flat group); otherwise they train their own turn.
      oracle: fork states by their exact usefulness instead of as they come. With group variance
        v(s) and cost c(s), a share a(s) ~ d(s) sqrt(v(s) / c(s)) of the groups starts in s, and
        estimates of the states are added with their known probabilities (Neyman allocation). A
        state may be forked more often than it was visited. Needs reach "known".
      flat_rows: whether trajectories serve as flat rows; otherwise they are paid for and only
        forked.
      sizes: group sizes to choose from.
      flat_size: size of flat groups.
      reach: see `boundary_variance`.
    """
    whole = flat(moments, flat_size, reach=reach)
    costs = _cost(moments)
    rows = [(flat_rows / whole.variances / flat_size, costs[0], -1, flat_size)]
    for size in sizes:
        variances = np.asarray(boundary_variance(moments, size, reach=reach))
        by_state = np.asarray(sampling_variance(moments, size))
        for turn in range(int(tails), len(costs)):
            trained = _trained(len(costs), turn, tails)
            found, cost = variances[turn], size * costs[turn]
            if oracle:
                found, cost = _oracle(moments, by_state[turn], turn, trained, size)
            rows.append((_precisions(found, trained), cost, turn, size))
    precisions, prices, boundaries, counts = zip(*rows, strict=True)
    return Candidates(*(np.array(x) for x in (precisions, prices, boundaries, counts)))


def _precisions(variances, trained):
    return np.divide(1.0, variances, out=np.zeros(len(variances)), where=trained)


def _trained(num_turns, turn, tails):
    turns = np.arange(num_turns)
    return turns >= turn if tails else turns == turn


def _oracle(moments, variances, turn, trained, size):
    """Variance [L] and cost of one visit when states are chosen by usefulness."""
    weights = np.asarray(moments.occupancy)[turn]
    lengths = np.asarray(moments.turns_left)[turn]
    useful = variances[:, trained].sum(1)
    # Where the outcome is settled the variance is 0 up to rounding, which may be negative.
    useful = np.where(useful > SETTLED * useful.max(), useful, 0.0)
    shares = weights * np.sqrt(useful / lengths)
    if not shares.any():
        return np.full(len(trained), np.inf), size * float(weights @ lengths)
    shares = shares / shares.sum()
    used = shares > 0
    total = (weights[used, None] ** 2 / shares[used, None] * variances[used]).sum(0)
    reached = weights.sum()
    return total / reached, size * reached * (shares @ lengths)


def _cost(moments):
    """Mean cost [K] of a chain from each boundary, 0 where the episode does not reach it."""
    cost = (np.asarray(moments.occupancy) * np.asarray(moments.turns_left)).sum(1)
    if not cost.all():
        turn = int(np.argmin(cost))
        raise ValueError(f"turn {turn} is never reached: shorten the MDP to {turn} turns")
    return cost


def _pair_sum(weights, shared):
    """2 sum_{k < k'} w_k w_k' Cov_k of estimates ordered by boundary, [L]."""
    later = weights.sum(0) - np.cumsum(weights, axis=0)
    finite = np.where(weights > 0, shared, 0.0)
    return 2.0 * (weights * later * finite).sum(0)
