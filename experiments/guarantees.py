"""SeeUPO (arXiv 2602.06554), Table 1, extended: which advantage and update can lower performance.

    python -m experiments.guarantees                 # about 75 s on two free cores
    python -m experiments.guarantees --size tiny     # about 15 seconds
    python -m experiments.guarantees --replay FILE   # a counterexample: performance before and after

Rows: REINFORCE; proximal policy update (PPU, a clipped surrogate) with a ratio per token or turn; with
one ratio per episode (GSPO), the product of all its ratios or their geometric mean; and turn after
turn from the last, carrying the ratios (SeeUPO) or with fresh siblings (RTPO, arXiv 2608.18682). Each
with generalised advantage estimates (GAE) from exact or noisy values, with group-relative advantages,
divided by the group's deviation or not, and with siblings of a boundary state.
Columns: single-turn and multi-turn times
  exact               per-turn tables, exact expectation; the clipped surrogate maximised exactly in
                      every state. REINFORCE takes one step of softmax gradient ascent, size
                      inner_steps * learning_rate; one ratio per episode does not separate by state
                      and takes inner_steps steps of learning_rate. So do all in the next two columns:
  shared logits, linear features    ascent on the exact expected surrogate of the tied parameters
  hidden states       tables as in "exact", but the policy tells states apart only in part
  finite groups       per-turn tables, num_tasks tasks times group_size sampled chains; siblings:
                      num_tasks trunks, group_size - 1 siblings a boundary. New performance is exact
  discount            tables as in "exact", advantages with gamma = 0.8, judged by the plain and (last
                      column) by the discounted sum of rewards.
Single-turn: a response of two tokens is itself an MDP of two steps, and a token-level update treats it
as one; here that MDP is the token tree of two prompts. In half of the trees a token ends the response.

Sizes: clip 0.2, learning_rate 1, inner_steps 5, num_tasks 4, group_size 4.

A cell is violated if an update lowers the exact performance by more than 1e-12. Any ascent fails at
some step size, so each violation is told apart: by BIAS the first step falls however small (slope of
performance along it below 0, or for a maximiser a fall at 1/64 of clip range), by STEP SIZE it does
not. OPTIMISER: the ascent did not even raise its own surrogate. "holds" says on how many; `basis` says
whether a theorem covers it or only the search. For each violated cell the counterexample is the
simplest found: a random search over two turns and at most four states, then sizes, rewards,
transitions and policies simplified and rounded while the fall stays.

Where this differs from the paper's table (in which "no" may stand for "no guarantee"):
  - Group-relative PPU with a token ratio: the paper says no, both columns. With the exact expectation
    and per-state rows it is monotone: V(s) - V(s_0) is one number for all actions of a state, so
    E[r Delta(s)] = Delta(s) is constant, and clipping by the sign of a biased advantage is still a
    valid drift. It does fail with finite groups and with a shared direction and long steps.
  - Group-relative REINFORCE multi-turn: the paper says no. At discount 1 the gradient is unbiased
    (slope 1): the cross cannot be reproduced as bias, only as variance or step size.
  - Sequence level multi-turn: the paper says no. With the PRODUCT of ratios E[w A] equals the change of
    performance and the clipped surrogate bounds it from below, for any class of policies (derived
    here). The GEOMETRIC mean is not an importance ratio; with responses or episodes of different
    length its gradient is biased by 1 / length, single-turn too, where the paper says yes.
  - Division by the group's deviation turns the gradient round on two prompts that share one direction.
  - Where the policy does not see the whole state, all turns at once can fall even if every row is
    maximised exactly (two turns that must differ and cannot see each other: J goes .48, .4992, .4884);
    turn after turn, by carried ratios or fresh siblings, cannot. This is where the sequential update
    earns its tick; a policy that sees the state has the guarantee without it.
  - A trace below 1 with noisy values breaks every row that uses it; noise alone (trace 1) biases none
    but the geometric mean's.

Exact: everything but the finite groups, where the update is sampled (its performance is not).
Expected: 16 claims as expected; 7 of them are statements that fail.
"""

import dataclasses
from typing import Literal

import numpy as np

from experiments import theory
from experiments.theory import guarantee_claims
from experiments.theory.claims import Findings
from experiments.theory.guarantee_cells import (
    ADVANTAGES,
    COLUMNS,
    TOLERANCE,
    UPDATES,
    Step,
    engine,
    is_defined,
)
from experiments.theory.guarantee_claims import Record
from experiments.theory.guarantee_instances import SMALL_SHAPE, named, pool, random_cases
from experiments.theory.guarantee_runs import Cell, replay, smallest
from experiments.theory.guarantee_runs import run as run_cells
from experiments.theory.guarantee_texts import is_proven, paper, verdict, why
from paper_figures import guarantees as figures


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Options of a run.

    Attributes:
      size: preset of the others.
      seed: of everything random.
      num_mdps: random MDPs in every cell, a multiple of the number of multi-turn shapes.
      shapes: turns, states and actions of the multi-turn MDPs.
      iterations: updates of each policy.
      rounds: of simplification of each counterexample.
    """

    size: Literal["tiny", "cpu"] = "cpu"
    seed: int = 0
    num_mdps: int = 300
    shapes: tuple[tuple[int, int, int], ...] = ((3, 3, 2), (2, 3, 3))
    iterations: int = 3
    rounds: int = 12

    def __post_init__(self):
        for name in ("num_mdps", "iterations", "rounds"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: use 1 or more")
        if not self.shapes or self.num_mdps % len(self.shapes):
            raise ValueError(
                f"num_mdps={self.num_mdps} with {len(self.shapes)} shapes: use a multiple of that"
            )
        if self.num_mdps < 8 * len(self.shapes):
            least = 8 * len(self.shapes)
            raise ValueError(f"num_mdps={self.num_mdps}: use {least} or more, 8 for every shape")
        if min(map(min, self.shapes)) < 2:
            raise ValueError(f"shapes={self.shapes}: use 2 or more turns, states and actions")


PRESETS = {
    "cpu": Config(),
    "tiny": Config(size="tiny", num_mdps=40, shapes=(SMALL_SHAPE,), iterations=2, rounds=3),
}


def run(config: Config, say: theory.Say = theory.silent) -> Findings:
    """Every cell, its verdict and its counterexample."""
    rng = np.random.default_rng(config.seed)
    step = Step()
    records, files = [], {}
    for turns in ("single-turn", "multi-turn"):
        for columns in _columns():
            say(f"{turns}, {' and '.join(columns)}: {config.num_mdps} MDPs")
            found = _column(config, step, turns, columns, rng)
            files |= _counterexamples(config, step, found, rng)
            records += found
    rows = [_row(record, files) for record in records]
    rows += [_undefined(*names) for names in _cells() if is_defined(*names[:3], COLUMNS[names[3]])]
    order = {tuple(cell): place for place, cell in enumerate(_cells())}
    rows.sort(key=lambda row: order[tuple(row[name] for name in Cell._fields)])
    say("identities, and two prompts that share a direction")
    claims = guarantee_claims.claims(records, files, rng, config.num_mdps)
    return Findings(claims=claims, tables={"guarantees": rows}, counterexamples=files)


def _cells():
    return [
        Cell(turns, update, advantage, column)
        for turns in ("single-turn", "multi-turn")
        for column in COLUMNS
        for update in UPDATES
        for advantage in ADVANTAGES
    ]


def _columns():
    """Names of the columns; those that differ only in how they are judged together."""
    groups = {}
    for name, column in COLUMNS.items():
        groups.setdefault(column._replace(judged=""), []).append(name)
    return list(groups.values())


def _column(config, step, turns, columns, rng):
    """Run the cells of columns: on the random MDPs, then on the pool of small ones."""
    column = COLUMNS[columns[0]]
    shapes = config.shapes if turns == "multi-turn" else (SMALL_SHAPE,) * len(config.shapes)
    batch = config.num_mdps // len(shapes)
    stacks = [(engine(s, step), random_cases(rng, turns, s, column.ties, batch)) for s in shapes]
    stacks.append((engine(SMALL_SHAPE, step), pool(rng, turns, column.ties, batch)))
    names = tuple(named(turns, column.ties))
    found = []
    for update in UPDATES:
        for advantage in ADVANTAGES:
            if is_defined(turns, update, advantage, column):
                continue
            cells = [Cell(turns, update, advantage, name) for name in columns]
            tallies = [run_cells(m, cells, case, rng, config.iterations) for m, case in stacks]
            for cell, (*main, searched) in zip(cells, zip(*tallies, strict=True), strict=True):
                found.append(Record(cell, main, searched, names))
    return found


def _counterexamples(config, step, records, rng):
    """One file for each violated cell; cells that share a program are simplified together."""
    groups = {}
    for record in records:
        violation = record.violation
        if violation.drop > TOLERANCE:
            sibling = record.cell.advantage == "sibling"
            key = (record.cell.update, record.cell.column, violation.shape, sibling)
            groups.setdefault(key, []).append((record.cell, violation))
    batch = config.num_mdps // len(config.shapes)
    files = {}
    for group in groups.values():
        cells, found = (list(part) for part in zip(*group, strict=True))
        made = smallest(step, cells, found, rng, batch, config.rounds)
        files |= {cell.slug: file for cell, file in zip(cells, made, strict=True)}
    return files


def _row(record, files):
    cell, changes = record.cell, record.changes
    falls = changes < -TOLERANCE
    biased = bool(record.biased.any())
    if not np.isfinite(record.slopes).all() and cell.slug in files:
        # Without slopes only first steps were looked at; the worst fall may come later.
        biased |= files[cell.slug].numbers.get("change_small_step", 0.0) < -TOLERANCE
    found = verdict(cell, bool(falls.any()), biased, record.only_overshoot)
    return {
        **cell._asdict(),
        "paper": paper(cell),
        "verdict": found,
        "basis": "theorem" if found == "holds" and is_proven(cell) else "search",
        "mdps": record.num_cases,
        "updates": changes.size,
        "lowered": int(falls.sum()),
        "share_lowered": falls.mean(),
        "worst_change": changes.min(),
        "share_biased": record.biased.mean() if record.biased.size else "",
        "final_gap": record.gap,
        "named_instances_lowered": " ".join(record.named_falls),
        "counterexample": cell.slug if falls.any() else "",
        "why": why(cell, found),
    }


def _undefined(turns, update, advantage, column):
    cell = Cell(turns, update, advantage, column)
    blank = dict.fromkeys(guarantee_claims.MEASURED, "")
    reason = is_defined(turns, update, advantage, COLUMNS[column])
    return {**cell._asdict(), "paper": paper(cell), "verdict": "not run", **blank, "why": reason}


EXPERIMENT = theory.Experiment(
    name="guarantees",
    description=__doc__,
    presets=PRESETS,
    run=run,
    figures=figures.draw,
    replay=replay,
)

if __name__ == "__main__":
    raise SystemExit(theory.main(EXPERIMENT))
