"""Theorem 1 of RTPO (arXiv 2608.18682): recursive optimality, of what learner, and without what.

    python -m experiments.theorem_convergence                 # about 50 s on two free cores
    python -m experiments.theorem_convergence --size tiny     # about 20 s, nearly all compilation
    python -m experiments.theorem_convergence --replay RUN/counterexamples/slow_branch.json

The statement. In a turn-boundary MDP with finite states and actions (A1), proper episodes of finite
horizon (A2, A3) and bounded rewards (A9), let each turn have its own table (A4), be learned in reverse
order with all later turns frozen (A5), explore greedily in the limit with infinite exploration (A6),
visit every boundary and action infinitely often (A7) with steps sum alpha = infinity, sum alpha^2 <
infinity (A8), from contexts psi(S) that suffice to decide (A11). Then (a) Q_h converges almost surely
to Q~_h, the action values with the frozen later turns, and the greedy policy of the turn converges;
(b) from turn H-1 to turn 0 this gives a recursively optimal policy; (c) if the classes of the turns are
complete, V^rec = V*.

What the proof covers is Q-learning with greedy extraction, Q <- (1 - alpha) Q + alpha Y. What RTPO runs
is ascent on the clipped surrogate of Eq. 6, one stage a turn, in repeated sweeps. Both are run here.

Part 1, the learner of the proof (`convergence_learning`).
  Exactly: one greedy pass in reverse reaches V* in every state, one in natural order does not, H of
  them do (`natural_order`). The error of a table entry after n visits has a closed form (derived here),
  memory^2 start^2 + noise Var(Y), so A8 is needed in both halves: constant steps leave
  alpha / (2 - alpha) of Var(Y); steps 1/(i+1)^2 leave half of the start for ever (`constant_steps`,
  `summable_steps`: one coin each, whose learners are run again from the stored key).
  By sampling: that law for seven schedules, in standard errors over runs; the exponent of the sup
  error, -p/2 with steps 1/i^p and uniform exploration, -1/4 with 1/i and exploration m^-1/2, so
  exploration that dies out in a turn costs half the exponent and buys nothing (targets are frozen);
  reverse, natural, random and simultaneous learners at equally many episodes. Exponents are judged
  by their mean over turns, to .06 plus half their 95% t interval over seeds (`rates.csv`: by turn);
  orders by t tests of paired differences, corrected for how many are compared.

Part 2, the update RTPO runs (`convergence_updates`).
  Exactly: if every turn is repeated until it stops, ceil(log A / log(1 + clip)) stages from the
  uniform policy, one reverse pass ends at V* (derived here). One stage a turn, in sweeps, it is
  monotone and moves no row by more than the clip, but it need not end at V*, even in reverse: a
  branch can lose all its probability before its continuation is learned, and the clipped maximiser
  never gives any back. `slow_branch` does so from the uniform policy; from random starts about one
  MDP in five ends below V*. So Theorem 1 does not hold for Eq. 6 as an exact proximal step. Ascent in
  softmax logits cannot extinguish an action and closes the gap, like 1 / sweeps. With trunks drawn
  at the start of a sweep, natural order is the simultaneous update exactly (derived here).
  By sampling: trunks and n = 2, 4, 8 siblings with `core.sibling_relative`, 128 siblings a turn,
  learning rates scaled by n / (n - 1) (Eq. 64), 95% t intervals over seeds.

Part 3, each assumption violated (`convergence_restricted`).
  Exactly, as saved instances: a state the trunk never visits, continuations that are not the frozen
  ones, a context that hides the state, two tied states, a missing action; Q-learners end at the same
  performance. With tied states the recursive policy is below the best of its own class, because the
  row is settled by the states of the trunk and not by those of the policy that results: with an
  incomplete class reverse order optimises against the wrong occupancy. On random MDPs with merged
  contexts: the gap to V*, and the further gap to the best policy on psi (`merged_states`). While
  psi shows the turn, performance is linear in each row and no stochastic policy beats the best
  deterministic one (derived here, confirmed by search); if rows are shared across turns one can
  (`absent_minded`: 1/3 > 1/4), and clipped ascent on shared logits finds it.

Differences from the paper: discount 1 and episodes with at most H turns; rewards are outcomes 0 or 1
drawn with the MDP's means; the siblings of the exact parts are unbounded in number.
"""

import dataclasses
from typing import Literal

import jax

from experiments import theory
from experiments.theory import (
    convergence_learning,
    convergence_restricted,
    convergence_steps,
    convergence_updates,
)
from experiments.theory.claims import Counterexample, Findings
from paper_figures import convergence as figures


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Options; every size trades time for tighter numbers.

    Attributes:
      size: preset of the other options.
      seed: of everything random.
      num_mdps: random MDPs of the exact parts.
      num_learners: random MDPs of the sampled parts.
      num_seeds: runs on each of these.
      num_samples: episodes a turn of Q-learning; exponents are fitted to the last factor of eight,
        which below 4096 is not yet where they hold.
      num_sweeps: sweeps of exact ascent.
      num_sampled_sweeps: sweeps with sampled siblings.
      num_searched: MDPs on which stochastic policies are searched.
      sibling_counts: siblings n = G - 1 at every boundary, divisors of 128.
    """

    size: Literal["tiny", "cpu"] = "cpu"
    seed: int = 0
    num_mdps: int = 300
    num_learners: int = 16
    num_seeds: int = 8
    num_samples: int = 4096
    num_sweeps: int = 200
    num_sampled_sweeps: int = 60
    num_searched: int = 12
    sibling_counts: tuple[int, ...] = (2, 4, 8)

    def __post_init__(self):
        least = {"num_mdps": 100, "num_learners": 2, "num_seeds": 2, "num_samples": 4096,
                 "num_sweeps": 40, "num_sampled_sweeps": 1, "num_searched": 1}  # fmt: skip
        for name, low in least.items():
            if getattr(self, name) < low:
                raise ValueError(f"{name}={getattr(self, name)}: give {low} or more")
        for count in self.sibling_counts:
            if count < 2 or 128 % count:
                raise ValueError(f"sibling_counts has {count}: give divisors of 128 from 2 on")
        if self.num_searched > self.num_mdps:
            raise ValueError(f"num_searched={self.num_searched}: give at most {self.num_mdps}")


PRESETS = {
    "cpu": Config(),
    "tiny": Config(
        size="tiny",
        num_mdps=100,
        num_learners=8,
        num_sweeps=100,
        num_sampled_sweeps=40,
        num_searched=3,
        sibling_counts=(2,),
    ),
}
# Episodes a turn of the learners on single instances: their closest decision is 0.5 against 0.45.
INSTANCE_SAMPLES = 16384
MAXIMISER_SWEEPS = 40


def run(config: Config, say: theory.Say = theory.silent) -> Findings:
    """Run all parts; numbers only."""
    keys = jax.random.split(jax.random.key(config.seed), 10)
    mdps = convergence_learning.draw_mdps(keys[0], config.num_mdps, 0.0)
    ending = convergence_learning.draw_mdps(keys[1], config.num_mdps, 0.5)
    # Rows of transitions are uniform on the simplex, and so are policies made of them.
    policies = convergence_learning.draw_mdps(keys[2], config.num_mdps, 0.0).transitions[:, :, :, 0]
    few = convergence_learning.take(mdps, slice(config.num_learners))
    learnable = convergence_learning.uniform_start(few)
    third = convergence_learning.take(mdps, slice(config.num_mdps // 3))
    seeds, samples = config.num_seeds, config.num_samples
    found = []

    def part(message, function, *arguments):
        say(message)
        found.append(function(*arguments))

    learning, updates, restricted = (
        convergence_learning,
        convergence_updates,
        convergence_restricted,
    )
    part("greedy passes, exactly", learning.recursion, ending, restricted.natural_order())
    part("Q-learning with eight schedules", learning.sampled, keys[3], learnable, seeds, samples)
    part("Q-learning in other orders", learning.orders, keys[4], learnable, seeds, samples)
    part("clipped maximiser", updates.maximiser, keys[5], mdps, policies, MAXIMISER_SWEEPS)
    part("clipped ascent", updates.ascent, keys[6], third, config.num_sweeps)
    part("clipped ascent from sampled siblings", updates.siblings, keys[7], few, seeds,
         config.num_sampled_sweeps, config.sibling_counts)  # fmt: skip
    part("violated assumptions", restricted.violations, keys[8], seeds, INSTANCE_SAMPLES)
    part("merged contexts", restricted.merged, keys[9], mdps, config.num_searched)
    part("rows shared across turns", restricted.shared_rows)
    return Findings(
        claims=[claim for part_ in found for claim in part_.claims],
        tables={name: rows for part_ in found for name, rows in part_.tables.items()},
        counterexamples={name: c for part_ in found for name, c in part_.counterexamples.items()},
    )


def replay(counterexample: Counterexample) -> dict[str, float]:
    """Compute the numbers of a counterexample again."""
    arrays, settings = counterexample.arrays, counterexample.settings
    match settings["kind"]:
        case "sweep":
            return convergence_restricted.sweep_numbers(arrays, settings)
        case "clipped":
            return convergence_updates.clipped_numbers(arrays, settings)
        case "coin":
            return convergence_steps.coin_numbers(arrays, settings)
        case "stochastic":
            return convergence_restricted.stochastic_numbers(arrays, settings)
    raise ValueError(f"kind={settings['kind']!r}: use a counterexample that this experiment wrote")


EXPERIMENT = theory.Experiment(
    name="theorem_convergence",
    description=__doc__,
    presets=PRESETS,
    run=run,
    figures=figures.draw,
    replay=replay,
)

if __name__ == "__main__":
    raise SystemExit(theory.main(EXPERIMENT))
