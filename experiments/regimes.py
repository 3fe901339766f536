"""Regimes: when do siblings forked from one state beat flat groups, at equal generated turns?

RTPO (arXiv 2608.18682, section 3 and Theorem 2) compares siblings of one boundary state and proves
a lower mean squared error than a group of whole trajectories of the same size. It does not count
what the rows cost. A flat row of K turns serves K turns; a sibling row for turn k costs K - k turns
and, in the paper, serves one. This experiment asks for the cost of a gradient of given accuracy.
Everything is derived here; nothing in it is a number of the paper.

Set-up. The gradient has one block per turn, z_l its score, with one logit per action for all states
of the turn and an independent part of squared norm eta = 1 (tokens that do not matter). A group of n
chains from S_k with leave-one-out baseline estimates it with

    Var|S_k = [ E(R-V)^2|z|^2 - (n-2)/(n-1)|c|^2 + Var(R) E|z|^2/(n-1) ]/n,   c = Cov(R, z),

plus the variance of c over S_k (derivation: `tabular.regimes.group_gradient`). Ratios are cost of
flat groups of 8 over cost of the method, so above 1 the method needs fewer generated turns:

    M1  for the same total variance
    M2  for the same squared cosine while noise dominates, turns weighted as they deserve
    M3  for a squared cosine of 1/2, one weight per turn

Closed forms (`tabular.regimes.rules`), w_k the share of Var R still open at boundary k, kappa = k1/K:

    RTPO at every turn                          2 / ((K+1) mean_k w_k)
    flat rows before k1, one fork with tails    1 / (sqrt(kappa) + (1-kappa) sqrt(w_k1))^2
        its break-even                          w = 1 / (1 + sqrt(kappa))^2
    best single boundary, low signal            largest sum_{l>=k} |g_l|^4/(v_l w_k) / (rho_k L_k)

They take all turns for equally noisy. Where early turns hardly vary (phase map 2) all are too low,
and the largest gain of one fork, K/k1, is sum_l v_l / sum_{l<k1} v_l, v_l the variance of turn l.

Run it:

    python -m experiments.regimes                  # all families, both maps; about 25 s on two cores
    python -m experiments.regimes --size tiny      # a few of each; about 10 s
    python -m experiments.regimes --map-turns 5 24 --map-luck 0 1 8
    python -m experiments.regimes --replay results/regimes/RUN/counterexamples/NAME.json

On a busy machine OPENBLAS_NUM_THREADS=1 helps: the many small design problems gain nothing from
threads and wait for each other.

Result. RTPO at every turn loses, 2x to 30x, wherever the variance comes from the policy's own later
actions: locks, recoverable chains, noisy tools, tasks lost for a hidden reason. It wins where most of
the variance is fixed early, hidden and added to the outcome (mean w < 2/(K+1)). One fork right after
that point with the siblings' later turns trained, mixed with flat rows for the turns before, wins
more often and by more. Where only late turns matter, forks pay there alone (M2), never at every turn.
Rewards paid at once with return to go, or a critic that sees the state, remove the siblings' gain at
no cost in turns. The paper's form (n = G-1 siblings, trunk thrown away) costs 2.0x, 1.5x, 1.1x of
counting the trunk at n = 2, 3, 7.

Exact: all of `families.csv`, `phase_map_1.csv`, `phase_map_2.csv`, `variants.csv`, `forks.csv`,
`low_signal.csv`, `late_forks.csv`, `critics.csv`, `to_go.csv`; the variance formula and the rule about
selection by returns, by enumeration of every group of small random MDPs through
`rtpo_jax.core.leave_one_out`. Sampled: the second moment of group gradients on larger tasks, with its
standard error. Best mixtures carry a certified lower bound.

Conventions that matter. Groups at a boundary that early endings make rare count as a mean over the
groups formed times the known probability of reaching it ("known" in
`tabular.regimes.group_variance`); with "counted" trunks RTPO (G = 4) is up to 1.2x dearer on locks
that end at the error. Trajectories that are only forked are paid for; M2 and the columns
`free_trunks` take them as given. Estimates from several boundaries are combined as if independent:
exact correlation adds below 1 % for best mixtures, but up to 7 % for RTPO at every turn with tails.
"""

import dataclasses
import itertools
from typing import Literal

import jax
import numpy as np

from experiments import theory
from experiments.theory import regime_tables as tables
from experiments.theory.claims import Findings
from experiments.theory.regime_claims import (
    bound_claims,
    critic_claim,
    family_claims,
    late_claims,
    rule_claims,
    signal_claims,
    to_go_claims,
    variant_claims,
)
from experiments.theory.regime_counterexamples import counterexamples, replay
from experiments.theory.regime_enumeration import enumeration_claims, sampled_claim, sampled_rows
from experiments.theory.regime_families import FAMILIES, LOCK_FIVE, critical_case, phase_case
from paper_figures import regimes as figures
from tabular.regimes.families import lock_case, with_additive_luck

# Enough families for every claim.
FEW = (
    "lock K5 p.7", "luck .5", "luck 1", "luck 2", "doomed .8", "doomed .4, won .4",
    "lock K5 p.7, ends at error", "noisy tools .1", "paid at once K8",
)  # fmt: skip
COMPARED = (
    "lock K5 p.7", "chain K8 of 4, stay", "luck 1", "luck 2", "doomed .4, won .4",
    "paid at once K8",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """What is computed.

    Attributes:
      size: preset of the other options.
      seed: of the random MDPs and of the sampled groups.
      num_mdps: random MDPs whose groups are all enumerated.
      groups: groups sampled in each sampled check.
      sampled_cases: how many of the sampled checks, 1 to 4.
      families: "all" of the family table or a "few" of each kind.
      map_turns: K of phase map 1.
      map_luck: sizes of the luck in both maps; 0 for none.
      critical_turns: K of phase map 2, each with its last 1, last 2 and all turns critical.
    """

    size: Literal["tiny", "cpu"] = "cpu"
    seed: int = 0
    num_mdps: int = 6
    groups: int = 20_000
    sampled_cases: int = 4
    families: Literal["few", "all"] = "all"
    map_turns: tuple[int, ...] = (3, 5, 8, 16)
    map_luck: tuple[float, ...] = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
    critical_turns: tuple[int, ...] = (5, 9, 16)

    def __post_init__(self):
        for name, low in (("num_mdps", 1), ("groups", 100), ("sampled_cases", 1)):
            if getattr(self, name) < low:
                raise ValueError(f"{name}={getattr(self, name)}: give {low} or more")
        for name in ("map_turns", "critical_turns"):
            if not getattr(self, name) or min(getattr(self, name)) < 3:
                raise ValueError(f"{name}={getattr(self, name)}: give numbers of turns from 3 on")
        if not self.map_luck or min(self.map_luck) < 0:
            raise ValueError(f"map_luck={self.map_luck}: give sizes of luck, 0 or more")
        if max(self.map_luck) < 1:
            raise ValueError(f"map_luck={self.map_luck}: the maps need a luck of 1 or more")


PRESETS = {
    "cpu": Config(),
    "tiny": Config(
        size="tiny",
        num_mdps=1,
        groups=4000,
        sampled_cases=1,
        families="few",
        map_turns=(5,),
        map_luck=(0.0, 1.0, 2.0),
        critical_turns=(5,),
    ),
}


def run(config: Config, say: theory.Say = theory.silent) -> Findings:
    """All claims and tables; see the docstring of the module."""
    say(f"all groups of {config.num_mdps} random MDPs")
    claims = enumeration_claims(config.seed, config.num_mdps)
    say(f"{config.sampled_cases} sampled checks")
    sampled = sampled_rows(jax.random.key(config.seed), config.groups, config.sampled_cases)
    names = tuple(FAMILIES) if config.families == "all" else FEW
    say(f"{len(names)} families")
    families = [tables.family_row(name) for name in names]
    say("phase maps")
    map_1 = phase_map(config)
    map_2 = critical_map(config)
    say("variants, closed forms and comparisons")
    variants = [row for name in ("lock K5 p.7", "luck 2") for row in tables.variant_rows(name)]
    forks = fork_rows(config)
    late = late_fork_rows(config)
    signals = [tables.signal_row(name) for name in names]
    critics = [tables.critic_row(name) for name in COMPARED if name in names]
    paid = paid_rows()
    late_only = [
        tables.late_row(*task, luck) for task in ((8, 1), (8, 2)) for luck in (0.0, 0.5, 1.0)
    ]
    claims += [
        sampled_claim(sampled),
        *family_claims(families),
        *variant_claims(variants),
        *rule_claims(families, map_1, map_2, forks),
        *bound_claims(late),
        *signal_claims(signals),
        *late_claims(late_only, families),
        critic_claim(critics),
        *to_go_claims(paid),
    ]
    written = {
        "families": families,
        "phase_map_1": map_1,
        "phase_map_2": map_2,
        "variants": variants,
        "forks": forks + late,
        "low_signal": signals,
        "late_forks": late_only,
        "critics": critics,
        "to_go": paid,
        "sampled": sampled,
    }
    beyond = [row["exact"] / row["turn_bound"] for row in late]
    worst = late_cells(config)[int(np.argmax(beyond))]
    return Findings(claims=claims, tables=written, counterexamples=counterexamples(*worst))


def phase_map(config: Config) -> list[tables.Row]:
    """Phase map 1: luck of every size after turn 0 and after turn K // 2."""
    return [
        tables.phase_row(num_turns, turn, luck)
        for num_turns in config.map_turns
        for turn in sorted({0, num_turns // 2} - {num_turns - 1})
        for luck in config.map_luck
    ]


def critical_map(config: Config) -> list[tables.Row]:
    """Phase map 2: luck of every size against the number of critical turns."""
    return [
        tables.critical_row(num_turns, critical, luck)
        for num_turns in config.critical_turns
        for critical in (1, 2, num_turns)
        for luck in config.map_luck
    ]


def fork_rows(config: Config) -> list[tables.Row]:
    """One fork right after luck that matters (1 or more), for the closed form."""
    lock = lock_case(5, LOCK_FIVE)
    rows = [
        tables.fork_row(
            f"K5, luck {luck:g} after turn {turn}", with_additive_luck(lock, turn, luck), turn + 1
        )
        for turn in (0, 2)
        for luck in (1.0, 2.0)
    ]
    large = [luck for luck in config.map_luck if luck >= 1]
    return rows + [
        tables.fork_row(f"K{turns}, luck {luck:g}, J .3", phase_case(turns, 0, luck), 1)
        for turns in config.map_turns
        for luck in large
    ]


def late_cells(config: Config) -> list[tuple[int, int, float]]:
    """K, critical turns and luck of phase map 2 where not all turns are critical."""
    return list(itertools.product(config.critical_turns, (1, 2), config.map_luck))


def late_fork_rows(config: Config) -> list[tables.Row]:
    """One fork at the critical turns of phase map 2."""
    return [
        tables.fork_row(
            f"K{turns}, last {critical}, luck {luck:g}",
            critical_case(turns, critical, luck),
            turns - critical,
            noise=0.0,
        )
        for turns, critical, luck in late_cells(config)
    ]


def paid_rows() -> list[tables.Row]:
    """Rewards paid on the way, and luck of three sizes paid after turn 0 of a lock."""
    name = "paid at once K8"
    rows = [tables.to_go_row(name, FAMILIES[name].make())]
    lock = lock_case(5, LOCK_FIVE)
    for luck in (0.5, 1.0, 2.0):
        variances = np.zeros(lock.mdp.rewards.shape)
        variances[0] = luck**2
        rows.append(tables.to_go_row(f"luck {luck:g} paid at once", lock, variances))
    return rows


EXPERIMENT = theory.Experiment(
    name="regimes",
    description=__doc__,
    presets=PRESETS,
    run=run,
    figures=figures.draw,
    replay=replay,
)

if __name__ == "__main__":
    raise SystemExit(theory.main(EXPERIMENT))
