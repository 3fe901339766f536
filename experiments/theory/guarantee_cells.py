"""The cells of the table of guarantees: which update, which advantage, which policies, on what.

Every cell is run the same way: from hundreds of random MDPs and policies, a fixed number of updates
each, the performance before and after every update computed exactly.
"""

import dataclasses
from functools import cached_property, lru_cache, partial
from typing import NamedTuple

import jax
import numpy as np

import tabular
from tabular.guarantees import cells, finite_groups, search, tied_updates
from tabular.guarantees.cells import Case, Estimator, Update

TOLERANCE = 1e-12  # a fall in performance below this is rounding
# A program runs a few hundred times for milliseconds: compiling it well would take longer than that.
COMPILER = {"xla_backend_optimization_level": 0}
SMALL_STEP = 1.0 / 64.0  # clip and step sizes of the second look, which tells bias from step size
DISCOUNT = 0.8

ADVANTAGES = {
    "GAE, exact values": Estimator(),
    "GAE, exact values, trace 0.5": Estimator(trace_decay=0.5),
    "GAE, noisy values": Estimator(noisy=1.0),
    "GAE, noisy values, trace 0.5": Estimator(noisy=1.0, trace_decay=0.5),
    "group-relative": Estimator(group=True),
    "group-relative / std": Estimator(group=True, scale=True),
    "sibling": Estimator(),
}
UPDATES = (
    "REINFORCE",
    "PPU token",
    "PPU sequence, product",
    "PPU sequence, geometric mean",
    "sequential",
)


class Column(NamedTuple):
    """What is varied besides the pair of advantage and update.

    Attributes:
      ties: class of the policies.
      sampled: True for finite groups.
      discount: gamma of the method.
      judged: "plain" for the sum of rewards, "discounted" for the discounted one.
    """

    ties: search.Ties
    sampled: bool = False
    discount: float = 1.0
    judged: str = "plain"


COLUMNS = {
    "exact": Column("table"),
    "shared logits": Column("shared"),
    "linear features": Column("linear"),
    "hidden states": Column("hidden"),
    "finite groups": Column("table", sampled=True),
    "discount": Column("table", discount=DISCOUNT),
    "discount, discounted performance": Column("table", discount=DISCOUNT, judged="discounted"),
}


@dataclasses.dataclass(frozen=True)
class Step:
    """Sizes that all cells share: clip range, step size, inner steps, tasks and chains."""

    clip: float = 0.2
    learning_rate: float = 1.0
    inner_steps: int = 5
    num_tasks: int = 4
    group_size: int = 4

    def update(self, name: str, advantage: str, num_turns: int, scale: float = 1.0) -> Update:
        """The numbers of an update; `scale` shrinks its clip range and step sizes."""
        in_turn = name == "sequential"
        return Update(
            stages=(cells.last_first if in_turn else cells.all_at_once)(num_turns),
            fresh=in_turn and advantage == "sibling",
            gradient=name == "REINFORCE",
            mean=name == "PPU sequence, geometric mean",
            clip=scale * self.clip,
            steps=np.full(self.inner_steps, scale * self.learning_rate),
        )


class Outcome(NamedTuple):
    """One update of a stack of cases.

    Attributes:
      policy: [N, H, S, A] new policies.
      slope: [N] see `tabular.guarantees.cells.Result`; NaN where there is none.
      discounted_slope: [N] the same.
      gain: [N] rise of the surrogate, NaN where there is none.
      rows: the sampled episodes, None where nothing is sampled.
      trunks: the sampled trunks of siblings, None for everything else.
    """

    policy: np.ndarray
    slope: np.ndarray
    discounted_slope: np.ndarray
    gain: np.ndarray
    rows: tabular.Paths | None = None
    trunks: tabular.Paths | None = None


def is_defined(turns: str, update: str, advantage: str, column: Column) -> str:
    """Empty if a cell is computed, otherwise why it is not."""
    if turns == "single-turn" and update == "sequential":
        return "one turn is one agent: PPU sequence level"
    if turns == "single-turn" and column.ties == "hidden":
        return "a response sees its own tokens"
    if advantage == "sibling" and update.startswith("PPU sequence"):
        return "siblings share a boundary, not an episode"
    if advantage == "sibling" and update != "sequential" and not column.sampled:
        return "without bound on the group, siblings are exact values with trace 1"
    return ""


class Engine:
    """The compiled programs for one shape of MDP; made once per shape by `engine`."""

    def __init__(self, shape: tuple[int, int, int], step: Step):
        self.shape, self.step = shape, step
        self.paths = tabular.all_paths(*shape, early_end=True)

    def apply(
        self,
        case: Case,
        names: tuple[str, Column],
        advantages: list[str],
        uniforms: np.ndarray | None = None,
        scale: float = 1.0,
    ) -> Outcome:
        """One update of a stack of N cases, case i with the estimator `advantages[i]`.

        Args:
          case: stack of cases.
          names: the update and the column.
          advantages: N names; with "sibling" all of them are that.
          uniforms: from `draws`, for sampled columns.
          scale: of clip range and steps.
        """
        name, column = names
        how = _estimators(advantages, column.discount)
        update = self.step.update(name, advantages[0], self.shape[0], scale)
        if not column.sampled:
            found = self._exact(name, column)(case, how, update)
            return Outcome(*(np.asarray(part) for part in found))
        program = self._siblings if advantages[0] == "sibling" else self._chains(name)
        policy, rows, trunks = program(uniforms, case, how, update)
        unknown = np.full(len(policy), np.nan)
        return Outcome(np.asarray(policy), unknown, unknown, unknown, rows, trunks)

    def draws(self, rng: np.random.Generator, count: int, advantage: str) -> np.ndarray:
        """Uniform numbers [N, ...] of one sampled update: a trunk and siblings, or chains."""
        turns, tasks, group = self.shape[0], self.step.num_tasks, self.step.group_size
        if advantage == "sibling":
            return rng.random((count, tasks, 2 + turns * turns * (group - 1)))
        return rng.random((count, tasks, 1 + group))

    @cached_property
    def performance(self):
        """Compiled: performance [N] of stacks of cases, policies and a discount."""

        def one(case, policy, discount):
            return tabular.performance(cells.discounted(case.mdp, discount), policy)

        return _compiled(one, (0, 0, None))

    @cached_property
    def optimum(self):
        """Compiled: best performance [N] of a stack of cases, under a discount."""

        def one(case, discount):
            mdp = cells.discounted(case.mdp, discount)
            return mdp.start @ tabular.optimal_values(mdp)[0]

        return _compiled(one, (0, None))

    def _exact(self, name, column):
        if name.startswith("PPU sequence"):
            return self._programs["sequence"]
        return self._programs["table" if column.ties in ("table", "hidden") else "tied"]

    @cached_property
    def _programs(self):
        kinds = {
            "table": cells.maximise,
            "tied": tied_updates.ascend,
            "sequence": tied_updates.ascend_sequence,
        }
        return {
            kind: _compiled(partial(function, self.paths), (0, 0, None))
            for kind, function in kinds.items()
        }

    def _chains(self, name):
        return self._sampled["sequence" if name.startswith("PPU sequence") else "turns"]

    @cached_property
    def _sampled(self):
        kinds = {
            "turns": finite_groups.update_from_chains,
            "sequence": finite_groups.sequence_update_from_chains,
        }

        def program(function):
            def one(uniforms, case, how, update):
                rows = finite_groups.chains(uniforms, case.mdp, case.policy, self.paths)
                return function(rows, self.step.num_tasks, case, how, update), rows, None

            return _compiled(one, (0, 0, 0, None))

        return {kind: program(function) for kind, function in kinds.items()}

    @cached_property
    def _siblings(self):
        turns, tasks = self.shape[0], self.step.num_tasks

        def one(uniforms, case, how, update):
            trunks = finite_groups.chains(uniforms[:, :2], case.mdp, case.policy, self.paths)
            drawn = uniforms[:, 2:].reshape(tasks, turns, turns, -1).transpose(1, 2, 0, 3)
            found = finite_groups.update_from_siblings(trunks, drawn, self.paths, case, how, update)
            return found.policy, found.rows, trunks

        return _compiled(one, (0, 0, 0, None))


def _estimators(advantages, discount):
    """The estimators of N cases by name, each field an array [N]."""
    group, scale, noisy, decay, _ = np.array([ADVANTAGES[a] for a in advantages], float).T
    return Estimator(group > 0, scale > 0, noisy, decay, np.full(len(advantages), discount))


def _compiled(function, axes):
    return jax.jit(jax.vmap(function, in_axes=axes), compiler_options=COMPILER)


@lru_cache
def engine(shape: tuple[int, int, int], step: Step) -> Engine:
    """The engine of a shape and of the sizes, compiled once in a process."""
    return Engine(shape, step)
