"""Where siblings estimate credit better than episodes, at equal rollouts and at equal generated turns.

Locks with luck in the return (`credit_instances.lucky_lock`) give every share of upstream variance.
Conditions are derived in the docstring of `experiments.theorem_credit`.
"""

from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.theory.claims import Claim, at_least, at_most
from experiments.theory.credit_instances import lucky_lock
from tabular.estimation import estimators
from tabular.estimation.accuracy import Accuracy, BoundaryVariances, accuracy, boundary_variances

_SUCCESS = 0.3  # of the whole lock
_EXACT = 1e-12

_RULES = ("rule", "rule_finite")

Table = list[dict[str, Any]]


def luck_for(shares: np.ndarray, upstream: float, total: float) -> np.ndarray:
    """Size of the luck that makes upstream variance the given share of the whole variance.

    Luck of size t adds t^2 to both: share = (upstream + t^2) / (total + t^2).

    Raises:
      ValueError: a share that is below what the lock itself has, or 1 and above.
    """
    squares = (shares * total - upstream) / (1.0 - shares)
    if (shares >= 1.0).any() or (squares < -1e-12).any():
        raise ValueError(
            f"shares span {shares.min()}..{shares.max()}: use {upstream / total:.3g} up to below 1"
        )
    return np.sqrt(np.where(squares > 0, squares, 0.0))


def phase_diagrams(
    rollout_shares: np.ndarray,
    turn_shares: np.ndarray,
    horizons: tuple[int, ...],
    sibling_counts: tuple[int, ...],
    rollout_counts: tuple[int, ...],
) -> tuple[list[Claim], dict[str, Table]]:
    """Both phase diagrams, `equal_rollouts` and `equal_turns`, from one stack of locks.

    Equal rollouts: one sibling group of n = G - 1 against one group of G episodes, at turn 1 of a
    lock whose first turn is certain, so that luck is all there is upstream. Also on the predicted
    boundary share = 1 / (G-1)^2 itself, where the two have to tie.

    Equal turns: the same number of generated turns, all turns of the episode to be served. Luck is
    drawn after turn 0, or after the first half of the turns; `upstream_share` is the part of the
    variance that luck and lock have decided before the turn that follows.

    Args:
      rollout_shares: upstream shares of the first diagram.
      turn_shares: upstream shares of the second; below what the lock itself has they are raised.
      horizons: K of the second.
      sibling_counts: n of the second, with G = n + 1.
      rollout_counts: n of the first.

    Returns:
      claims, and the rows of both tables.
    """
    counts = tuple(sorted({*sibling_counts, *rollout_counts}))
    edges = np.array([1.0 / n**2 for n in rollout_counts])
    total = _SUCCESS - _SUCCESS**2
    # With a certain first turn a lock of K + 1 turns is one of K turns after it.
    sizes = luck_for(np.concatenate([rollout_shares, edges]), 0.0, total)
    cases = [_Case(max(horizons), "after turn 0", 0, size) for size in sizes]
    cases += _cases(horizons, turn_shares)
    pairs = [
        lucky_lock(case.horizon, _SUCCESS, case.luck_size, case.luck_turn, max(horizons))
        for case in cases
    ]
    mdps, policies = jax.tree.map(lambda *leaves: np.stack(leaves), *pairs)
    policies[: len(sizes)] = _certain_start(max(horizons))
    parts, measured = jax.tree.map(np.asarray, _measured(mdps, policies, counts))
    by_count = dict(zip(counts, measured, strict=True))
    rollouts = [
        forked.correlation_squared[: len(sizes), 1] / flat.correlation_squared[: len(sizes), 1]
        for flat, forked in (by_count[n] for n in rollout_counts)
    ]
    claims, first = equal_rollouts(rollout_shares, edges, np.stack(rollouts, 1), rollout_counts)
    chosen = {n: by_count[n] for n in sibling_counts}
    more, second = equal_turns(cases, parts, chosen, skip=len(sizes))
    return claims + more, {"equal_rollouts": first, "equal_turns": second}


def _certain_start(horizon):
    """Policy that is right for sure at turn 0 and opens the lock with the usual probability."""
    right = np.full(horizon, _SUCCESS ** (1.0 / (horizon - 1)))
    right[0] = 1.0
    rows = np.stack([right, 1.0 - right], axis=-1)
    return np.broadcast_to(rows[:, None, :], (horizon, 4, 2))


def equal_rollouts(
    shares: np.ndarray, edges: np.ndarray, ratios: np.ndarray, sibling_counts: tuple[int, ...]
) -> tuple[list[Claim], Table]:
    """Claims and rows from ratios of squared correlations: first `shares`, then `edges`."""
    ties = np.diag(ratios[len(shares) :])
    rows, wrong = [], 0
    for share, line in zip(shares, ratios, strict=False):
        for n, edge, ratio in zip(sibling_counts, edges, line, strict=True):
            wrong += int((ratio > 1.0) != (share > edge))
            rows.append(
                {
                    "upstream_share": float(share),
                    "group_size": n + 1,
                    "correlation_ratio": float(ratio),
                    "boundary_share": float(edge),
                }
            )
    where = f"lucky locks, turn 1, n = {sibling_counts}, G = n + 1"
    claims = [
        at_most("equal rollouts: n = G-1 siblings and G episodes tie in corr^2 at sV/Var R = "
                "1/(G-1)^2 (derived here)", where, len(edges), abs(ties - 1.0).max(), _EXACT),
        at_most("equal rollouts: siblings are better exactly above that share (wrong cells; derived "
                "here)", where, len(rows), wrong, 0),
    ]  # fmt: skip
    return claims, rows


def equal_turns(
    cases: list["_Case"],
    parts: BoundaryVariances,
    measured: dict[int, tuple[Accuracy, Accuracy]],
    skip: int,
) -> tuple[list[Claim], Table]:
    """Claims and rows from the accuracies by n of all cases but the first `skip`."""
    rows, gaps = [], []
    for index in range(skip, len(cases)):
        case, turns = cases[index], slice(0, cases[index].horizon)
        own = BoundaryVariances(*(table[index, turns] for table in parts))
        same = {
            "horizon": case.horizon,
            "luck": case.luck,
            "luck_size": float(case.luck_size),
            "upstream_share": float((own.upstream / own.total)[case.luck_turn + 1]),
        }
        for n, (flat, forked) in measured.items():
            columns, gap = _compare(own, flat.mse[index, turns], forked.mse[index, turns], n)
            rows.append({**same, "num_siblings": n, **columns})
            gaps.append(gap)
    horizons = tuple(sorted({row["horizon"] for row in rows}))
    return _turn_claims(rows, max(gaps), horizons, tuple(measured)), rows


class _Case(NamedTuple):
    """A lucky lock: its number of turns, a name for when luck is drawn, that turn, and its size."""

    horizon: int
    luck: str
    luck_turn: int
    luck_size: float


def _cases(horizons, shares):
    """Every lock: luck of every size that gives one of the shares, after turn 0 and half-way."""
    cases = []
    for horizon in horizons:
        for luck, turn in _luck_turns(horizon).items():
            # Of the plain lock: E[V^2] - mu^2 on arriving at the turn after the luck.
            own = _SUCCESS ** (2.0 - (turn + 1) / horizon) - _SUCCESS**2
            total = _SUCCESS - _SUCCESS**2
            possible = np.where(shares > own / total, shares, own / total)
            lucks = luck_for(possible, own, total)
            cases += [_Case(horizon, luck, turn, size) for size in lucks]
    return cases


def _luck_turns(num_turns):
    """Turns after which luck is drawn; the last turn has to come later."""
    late = (num_turns - 1) // 2
    return {"after turn 0": 0, "half-way": late} if late > 0 else {"after turn 0": 0}


def _compare(parts, episodes, siblings, n):
    """Turns that episodes need over those that siblings need, and the gap to the closed form.

    `episodes` and `siblings` are mean squared errors [K] of leave-one-out estimates.
    """
    num_turns = len(parts.turn)
    size, left = n + 1, num_turns - np.arange(num_turns)
    w, a = (parts.turn + parts.downstream) / parts.total, parts.turn / parts.total
    schedule = 1.0 / n + (num_turns + 1) / 2.0  # turns per row of every turn, over K
    closed = (size / (size - 1) - a).sum() / (schedule * (n / (n - 1) * w - a).sum())
    exact = episodes.sum() / (schedule * siblings.sum())
    columns = {
        "mean_within_share": w.mean(),
        "all_turns": exact,
        "rule": 2.0 / ((num_turns + 1) * w.mean()),
        "rule_finite": size / (size - 1) * (n - 1) / n / (schedule * w.mean()),
        "best_allocation": num_turns * episodes.sum() / np.sqrt(left * siblings).sum() ** 2,
        "last_turn_only": num_turns * episodes[-1] / (((num_turns - 1) / n + 1) * siblings[-1]),
    }
    return {name: float(value) for name, value in columns.items()}, abs(closed / exact - 1.0)


def _turn_claims(rows, gap, horizons, sibling_counts):
    where = f"lucky locks, K = {horizons}, n = {sibling_counts}, G = n + 1"
    count = len(rows)
    exact = np.array([row["all_turns"] for row in rows])
    half_way = np.array([row["luck"] == "half-way" for row in rows])
    rule, finite = (np.array([row[name] for row in rows]) / exact for name in _RULES)
    best = np.array([row["best_allocation"] for row in rows]) / exact
    return [
        at_most("equal turns: episodes / siblings = sum_k (G/(G-1) - a_k) / [(1/n + (K+1)/2) "
                "sum_k (n/(n-1) w_k - a_k)] (derived here)", where, count, gap, _EXACT),
        at_most("equal turns: the rule 2 / ((K+1) mean w_k) is within this factor of it (derived here)",
                where, count, max(rule.max(), 1.0 / rule.min()), 2.0),
        at_most("equal turns: the rule with finite-group factors is within this factor (derived here)",
                where, count, max(finite.max(), 1.0 / finite.min()), 1.3),
        at_least("equal turns: the best split of siblings over turns is no worse than equal numbers "
                 "(derived here)", where, count, best.min(), 1.0),
        at_least("equal turns: siblings at all turns win if luck after turn 0 is large (best cell; "
                 "derived here)", where, int((~half_way).sum()), exact[~half_way].max(), 1.0),
        at_most("equal turns: with luck half-way siblings at all turns never win (best cell; derived "
                "here)", where, int(half_way.sum()), exact[half_way].max(), 1.0),
    ]  # fmt: skip


def _measured(mdps, policies, sibling_counts):
    """Variances, and accuracy of leave-one-out episodes (G = n + 1) and siblings for every n."""

    @jax.vmap
    def one(mdp, policy):
        found = []
        for n in sibling_counts:
            flat = estimators.trajectory_group(mdp, policy, n + 1, include_self=False)
            forked = estimators.sibling_group(mdp, policy, n, include_self=False)
            found.append((accuracy(mdp, policy, flat), accuracy(mdp, policy, forked)))
        return boundary_variances(mdp, policy), found

    return one(mdps, policies)
