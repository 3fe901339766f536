"""Runs one cell of the table of guarantees, and turns what it violates into small counterexamples."""

from typing import NamedTuple

import jax
import numpy as np

import tabular
from experiments.theory.claims import Counterexample, mdp_arrays
from experiments.theory.guarantee_cells import (
    ADVANTAGES,
    COLUMNS,
    SMALL_STEP,
    TOLERANCE,
    Column,
    Engine,
    Step,
    engine,
)
from experiments.theory.guarantee_instances import features
from tabular.guarantees import finite_groups, search, toys
from tabular.guarantees.cells import Case


class Cell(NamedTuple):
    """One cell by the names of its row and column."""

    turns: str
    update: str
    advantage: str
    column: str

    @property
    def slug(self) -> str:
        """The cell as a file name."""
        words = "_".join(self).replace(",", "").replace("/", "over").replace("-", "_")
        return words.replace(" ", "_").replace(".", "")


class Violation(NamedTuple):
    """A case whose performance an update lowers.

    Attributes:
      shape: of the engine that found it.
      case: one case, not a stack.
      uniforms: of a sampled update, None otherwise.
      drop: by how much performance falls.
    """

    shape: tuple[int, int, int]
    case: Case
    uniforms: np.ndarray | None
    drop: float


class Tally(NamedTuple):
    """What a cell did on one stack of cases.

    Attributes:
      changes: [iterations, N] change of performance by each update.
      biased: [N'] whether the first step falls however small it is; empty for sampled columns.
      slopes: [iterations, N] `tabular.guarantees.cells.Result.slope`.
      margins: [iterations, N] change minus rise of the surrogate.
      gaps: [N] performance that is still missing to the optimum at the end.
      worst: the deepest fall.
    """

    changes: np.ndarray
    biased: np.ndarray
    slopes: np.ndarray
    margins: np.ndarray
    gaps: np.ndarray
    worst: Violation


def run(
    machine: Engine, cells: list[Cell], case: Case, rng: np.random.Generator, iterations: int
) -> list[Tally]:
    """Repeat an update on a stack of cases, each from the policy that the last one made.

    Args:
      machine: the engine of the stack's shape.
      cells: cells that differ only in how performance is judged.
      case: stack of cases.
      rng: numpy generator.
      iterations: updates.

    Returns:
      one `Tally` for each cell.
    """
    cell, column, count = cells[0], COLUMNS[cells[0].column], len(case.policy)
    names, advantages = (cell.update, column), [cell.advantage] * count
    policies, outcomes, uniforms = [case.policy], [], []
    for _ in range(iterations):
        uniforms.append(machine.draws(rng, count, cell.advantage) if column.sampled else None)
        current = case._replace(policy=policies[-1])
        outcomes.append(machine.apply(current, names, advantages, uniforms[-1]))
        policies.append(outcomes[-1].policy)
    small = None
    if not column.sampled and not np.isfinite(outcomes[0].slope).all():
        small = machine.apply(case, names, advantages, scale=SMALL_STEP).policy
    return [_tally(machine, c, case, policies, uniforms, outcomes, small) for c in cells]


def _tally(machine, cell, case, policies, uniforms, outcomes, small):
    column = COLUMNS[cell.column]
    judged = judged_discount(column)
    values = np.stack([machine.performance(case, policy, judged) for policy in policies])
    changes = np.diff(values, axis=0)
    plain = column.judged == "plain"
    slopes = np.stack([o.slope if plain else o.discounted_slope for o in outcomes])
    gains = np.stack([o.gain for o in outcomes])
    iteration, deepest = np.unravel_index(changes.argmin(), changes.shape)
    numbers = None if uniforms[iteration] is None else uniforms[iteration][deepest]
    here = search.take(case._replace(policy=policies[iteration]), deepest)
    worst = Violation(machine.shape, here, numbers, -float(changes[iteration, deepest]))
    biased = np.zeros(0, bool)
    if small is not None:
        biased = np.asarray(machine.performance(case, small, judged)) < values[0] - TOLERANCE
    elif not column.sampled:
        biased = slopes[0] < -1e-9
    gaps = np.asarray(machine.optimum(case, judged)) - values[-1]
    return Tally(changes, biased, slopes, changes - gains, gaps, worst)


def judged_discount(column: Column) -> float:
    """The discount of the performance that a column is judged by."""
    return column.discount if column.judged == "discounted" else 1.0


def smallest(
    step: Step,
    cells: list[Cell],
    found: list[Violation],
    rng: np.random.Generator,
    batch: int,
    rounds: int,
) -> list[Counterexample]:
    """Simplify violations of cells with the same update and column, and make them files.

    A simpler case is accepted while performance falls by at least a tenth of what it fell at first.
    """
    machine = engine(found[0].shape, step)
    column, names = COLUMNS[cells[0].column], (cells[0].update, COLUMNS[cells[0].column])
    judged = judged_discount(column)

    def outcome(case, owners, scale=1.0):
        padding = np.concatenate([np.arange(len(owners)), np.zeros(batch - len(owners), int)])
        case, owners = search.take(case, padding), owners[padding]
        uniforms = np.stack([found[o].uniforms for o in owners]) if column.sampled else None
        advantages = [cells[o].advantage for o in owners]
        result = machine.apply(case, names, advantages, uniforms, scale)
        before = np.asarray(machine.performance(case, case.policy, judged))
        after = np.asarray(machine.performance(case, result.policy, judged))
        return before, after, result

    def drops(case, owners):
        before, after, _ = outcome(case, owners)
        return (before - after)[: len(owners)]

    cases = jax.tree.map(lambda *leaves: np.stack(leaves), *(v.case for v in found))
    floors = np.array([max(0.1 * v.drop, 10 * TOLERANCE) for v in found])
    cases = search.shrink(
        rng, cases, drops, floors, num_candidates=batch // len(found), num_rounds=rounds,
        ties=column.ties, keep_tree=cells[0].turns == "single-turn",
    )  # fmt: skip
    owners = np.arange(len(found))
    before, after, result = outcome(cases, owners)
    small = None if column.sampled else outcome(cases, owners, SMALL_STEP)
    files = []
    for i, cell in enumerate(cells):
        numbers = {"performance_before": before[i], "performance_after": after[i]}
        numbers["change"] = after[i] - before[i]
        if small is not None:
            numbers["change_small_step"] = small[1][i] - small[0][i]
        files.append(_file(step, cell, search.take(cases, i), result, i, numbers))
    return files


def _file(step, cell, case, result, place, numbers):
    kept = np.flatnonzero(search.reachable(jax.tree.map(lambda leaf: leaf[None], case))[0].any(0))
    small = toys.trimmed(case, kept)
    arrays = {**mdp_arrays(small.mdp), "policy": small.policy, "contexts": small.contexts}
    arrays["noise"] = small.noise
    column = COLUMNS[cell.column]
    if column.ties == "linear":
        used = np.flatnonzero(np.abs(small.features).any((0, 1, 2)))
        arrays["directions"] = small.features[..., used]
    position = np.zeros(case.policy.shape[1], int)
    position[kept] = np.arange(len(kept))
    for name, rows in (("rows", result.rows), ("trunks", result.trunks)):
        if rows is not None:
            arrays[f"{name}_states"] = position[np.asarray(rows.states)[place]]
            arrays[f"{name}_actions"] = np.asarray(rows.actions)[place]
            arrays[f"{name}_mask"] = np.asarray(rows.turn_mask)[place]
    settings = {**cell._asdict(), **{f: getattr(step, f) for f in step.__dataclass_fields__}}
    shape = " x ".join(str(n) for n in small.policy.shape)
    statement = (
        f"{cell.update} with {cell.advantage} advantages, {cell.turns}, {cell.column}: one update "
        f"lowers {column.judged} performance from {numbers['performance_before']:.6g} to "
        f"{numbers['performance_after']:.6g} (turns x states x actions: {shape})."
    )
    return Counterexample(statement=statement, arrays=arrays, settings=settings, numbers=numbers)


def replay(counterexample: Counterexample) -> dict[str, float]:
    """Compute a counterexample's numbers again, at its own size, from its arrays and settings."""
    arrays, settings = counterexample.arrays, counterexample.settings
    column = COLUMNS[settings["column"]]
    names = (settings["update"], column)
    step = Step(**{name: settings[name] for name in Step.__dataclass_fields__})
    policy = np.asarray(arrays["policy"])
    machine = engine(policy.shape, step)
    contexts, directions = arrays["contexts"], arrays.get("directions", policy[..., None])
    tied = features(column.ties, np.asarray(contexts)[None], np.asarray(directions)[None])[0]
    case = Case(counterexample.mdp, policy, tied, contexts, arrays["noise"])
    stack = jax.tree.map(lambda leaf: np.asarray(leaf)[None], case)
    judged = judged_discount(column)

    def performance(policy):
        return float(machine.performance(stack, np.asarray(policy)[None], judged)[0])

    def updated(scale=1.0):
        if column.sampled:
            return _replayed(step, machine, settings, arrays, case)
        return machine.apply(stack, names, [settings["advantage"]], scale=scale).policy[0]

    before, after = performance(policy), performance(updated())
    numbers = {"performance_before": before, "performance_after": after, "change": after - before}
    if not column.sampled:
        numbers["change_small_step"] = performance(updated(SMALL_STEP)) - before
    return numbers


def _replayed(step, machine, settings, arrays, case):
    """The new policy from the episodes that a counterexample stores."""
    name, advantage = settings["update"], settings["advantage"]
    how = ADVANTAGES[advantage]
    update = step.update(name, advantage, machine.shape[0])
    rows = tabular.Paths(*(arrays[f"rows_{part}"] for part in ("states", "actions", "mask")))
    if advantage == "sibling":
        parts = (arrays[f"trunks_{part}"] for part in ("states", "actions", "mask"))

        def again(rows, trunks, case):
            return finite_groups.update_from_siblings(
                trunks, rows, machine.paths, case, how, update
            ).policy

        return jax.jit(again)(rows, tabular.Paths(*parts), case)
    sequence = name.startswith("PPU sequence")
    function = (
        finite_groups.sequence_update_from_chains if sequence else finite_groups.update_from_chains
    )
    how = jax.tree.map(np.asarray, how)
    return jax.jit(function, static_argnums=1)(rows, step.num_tasks, case, how, update)
