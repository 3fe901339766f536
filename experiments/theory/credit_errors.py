"""RTPO's Theorem 2 (b) as claims and tables for `theorem_credit`: errors, correlations, signs."""

from typing import Any

import jax
import numpy as np

import tabular
from experiments.theory.claims import Claim, at_most
from experiments.theory.credit_instances import random_stack, stacked_laws
from rtpo_jax import core
from tabular import TurnMDP
from tabular.estimation import estimators
from tabular.estimation.accuracy import (
    accuracy,
    boundary_variances,
    sibling_error,
    trajectory_error,
)
from tabular.estimation.groups import group_statistics, sign_rates

SIZES = (3, 4, 8, 16)  # G of the closed forms; n = G - 1
_SHAPE = (4, 3, 3)
_EXACT = 1e-12


def _measured(mdp, policy):
    """Parts of the variance, and the accuracy of both groups for every G: siblings have n = G - 1."""
    found = [boundary_variances(mdp, policy)]
    for size in SIZES:
        flat = estimators.trajectory_group(mdp, policy, size)
        for estimate in (estimators.sibling_group(mdp, policy, size - 1), flat):
            found.append(accuracy(mdp, policy, estimate))
        # Equal group sizes: n = G siblings.
        found.append(accuracy(mdp, policy, estimators.sibling_group(mdp, policy, size)))
    return found


def errors(seed: int, num_mdps: int) -> tuple[list[Claim], dict[str, list[dict[str, Any]]]]:
    """Theorem 2(b), exactly, on MDPs whose episodes have full length, and how often it fails."""
    mdps, policies = random_stack(seed, num_mdps, _SHAPE, branching=2)
    parts, *measured = jax.tree.map(np.asarray, jax.vmap(_measured)(mdps, policies))
    within = parts.turn + parts.downstream
    gaps = dict.fromkeys(("parts", "mse", "equal", "printed", "correlation", "threshold"), 0.0)
    rows, shrinkage = [], -np.inf

    def record(name, gap):
        gaps[name] = max(gaps[name], float(np.max(gap)))

    record("parts", abs(parts.upstream + within - parts.total))
    for size, (siblings, flat, equal) in zip(SIZES, _by_three(measured), strict=True):
        n = size - 1
        record("mse", abs(siblings.mse - sibling_error(parts, n)))
        record("mse", abs(flat.mse - trajectory_error(parts, size)))
        shared = n / size * parts.upstream
        record("equal", abs(flat.mse - equal.mse - shared))
        rest = (parts.downstream - parts.turn) / (size * n)
        record("printed", abs(flat.mse - siblings.mse - shared - rest))
        record("correlation", abs(siblings.correlation_squared - (n - 1) / n * parts.turn / within))
        expected = n / size * parts.turn / parts.total
        record("correlation", abs(flat.correlation_squared - expected))
        clear = abs(siblings.correlation_squared - flat.correlation_squared) > 1e-12
        better = siblings.correlation_squared > flat.correlation_squared
        predicted = parts.upstream > within / (size * (size - 2))
        record("threshold", ((better != predicted) & clear).sum())
        gain = flat.mse - siblings.mse
        null = parts.turn < np.stack([siblings.mse, flat.mse]).min(0)
        shrinkage = max(shrinkage, float((siblings.mse - parts.turn).max()))
        rows.append(_counts(size, gain, null, better, parts))
    where = f"{num_mdps} MDPs {_SHAPE}, rewards at every turn, full length, every turn"
    count = len(SIZES) * parts.turn.size
    return _claims(where, count, gaps, shrinkage), {"random_counts": rows}


def _by_three(items):
    return zip(items[::3], items[1::3], items[2::3], strict=True)


def _counts(size, gain, null, better, parts):
    """How often, over MDPs and turns with upstream variance, each statement is false or true."""
    some = parts.upstream > 1e-6
    return {
        "group_size": size,
        "num_siblings": size - 1,
        "cases": int(some.sum()),
        "siblings_have_larger_mse": float((gain < 0)[some].mean()),
        "worst_mse_difference": float(gain[some].min()),
        "zero_beats_both": float(null[some].mean()),
        "siblings_have_larger_correlation": float(better[some].mean()),
    }


def _claims(where, count, gaps, shrinkage):
    sizes = "G = " + ", ".join(map(str, SIZES))

    def exact(claim, name, bound=_EXACT):
        return at_most(claim, f"{where}, {sizes}", count, gaps[name], bound)

    return [
        at_most("sV + sA + sQ = Var R at every turn (total variance; derived here)", where,
                count // len(SIZES), gaps["parts"], _EXACT),
        exact("RTPO Thm 2(b): MSE(A^H) = (n-1)/n sQ + sA/n, MSE(A^traj) = (G-1)/G (sQ + sV) + sA/G "
              "(derived here)", "mse"),
        exact("RTPO Thm 2(b) at equal group size, n = G: MSE difference = (G-1)/G sV exactly "
              "(derived here)", "equal"),
        exact("RTPO Thm 2(b), Eq. 76 with n = G-1: difference = (G-1)/G sV + (sQ - sA)/(G(G-1)), exact "
              "form of its remainder (derived here)", "printed"),
        at_most("RTPO, read into Thm 2(b): MSE(A^H) is below that of estimating 0, sA",
                f"{where}, {sizes}", count,
                shrinkage, 0.0, expected=False, counterexample="zero_wins"),
        exact("corr^2(A^H, A) = (n-1)/n sA/(sQ+sA), corr^2(A^traj, A) = (G-1)/G sA/Var R (derived "
              "here)", "correlation"),
        exact("corr^2 of n = G-1 siblings is larger iff sV > (sQ+sA)/(G(G-2)) (wrong predictions; "
              "derived here)",
              "threshold", 0.0),
    ]  # fmt: skip


def by_turn(
    name: str, mdps: TurnMDP, policies: jax.Array, pairs: tuple[tuple[str, int], ...]
) -> list[dict[str, Any]]:
    """Rows of the by-turn table, averaged over a stack of MDPs whose return is 0 or 1.

    Bias, variance, mean squared error and correlation are in closed form; signs by enumeration of
    all groups. Baselines include the row itself. A number that an MDP does not have (no advantage
    differs from 0) is left out of its mean.

    Args:
      name: of the rows.
      mdps: N of them.
      policies: [N, H, S, A].
      pairs: ("siblings" or "episodes", group size) of each estimator.

    Returns:
      one row per estimator and turn.
    """
    outcomes = np.array([0.0, 1.0])
    whole, to_go = (stacked_laws(mdps, policies, outcomes, to_go=flag) for flag in (False, True))
    laws = {
        "siblings": (to_go.action, to_go.state[:, :, :, None]),
        "episodes": (whole.action, whole.episode[:, :, None, None]),
    }

    @jax.vmap
    def closed(mdp, policy):
        makers = {"siblings": estimators.sibling_group, "episodes": estimators.trajectory_group}
        return [accuracy(mdp, policy, makers[kind](mdp, policy, size)) for kind, size in pairs]

    truth = np.asarray(jax.vmap(tabular.advantages)(mdps, policies))
    weights = np.asarray(jax.vmap(tabular.occupancy)(mdps, policies))[..., None] * policies
    rows = []
    for (kind, size), found in zip(pairs, closed(mdps, policies), strict=True):
        statistics = group_statistics(core.group_relative, outcomes, *laws[kind], size)
        signs = sign_rates(statistics, truth, weights)
        columns = {**found._asdict(), **signs._asdict()}
        columns = {column: np.nanmean(np.asarray(values), 0) for column, values in columns.items()}
        for turn in range(policies.shape[1]):
            numbers = {column: float(values[turn]) for column, values in columns.items()}
            rows.append({"mdp": name, "turn": turn, "group": kind, "size": size, **numbers})
    return rows
