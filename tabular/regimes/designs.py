"""The best mixture of flat and sibling groups at equal generated turns, with a certificate.

A design buys x_i turns' worth of every kind of group i. Precisions add, P_l = sum_i x_i p_il / c_i,
so that the two questions

    M1  least total variance:             minimise sum_i x_i  with  sum_l 1/P_l <= 1
    M3  least cost of a squared cosine:   minimise sum_i x_i  with  cos^2(P) >= target

are convex, under x >= 0 and, at every turn, no more groups than trajectories to fork them from (at
most one group per trajectory and turn). The first is the A-optimal design of experiments. scipy's
SLSQP solves both.

Certificate (derived here; the first case is the equivalence theorem of A-optimality): with U the
concave utility (-sum 1/P or cos^2), t its target, f its gradient at a design x, every design x' that
reaches t has t <= U(x) + f.(x' - x), hence

    cost(x') >= (t - U(x) + f.x) / max { f.y : y feasible, sum y = 1 },

a linear programme (HiGHS). `Design.lower_bound` is that number, `Design.gap` the relative distance.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import optimize

from tabular.regimes.allocation import Candidates, Schedule, cost_of_cosine, squared_cosine

TOLERANCE = 1e-5  # a larger relative gap is refused


class Design(NamedTuple):
    """A mixture and how good it is.

    Attributes:
      value: M1 or M3 of the mixture.
      lower_bound: what no mixture of the same kinds can fall below.
      tokens: [C] share of the cost spent on each kind; sum 1.
      schedule: the mixture bought for a cost of 1.
    """

    value: float
    lower_bound: float
    tokens: np.ndarray
    schedule: Schedule

    @property
    def gap(self) -> float:
        """Relative distance to the lower bound."""
        return 1.0 - self.lower_bound / self.value


class Utility(NamedTuple):
    """A concave function of the precisions [L] that has to reach `target`."""

    value: Callable[[np.ndarray], float]
    slope: Callable[[np.ndarray], np.ndarray]
    target: float


def least_variance(kinds: Candidates) -> Design:
    """The mixture of least total variance times cost (M1).

    Raises:
      ValueError: a turn that no kind trains.
      RuntimeError: the certificate leaves a gap above `TOLERANCE`.
    """
    utility = Utility(lambda p: -float((1.0 / p).sum()), lambda p: 1.0 / p**2, -1.0)
    even = kinds.precisions / kinds.costs[:, None]
    if not even.any(0).all():
        turn = int(np.argmin(even.any(0)))
        raise ValueError(f"turn {turn} is trained by no kind of group: add flat rows or a fork")
    start = _spread_out(kinds)
    return _solve(kinds, utility, start * float((1.0 / (start @ even)).sum()))


def least_cost_of_cosine(
    kinds: Candidates, signals: np.ndarray, target: float = 0.5, *, free_trunks: bool = False
) -> Design:
    """The mixture that reaches a squared cosine at the least cost (M3), one weight per turn.

    Args:
      kinds: what can be bought.
      signals: [L] |g_l|^2.
      target: the squared cosine.
      free_trunks: states to fork are at hand for nothing, as many as wanted.

    Raises:
      RuntimeError: the certificate leaves a gap above `TOLERANCE`.
    """
    signals = np.asarray(signals)

    def slope(precisions):
        return signals**2 / (signals * precisions + 1.0) ** 2 / signals.sum()

    utility = Utility(lambda p: squared_cosine(p, signals), slope, target)
    start = _spread_out(kinds)
    with np.errstate(divide="ignore"):
        even = Schedule(1.0 / (start @ (kinds.precisions / kinds.costs[:, None])), 1.0)
    start = start * cost_of_cosine(even, signals, target)
    return _solve(kinds, utility, start, free_trunks=free_trunks)


def correlated_variance(kinds: Candidates, design: Design, shared: np.ndarray) -> float:
    """M1 of a mixture with the correlation of groups forked from the same trajectories.

    Mixtures are optimised as if estimates from different boundaries were independent. They share
    trajectories: with N of them, any two of the estimates (the flat one among them) have the
    covariance Var c_l(S_k) / N at the earlier boundary k (for the flat one: the boundary of the
    other), and none for two sizes at one turn, which fork different trajectories. Exact for reach
    "counted", so for all episodes of full length.

    Args:
      kinds: what the design was made from, row 0 with flat rows.
      design: the mixture.
      shared: [K, L] from `tabular.regimes.group_variance.shared_trunk_covariance`.
    """
    visits = design.tokens / kinds.costs
    precisions = visits[:, None] * kinds.precisions
    weights = precisions / precisions.sum(0)
    turns = range(len(shared))
    forks = np.array([weights[kinds.boundaries == turn].sum(0) for turn in turns])
    later = forks.sum(0) - np.cumsum(forks, axis=0)
    pairs = (shared * forks * (weights[0] + later)).sum(0)
    return float((design.schedule.variances + 2.0 * pairs / visits[0]).sum())


def _spread_out(kinds):
    """A strictly feasible mixture of cost 1: three quarters trajectories, every kind a little."""
    visits = np.full(len(kinds.costs), 0.25 / len(kinds.costs))
    visits[0] = 1.0
    tokens = visits * kinds.costs
    return tokens / tokens.sum()


def _capacity(kinds):
    """Rows of y @ row >= 0: trajectories minus groups at each forked turn, in units of cost."""
    turns = np.unique(kinds.boundaries[1:])
    used = (kinds.boundaries[None, :] == turns[:, None]) / kinds.costs[None, :]
    return np.concatenate([np.full((len(turns), 1), 1.0 / kinds.costs[0]), -used[:, 1:]], axis=1)


def _solve(kinds, utility, start, *, free_trunks=False):
    """Minimise cost from a feasible start; the start sets the scale of the numbers."""
    scale = start.sum()
    rates = kinds.precisions / kinds.costs[:, None] * scale
    capacity = _capacity(kinds)[: 0 if free_trunks else None]
    capacity = capacity / abs(capacity).max(1, keepdims=True, initial=0.0)
    # A trial step may leave a turn untrained for a moment: its variance is infinite there.
    with np.errstate(divide="ignore"):
        found = optimize.minimize(
            np.sum,
            start / scale,
            jac=np.ones_like,
            method="SLSQP",
            bounds=[(0.0, None)] * len(start),
            constraints=[
                {"type": "ineq", "fun": lambda x: capacity @ x, "jac": lambda x: capacity},
                {
                    "type": "ineq",
                    "fun": lambda x: utility.value(x @ rates) - utility.target,
                    "jac": lambda x: rates @ utility.slope(x @ rates),
                },
            ],
            options={"maxiter": 1000, "ftol": 1e-13},
        )
    return _certified(utility, rates, capacity, found.x, scale)


def _certified(utility, rates, capacity, x, scale):
    precisions = x @ rates
    slopes = rates @ utility.slope(precisions)
    best = optimize.linprog(
        -slopes, A_ub=-capacity, b_ub=np.zeros(len(capacity)), A_eq=np.ones((1, len(x))), b_eq=[1.0]
    )
    bound = (utility.target - utility.value(precisions) + slopes @ x) / -best.fun
    total = x.sum()
    with np.errstate(divide="ignore"):
        schedule = Schedule(total / precisions * scale, 1.0)
    design = Design(float(total * scale), float(bound * scale), x / total, schedule)
    if not design.gap < TOLERANCE:
        raise RuntimeError(f"design is {design.gap:.1e} from its bound: report the instance")
    return design
