"""Closed forms for when siblings beat flat groups at equal generated turns. Derived here.

One model of variance underlies them, with K = H turns: a chain from boundary k, compared with its
siblings, estimates the gradient of one turn with variance w_k v per row, w_k the share of the
return's variance still open there (`tabular.regimes.group_variance.within_share`) and v the same
for all turns, and costs the K - k turns that are generated for it. The exact variance differs: it
depends on how the variance varies over states, on the signal |g|^2 that is part of it, and on the
group size. `experiments.regimes` measures by how much. Ratios are cost of flat groups over cost of
the method for the same total variance: above 1 the method is cheaper.
"""

from typing import NamedTuple

import numpy as np

from tabular.mdp import check_integer
from tabular.regimes.group_gradient import GroupMoments
from tabular.regimes.group_variance import within_share


def rtpo_rule(within: np.ndarray) -> float:
    """Ratio of RTPO with a group at every turn, 2 / ((K + 1) mean_k w_k).

    A flat row costs K and serves K turns: variance times cost K v x K. n rows at every boundary cost
    n sum_k (K - k) = n K (K + 1) / 2 and leave the variance sum_k w_k v / n, in all
    K (K + 1) / 2 x K mean(w) v. The trunk is left out: with n rows it adds 2 / (n (K + 1)) to the
    cost. Siblings at every turn win exactly if the mean share is below 2 / (K + 1).

    Args:
      within: [K] w_k.

    >>> rtpo_rule(np.ones(5))
    0.3333333333333333
    """
    return 2.0 / ((len(within) + 1) * float(np.mean(within)))


def fork_rule(fraction: float, within: float) -> float:
    """Ratio of one fork at turn k1, tails trained, flat rows only for the turns before it.

        1 / (sqrt(kappa) + (1 - kappa) sqrt(w))^2,     kappa = k1 / K

    With the cost split at its best, M1 = (sqrt(v_f c_f) + sqrt(v_s c_s))^2: the flat part trains
    kappa K turns at K a row, v_f c_f = kappa K^2 v; the tails train (1 - kappa) K turns at
    (1 - kappa) K a row, v_s c_s = (1 - kappa)^2 K^2 w v. Flat alone: K^2 v. At most K / k1 (w = 0).

    Args:
      fraction: kappa, above 0 and below 1.
      within: w at turn k1.

    Raises:
      ValueError: fraction outside (0, 1).
    """
    return 1.0 / (np.sqrt(_inside(fraction)) + (1.0 - fraction) * np.sqrt(within)) ** 2


def fork_share(fraction: float, within: float) -> float:
    """Share of the cost for the flat rows at that best split; sqrt(kappa) : (1 - kappa) sqrt(w)."""
    early = np.sqrt(_inside(fraction))
    return early / (early + (1.0 - fraction) * np.sqrt(within))


def break_even(fraction: float) -> float:
    """The share w below which `fork_rule` exceeds 1: 1 / (1 + sqrt(kappa))^2.

    sqrt(kappa) + (1 - kappa) sqrt(w) = 1 and 1 - kappa = (1 - sqrt(kappa))(1 + sqrt(kappa)).
    """
    return 1.0 / (1.0 + np.sqrt(_inside(fraction))) ** 2


def signal_rule(moments: GroupMoments, row_variances: np.ndarray) -> np.ndarray:
    """Information per generated turn of one fork at k with tails, against flat groups: [K].

        [ sum_{l >= k} |g_l|^4 / (v_l w_k) / (rho_k L_k) ] / [ sum_l |g_l|^4 / v_l / L_0 ]

    for estimates dominated by noise (M2), trunks not paid for; v_l is the variance of a flat row,
    rho_k the probability of reaching boundary k and L_k the mean number of turns left there, so that
    rho_k L_k is the cost and w_k v_l the variance of a sibling row per trunk. With early ends that
    holds where the variance of the return lies in the episodes that go on. The best single boundary
    is where this is largest.

    Args:
      moments: of the policy.
      row_variances: [L] variance of a flat group times its size.
    """
    information = np.asarray(moments.signals) ** 2 / np.asarray(row_variances)
    later = np.cumsum(information[::-1])[::-1]
    cost = (np.asarray(moments.occupancy) * np.asarray(moments.turns_left)).sum(1)
    return later / (np.asarray(within_share(moments)) * cost) / (later[0] / cost[0])


def late_rule(num_turns: int, critical: int, size: int, within: float = 1.0) -> float:
    """Gain in rows if only the last m turns matter and only they are forked, trunk in the group.

        [ n m / (K + (n - 1) m (m + 1) / 2) ] / [ m / K ] / w

    n rows for each of m turns, for one trunk and n - 1 siblings at each of those turns, against m
    useful rows of a flat episode; each sibling row is worth 1/w flat ones (M2).

    >>> round(late_rule(9, 2, 8), 6)
    2.4
    """
    check_integer("critical", critical, 1, num_turns)
    check_integer("size", size, 2)
    generated = num_turns + (size - 1) * critical * (critical + 1) / 2
    return size * num_turns / generated / within


class Split(NamedTuple):
    """How to divide a cost over separate estimates.

    Attributes:
      shares: [K] of the cost; sum 1.
      value: total variance times cost.
    """

    shares: np.ndarray
    value: float


def best_split(variances: np.ndarray, costs: np.ndarray) -> Split:
    """Cost shares that minimise sum_k v_k / m_k at sum_k m_k c_k = 1, each turn its own groups.

    Shares ~ sqrt(v_k c_k), value (sum_k sqrt(v_k c_k))^2 (Cauchy-Schwarz; Neyman allocation). Equal
    counts instead cost sum v x sum c. With c_k = K - k and equal v the gain tends to 9/8 as K grows,
    sum_k sqrt(k) ~ 2/3 K^(3/2): an even schedule is never far from the best one for equal w.
    """
    roots = np.sqrt(np.asarray(variances) * np.asarray(costs))
    return Split(roots / roots.sum(), float(roots.sum() ** 2))


def _inside(fraction):
    if not np.all((np.asarray(fraction) > 0.0) & (np.asarray(fraction) < 1.0)):
        raise ValueError(f"fraction={fraction}: the fork is after turn 0 and before the end, k1/K")
    return fraction
