"""Claims about the variance formula itself: against every group of small MDPs, and against samples."""

from typing import Any

import jax
import numpy as np

from experiments.theory.claims import Claim, at_most
from experiments.theory.regime_checks import (
    all_groups,
    group_advantages,
    mean_and_variance,
    sampled_squares,
    selection_error,
)
from experiments.theory.regime_families import FAMILIES
from tabular import TurnMDP, policy_gradient
from tabular.regimes.group_gradient import group_moments
from tabular.regimes.group_variance import sampling_variance

NOISE = 0.7  # any positive number: the part of a score that does not matter
SIZES = {0: (2,), 1: (2, 3), 2: (2, 4)}  # group sizes that can be enumerated, by boundary
FORMS = (("turn", "total"), ("state", "total"), ("turn", "to_go"))
# Family, boundary and group size of the sampled checks.
SAMPLED = (
    ("luck 1", 1, 4),
    ("chain K8 of 4, back 1", 3, 2),
    ("lock K5 p.7, ends at error", 2, 3),
    ("noisy tools .3", 0, 8),
)


def enumeration_claims(seed: int, num_mdps: int) -> list[Claim]:
    """Variance, mean, baseline and selection, exactly, on random MDPs that may end early."""
    worst = {"variance": [], "gradient": [], "baseline": [], "selection": []}
    rng = np.random.default_rng(seed)
    for _ in range(num_mdps):
        mdp, policy = _draw(rng)
        worst["variance"].append(max(_variance_error(mdp, policy, *form) for form in FORMS))
        worst["gradient"].append(_gradient_error(mdp, policy))
        worst["baseline"].append(_baseline_error(mdp, policy))
        worst["selection"].append(_selection_error(mdp, policy))
    where = f"every group of {num_mdps} random MDPs, H = 3, S = A = 2, early ends"
    statements = {
        "variance": "Var(C|S_k) is [E(R-V)^2|z|^2 - (n-2)/(n-1)|c|^2 + Var(R)E|z|^2/(n-1)]/n, at "
        "every boundary, state and turn, n = 2..4, both kinds of blocks, also for returns to go",
        "gradient": "E C over boundary states is the policy gradient of turn l at every boundary",
        "baseline": "leave-one-out advantages are R_i less the mean of R_j over j != i, n = 2..4",
        "selection": "E[C | returns] = n1 n0/(n(n-1)) (mu_1 - mu_0): with binary outcomes, choosing "
        "groups by their returns keeps the direction of a state's gradient",
    }
    return [
        at_most(statements[name], where, num_mdps, max(errors), 1e-11)
        for name, errors in worst.items()
    ]


def sampled_rows(key: jax.Array, groups: int, count: int) -> list[dict[str, Any]]:
    """E|C_l|^2 of the first `count` cases of `SAMPLED`: exact, sampled, standard error."""
    rows = []
    for number, (name, boundary, size) in enumerate(SAMPLED[:count]):
        mdp, policy = FAMILIES[name].make()
        moments = group_moments(mdp, policy, noise=NOISE)
        squares = np.asarray(sampling_variance(moments, size) + moments.covariances)
        exact = np.asarray(moments.occupancy)[boundary] @ squares[boundary]
        sampled, error = sampled_squares(
            jax.random.fold_in(key, number),
            mdp,
            policy,
            boundary=boundary,
            size=size,
            groups=groups,
            noise=NOISE,
        )
        for turn in range(boundary, mdp.num_turns):
            rows.append(
                {
                    "family": name,
                    "boundary": boundary,
                    "size": size,
                    "turn": turn,
                    "exact": float(exact[turn]),
                    "sampled": float(sampled[turn]),
                    "standard_error": float(error[turn]),
                }
            )
    return rows


def sampled_claim(rows: list[dict[str, Any]]) -> Claim:
    """The formula against samples, in standard errors."""
    deviations = [abs(r["sampled"] - r["exact"]) / r["standard_error"] for r in rows]
    return at_most(
        "E|C_l|^2 by dynamic programming agrees with sampled groups: deviation in standard errors",
        "luck, chain, lock that ends at the error, noisy tools (sampled)",
        len(rows), max(deviations), 5.0,
    )  # fmt: skip


def _draw(rng):
    """A random MDP and policy; drawn with numpy, where nothing has to be compiled."""
    shape = (3, 2, 2)
    goes_on = 1.0 - 0.4 * rng.random(shape)
    rows = goes_on[..., None] * rng.dirichlet(np.ones(2), shape)
    mdp = TurnMDP(rows, rng.random(shape), rng.dirichlet(np.ones(2)))
    return mdp, rng.dirichlet(np.ones(2), shape[:2])


def _cells(mdp):
    """Boundary, state, turn and group size of everything that is enumerated."""
    for boundary, sizes in SIZES.items():
        for state in range(mdp.num_states):
            for turn in range(boundary, mdp.num_turns):
                for size in sizes:
                    yield {"boundary": boundary, "state": state, "turn": turn, "size": size}


def _variance_error(mdp, policy, block, returns):
    moments = group_moments(mdp, policy, noise=NOISE, block=block, returns=returns)
    worst = 0.0
    for cell in _cells(mdp):
        groups = all_groups(mdp, policy, **cell, noise=NOISE, block=block, to_go=returns == "to_go")
        mean, variance = mean_and_variance(groups)
        place = cell["boundary"], cell["state"], cell["turn"]
        exact = float(sampling_variance(moments, cell["size"])[place])
        worst = max(
            worst, abs(variance - exact), abs(mean @ mean - float(moments.covariances[place]))
        )
    return worst


def _gradient_error(mdp, policy):
    occupancy = np.asarray(group_moments(mdp, policy).occupancy)
    gradient = np.asarray(policy_gradient(mdp, policy)).sum(1)
    estimates = np.zeros((mdp.num_turns, *gradient.shape))
    for cell in _cells(mdp):
        if cell["size"] == 2:
            mean, _ = mean_and_variance(all_groups(mdp, policy, **cell, noise=NOISE))
            boundary, state, turn = cell["boundary"], cell["state"], cell["turn"]
            estimates[boundary, turn] += occupancy[boundary, state] * mean[:-1]
    covered = np.tri(mdp.num_turns).T[:, :, None] > 0
    return abs(np.where(covered, estimates - gradient, 0.0)).max()


def _baseline_error(mdp, policy):
    """`core.leave_one_out` against the mean over the others, by numpy alone."""
    worst = 0.0
    for cell in _cells(mdp):
        if cell["turn"] > cell["boundary"]:
            continue  # the same groups and returns as at the boundary's turn
        returns = all_groups(mdp, policy, **cell, noise=NOISE).returns
        size = cell["size"]
        others = np.column_stack([np.delete(returns, i, axis=1).mean(1) for i in range(size)])
        worst = max(worst, abs(group_advantages(returns) - (returns - others)).max())
    return worst


def _selection_error(mdp, policy):
    outcome = np.zeros(mdp.rewards.shape)
    outcome[-1] = [[1.0, 0.0], [0.0, 1.0]]
    binary = TurnMDP(mdp.transitions, outcome, mdp.start)
    return max(
        selection_error(all_groups(binary, policy, **cell, noise=NOISE))
        for cell in _cells(binary)
        if cell["boundary"] > 0
    )
