"""RTPO's Theorem 2, executed: what sibling groups know about credit, and what they do not.

    python -m experiments.theorem_credit            # about 25 s on two free cores
    python -m experiments.theorem_credit --size tiny
    python -m experiments.theorem_credit --replay results/theorem_credit/RUN/counterexamples/NAME.json

The theorem (arXiv 2608.18682, section 3; Eqs. 64-80), for n = G-1 siblings that are i.i.d. given the
boundary state S_k, with A^H = R_j - mean of the siblings' returns (itself included), and for a flat
group of G whole episodes with A^traj = R_i - mean of the group; sigma_V^2 = Var V(S_k):

  (a) E[A^H | S,u] = (G-2)/(G-1) A(S,u)  (Eq. 64), while
      E[A^traj | S,u] = (G-1)/G A + (G-1)/G (V(S) - mu)  (Eq. 69): upstream contamination;
  (b) MSE(A^traj) - MSE(A^H) = (G-1)/G sigma_V^2 + Delta_down - O(1/G^2), Delta_down >= 0, "hence
      strictly lower whenever sigma_V^2 > 0"  (Eqs. 75, 76);
  (c) the objective J_k has gradient on the siblings' turn-k tokens only (Eq. 80), and
      E[R_j - R_j' | u_j, u_j'] = Q(S,u_j) - Q(S,u_j')  (Eq. 78).

What comes out. (a) and (c) hold exactly, also with early ends and rewards at every turn (V then
includes what was paid before); `upstream` is a worse action that episodes praise because its state
is good. (b) holds exactly at EQUAL group size, n = G, for episodes of full
length. As printed, with n = G-1, its last sentence is wrong. With sQ the mean of Var(R | S,u) and
sA = E[A^2], and self-included baselines, exactly (derived here)

    MSE(A^H) = (n-1)/n sQ + sA/n,    MSE(A^traj) = (G-1)/G (sQ + sV) + sA/G,
    difference at n = G-1:  (G-1)/G sV + (sQ - sA)/(G(G-1)),

which is negative once sA > (G-1)^2 sV + sQ: the remainder has the order 1/G^2 and no definite sign.
Counterexamples are searched for (`smallest`) and named (`two_states`, `rare_lock`). Where episodes
may end early even equal group sizes do not help (`early_end`): an ended episode is a quiet baseline.

Three more readings of (b) need care. Mean squared error rewards shrinking: estimating 0 has error sA
and beats siblings iff sQ > sA, whatever n (`zero_wins`); n = 2 looks better than n = 15 because it
halves the estimate. The squared correlation with A has no scale in it,

    corr^2(A^H, A) = (n-1)/n sA/(sQ + sA),    corr^2(A^traj, A) = (G-1)/G sA/Var R,

and with n = G-1 it is larger for siblings iff sV > (sQ + sA)/(G(G-2)), that is iff upstream is more
than 1/(G-1)^2 of the variance: a quarter at G = 3, where early turns of a lock fail it. And in
states where the action matters, siblings have the wrong sign MORE often than episodes in the lock
(`wrong_sign`); what they avoid is signal in states where no action matters (`spurious`).

Equal generated turns (derived here). A flat episode costs K turns and gives one row to each of its
K turns. n siblings of turn k cost n(K-k) and give n rows to turn k alone; one trunk of K turns
serves all its boundaries, so n rows of every turn cost K + n K(K+1)/2. Unbiased (leave-one-out)
estimates have, in units of Var R and with w_k = (sQ+sA)/Var R, a_k = sA/Var R, squared errors
G/(G-1) - a_k (episodes) and n/(n-1) w_k - a_k (siblings). Averages over rows of different groups
divide them by the number of rows, so for the error summed over turns at the same number of turns

    episodes / siblings = sum_k (G/(G-1) - a_k) / [(1/n + (K+1)/2) sum_k (n/(n-1) w_k - a_k)].

Large groups and a_k << w_k leave 2 / ((K+1) mean_k w_k): with siblings at every turn, mean_k w_k has
to be below 2/(K+1). Rows of one group are correlated through their baseline; that is left out, and
so is |score|^2. If only the last turn matters the count is K against 1 + (K-1)/n turns a row, and
siblings win by far. Both conditions are drawn over locks with luck (`experiments.theory.credit_phase`).

Exact: everything. No sampling except of the MDPs. Expectations by enumerating all groups through
`rtpo_jax.core` (episodes of 3 turns, 2 states, 2 actions; gradients on 2 turns by autodiff through
`core.clipped_surrogate`), closed forms on larger MDPs; both agree to 1e-12. Also checked: a trunk
of an older policy inside the group is a bias; dividing by the group's deviation leaves no common
factor and can expect the wrong sign (`deviation`); GAE. Expected result: 35 claims come out as they
should, 9 of them statements that fail, each with a counterexample. Differences from the paper: an
action counts as one token; no discount.
"""

import dataclasses
from typing import Literal

import jax
import numpy as np

import tabular
from experiments import theory
from experiments.theory import credit_errors, credit_identities, credit_phase, credit_search
from experiments.theory.claims import Findings
from experiments.theory.credit_instances import random_stack
from paper_figures import credit as figures

_LOCKS = ((4, 0.6), (6, 0.7))  # turns and success probability of the by-turn table


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Options.

    Attributes:
      size: preset of the other options.
      seed: of the random MDPs.
      num_mdps: random MDPs of the closed forms.
      num_enumerated: random MDPs whose groups are enumerated.
      num_gradients: random MDPs whose expected gradients are differentiated.
      largest_group: largest G of the gradients, 3 to 6.
      max_denominator: of the probabilities in the search for counterexamples.
      sibling_counts: n of the by-turn table and at equal turns; G is n + 1, by turn also n.
      rollout_counts: n of the phase diagram of equal rollouts; G is n + 1.
      horizons: K of the phase diagram.
      num_shares: points on the axis of upstream variance.
    """

    size: Literal["tiny", "cpu"] = "cpu"
    seed: int = 0
    num_mdps: int = 300
    num_enumerated: int = 30
    num_gradients: int = 4
    largest_group: int = 6
    max_denominator: int = 4
    sibling_counts: tuple[int, ...] = (2, 3, 7, 15)
    rollout_counts: tuple[int, ...] = (2, 3, 4, 5, 7, 11, 15)
    horizons: tuple[int, ...] = (2, 3, 4, 5, 6, 8, 12, 16)
    num_shares: int = 24

    def __post_init__(self):
        possible = {
            "num_mdps": (self.num_mdps >= 1, "1 or more"),
            "num_enumerated": (self.num_enumerated >= 1, "1 or more"),
            "num_gradients": (self.num_gradients >= 1, "1 or more"),
            "largest_group": (3 <= self.largest_group <= 6, "3 to 6, all groups are listed"),
            "max_denominator": (self.max_denominator >= 3, "3 or more, halves show nothing"),
            "sibling_counts": (min(self.sibling_counts, default=0) >= 2, "numbers from 2 on"),
            "rollout_counts": (min(self.rollout_counts, default=0) >= 2, "numbers from 2 on"),
            "horizons": (
                min(self.horizons, default=0) >= 2 and max(self.horizons) >= 3,
                "2 turns or more, and 3 or more once",
            ),
            "num_shares": (self.num_shares >= 2, "2 or more"),
        }
        for name, (fine, fix) in possible.items():
            if not fine:
                raise ValueError(f"{name} is {getattr(self, name)}: use {fix}")


PRESETS = {
    "cpu": Config(),
    "tiny": Config(
        size="tiny",
        num_mdps=8,
        num_enumerated=8,
        num_gradients=2,
        largest_group=3,
        sibling_counts=(2, 3),
        rollout_counts=(2, 3),
        horizons=(3, 8),
        num_shares=6,
    ),
}


def run(config: Config, say: theory.Say = theory.silent) -> Findings:
    """All claims, tables and counterexamples; writes nothing."""
    say("2(a): enumerating groups through the core")
    claims = credit_identities.identities(config.seed, config.num_enumerated)
    claims += credit_identities.differences(config.seed, config.num_enumerated)
    claims += credit_identities.critics(config.seed, config.num_enumerated)
    say("2(c): expected gradients of J_k")
    sizes = tuple(range(2, config.largest_group))
    claims += credit_identities.support(config.seed, config.num_gradients, sizes)
    say("2(b): errors and correlations on random MDPs")
    found, tables = credit_errors.errors(config.seed, config.num_mdps)
    say("2(b): counterexamples")
    broken, examples = credit_search.violations(config.max_denominator)
    say("by-turn tables")
    tables["by_turn"] = _by_turn(config)
    say("phase diagrams: equal rollouts, equal generated turns")
    conditions, diagrams = credit_phase.phase_diagrams(
        np.geomspace(0.002, 0.9, config.num_shares),
        np.linspace(0.0, 0.98, config.num_shares),
        config.horizons,
        config.sibling_counts,
        config.rollout_counts,
    )
    claims += found + broken + conditions
    return Findings(claims=claims, tables={**tables, **diagrams}, counterexamples=examples)


def _by_turn(config):
    """Bias, variance, error, correlation and signs by turn: locks and random MDPs, both groups."""
    siblings = [("siblings", n) for n in config.sibling_counts]
    sizes = {size for n in config.sibling_counts for size in (n, n + 1)}
    pairs = (*siblings, *(("episodes", size) for size in sorted(sizes)))
    rows = []
    for turns, success in _LOCKS:
        mdp = tabular.lock(turns)
        stack = jax.tree.map(lambda leaf: leaf[None], (mdp, tabular.lock_policy(mdp, success)))
        rows += credit_errors.by_turn(f"lock K={turns} p={success}", *stack, pairs)
    stack = random_stack(
        config.seed, config.num_enumerated, (4, 3, 3), branching=1, outcome_only=True,
        reward_levels=2,
    )  # fmt: skip
    return rows + credit_errors.by_turn("random", *stack, pairs)


EXPERIMENT = theory.Experiment(
    name="theorem_credit",
    description=__doc__,
    presets=PRESETS,
    run=run,
    figures=figures.draw,
    replay=credit_search.replay,
)

if __name__ == "__main__":
    raise SystemExit(theory.main(EXPERIMENT))
