"""Words of the table of guarantees: what the paper says of a cell, what was found, and why."""

from experiments.theory.guarantee_cells import COLUMNS
from experiments.theory.guarantee_runs import Cell

# SeeUPO (arXiv 2602.06554), Table 1: monotone improvement single-turn and multi-turn.
PAPER = {
    ("PPU token", "GAE, exact values"): ("yes", "yes"),
    ("PPU token", "group-relative"): ("no", "no"),
    ("REINFORCE", "group-relative"): ("yes", "no"),
    ("PPU sequence, product", "group-relative"): ("yes", "no"),
    ("PPU sequence, geometric mean", "group-relative"): ("yes", "no"),
    ("sequential", "group-relative"): ("", "yes"),
}
BIASED_VALUES = "GAE, noisy values, trace 0.5"


def paper(cell: Cell) -> str:
    """The paper's verdict on a cell: "yes", "no", or "" where it has none."""
    single, multi = PAPER.get((cell.update, cell.advantage), ("", ""))
    return single if cell.turns == "single-turn" else multi


def is_proven(cell: Cell) -> bool:
    """Whether a theorem says that no update of this cell lowers the performance it is judged by.

    Per-turn tables, the true expectation, and one of: a maximiser at every turn with an advantage
    that is the true one plus something no action changes (mirror learning; policy improvement); one
    turn after the other, also if the policy does not see the whole state (coordinate ascent); or the
    episode's product of ratios, with a return minus a task's baseline, if the surrogate rises.
    """
    column = COLUMNS[cell.column]
    same_goal = column.discount == 1.0 or column.judged == "discounted"
    if column.sampled or not same_goal or cell.advantage == BIASED_VALUES:
        return False
    whole_return = "trace" not in cell.advantage
    one_goal = whole_return and cell.advantage != "group-relative / std"
    if cell.update == "PPU sequence, product":
        return one_goal
    if column.ties == "hidden":
        return cell.update == "sequential" and one_goal
    if column.ties != "table":
        return False
    return cell.update == "PPU token" or (cell.update == "sequential" and whole_return)


def verdict(cell: Cell, falls: bool, biased: bool, risen: bool) -> str:
    """What was found: "holds", or "violated" and by what.

    Args:
      cell: the cell.
      falls: whether an update lowered performance by more than rounding.
      biased: whether one did however small its step.
      risen: whether every fall came from a step that did not raise the surrogate either.
    """
    if not falls and not biased:
        return "holds"
    if COLUMNS[cell.column].sampled:
        return "violated: sampling"
    if biased:
        return "violated: bias"
    return "violated: optimiser" if risen else "violated: step size"


def why(cell: Cell, found: str) -> str:
    """One sentence: why a cell holds or fails, above all where the paper says otherwise."""
    if found == "holds":
        return _why_it_holds(cell)
    if found == "violated: sampling":
        return "a few sampled returns decide which actions rise: noise, not bias"
    if found == "violated: step size" and COLUMNS[cell.column].ties == "hidden":
        return "turns that move at once answer each other's old policy; no fall at small steps"
    if found == "violated: step size":
        return "first order right (no fall at small steps), the step is too long for it"
    if found == "violated: optimiser":
        return "the ascent overshot and lowered the surrogate as well"
    return _why_it_is_biased(cell)


def _why_it_holds(cell):
    if COLUMNS[cell.column].sampled:
        return "no fall among these samples; nothing forbids one"
    if cell.update == "PPU sequence, product" and is_proven(cell):
        return "E[w A] is the change of performance, and clipping only lowers it"
    if cell.update == "REINFORCE" and cell.advantage == "group-relative":
        return "a baseline that does not look at the action leaves the gradient unbiased"
    if is_proven(cell) and cell.advantage.startswith("group"):
        return (
            "the baseline's error is the same for all actions of a state: E[r Delta(s)] = Delta(s)"
        )
    if is_proven(cell):
        return "policy improvement in every state"
    return "no violation found; not covered by a theorem"


def _why_it_is_biased(cell):
    column = COLUMNS[cell.column]
    if column.discount != 1.0 and column.judged == "plain":
        return "improves the discounted return, which is another goal"
    if cell.advantage == BIASED_VALUES:
        return "a trace below 1 bootstraps from wrong values, an error that depends on the action"
    if cell.update == "PPU sequence, geometric mean":
        return "weighs an episode by 1 / length: not the importance ratio"
    if cell.advantage == "group-relative / std":
        return "weighs tasks by 1 / std, which a shared direction trades against each other"
    if cell.update == "PPU sequence, product":
        return "with a trace below 1 the first advantage counts late turns less"
    return "the expected direction is not the gradient of performance"
