"""The claims of `experiments.guarantees`: what its cells and three identities say together."""

import dataclasses
from collections.abc import Iterable
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np

import tabular
from experiments.theory.claims import Claim, Counterexample, at_least, at_most
from experiments.theory.guarantee_cells import ADVANTAGES, COLUMNS, TOLERANCE
from experiments.theory.guarantee_instances import SMALL_SHAPE, random_cases
from experiments.theory.guarantee_runs import Cell, Tally, Violation
from experiments.theory.guarantee_texts import BIASED_VALUES, is_proven
from tabular.guarantees import cells, toys
from tabular.guarantees.cells import Case

# Columns of the table that a cell that is not run leaves empty.
MEASURED = (
    "basis",
    "mdps",
    "updates",
    "lowered",
    "share_lowered",
    "worst_change",
    "share_biased",
    "final_gap",
    "named_instances_lowered",
    "counterexample",
)
CLOSED = 0.1  # share of the gap that an update which does its work closes, at the least
VISIBLE = -1e-6  # a fall below this is far from rounding
TRUE_DIRECTION = ("GAE, exact values", "GAE, noisy values", "group-relative")
TIED = ("shared logits", "linear features")


@dataclasses.dataclass(frozen=True)
class Record:
    """Everything measured about a cell.

    Attributes:
      cell: the cell.
      tallies: on the random MDPs, one for each shape.
      searched: on the small pool, named instances first.
      named: names of these instances.
    """

    cell: Cell
    tallies: list[Tally]
    searched: Tally
    named: tuple[str, ...]

    @cached_property
    def changes(self) -> np.ndarray:
        """Change of performance by every update, flat."""
        return self._flat("changes")

    @property
    def biased(self) -> np.ndarray:
        """Which first steps fall however small, flat; empty for sampled columns."""
        return self._flat("biased")

    @property
    def slopes(self) -> np.ndarray:
        """Slopes of all updates, flat."""
        return self._flat("slopes")

    @property
    def margins(self) -> np.ndarray:
        """Change of performance minus rise of the surrogate, flat."""
        return self._flat("margins")

    @property
    def num_cases(self) -> int:
        """How many MDPs and policies the cell was run on."""
        return sum(len(tally.gaps) for tally in (*self.tallies, self.searched))

    @property
    def gap(self) -> float:
        """Mean performance missing to the optimum after the last update, random MDPs."""
        return float(np.concatenate([tally.gaps for tally in self.tallies]).mean())

    @property
    def closed(self) -> float:
        """Share of the gap to the optimum that all updates close, mean over MDPs by their gap."""
        tallies = (*self.tallies, self.searched)
        risen = np.concatenate([tally.changes.sum(0) for tally in tallies])
        left = np.concatenate([tally.gaps for tally in tallies])
        return float(risen.sum() / (risen + left).sum())

    @property
    def violation(self) -> Violation:
        """The deepest fall in the pool of small cases, if none there of all."""
        if self.searched.worst.drop > TOLERANCE:
            return self.searched.worst
        return max((tally.worst for tally in self.tallies), key=lambda worst: worst.drop)

    @property
    def only_overshoot(self) -> bool:
        """Whether in every fall the surrogate fell too."""
        gains = (self.changes - self.margins)[self.changes < -TOLERANCE]
        return bool(gains.size and (gains < 0).all())

    @property
    def named_falls(self) -> list[str]:
        """Named instances whose performance an update lowered."""
        falls = (self.searched.changes < -TOLERANCE).any(0)
        return [name for place, name in enumerate(self.named) if falls[place]]

    def _flat(self, name):
        return np.concatenate([getattr(t, name).ravel() for t in (*self.tallies, self.searched)])


def claims(
    records: list[Record], files: dict[str, Counterexample], rng: np.random.Generator, count: int
) -> list[Claim]:
    """The claims, in order: what holds, what fails, identities."""
    return [
        *_holds(records),
        *_directions(records),
        *_fails(records, files),
        *_identities(rng, count),
        *_two_prompts(),
    ]


def _holds(records: list[Record]) -> list[Claim]:
    statements = {
        "PPU token": "PPU token level, any baseline: no update lowers J (SeeUPO Table 1: no for "
        "group-relative)",
        "sequential": "turn after turn with carried ratios or fresh siblings never lowers J, hidden "
        "states included (SeeUPO, Theorem 1)",
    }
    where = "{}, rows of their own, exact; at gamma 0.8 the discounted J"
    found = []
    for name, claim in statements.items():
        for turns in ("single-turn", "multi-turn"):
            here = [
                r for r in records
                if r.cell.update == name and is_proven(r.cell) and r.cell.turns == turns
            ]  # fmt: skip
            if here:
                changes = _all(r.changes for r in here)
                text = where.format(turns)
                found.append(at_least(claim, text, changes.size, changes.min(), -TOLERANCE))
                found.append(_closed(name, here, text))
    product = [
        r for r in records
        if r.cell.update == "PPU sequence, product" and is_proven(r.cell)
    ]  # fmt: skip
    margins = _all(r.margins for r in product)
    found.append(
        at_least(
            "product of an episode's ratios: J rises by at least what the clipped surrogate does "
            "(derived here; SeeUPO Table 1: no multi-turn)",
            "tables, shared logits, linear features, hidden states; single- and multi-turn",
            margins.size, margins.min(), -TOLERANCE,
        )
    )  # fmt: skip
    return found


def _closed(name: str, records: list[Record], where: str) -> Claim:
    """That updates that never lower J are not idle; one that changes nothing closes a share of 0."""
    shares = [record.closed for record in records]
    iterations = records[0].tallies[0].changes.shape[0]
    return at_least(
        f"{name}: {iterations} updates close a share of the gap to the optimum (idle: 0)",
        f"{where}; mean, lowest cell", sum(r.num_cases for r in records), min(shares), CLOSED,
    )  # fmt: skip


def _directions(records: list[Record]) -> list[Claim]:
    found = []
    for update in ("REINFORCE", "PPU token"):
        here = [
            r for r in records
            if r.cell.update == update and r.cell.column in TIED and r.cell.advantage in TRUE_DIRECTION
        ]  # fmt: skip
        slopes = _all(r.slopes for r in here)
        claim = f"{update}: first step along grad J, slope 1, also group-relative"
        if update == "REINFORCE":
            claim += " multi-turn"
        claim += " (SeeUPO Table 1: no)"
        found.append(at_least(claim, "tied rows, exact", slopes.size, slopes.min(), 1.0 - 1e-7))
    return found


def _fails(records: list[Record], files: dict[str, Counterexample]) -> list[Claim]:
    tied = [r for r in records if r.cell.column in TIED]
    everywhere = {
        "GAE with noise on the values, trace below 1 (SeeUPO Table 1: perfect values): monotone": (
            r for r in tied
            if r.cell.advantage == BIASED_VALUES and r.cell.update in ("REINFORCE", "PPU token")
        ),
        "PPU token and sequential (SeeUPO Table 1: yes), tied rows: monotone at any step": (
            r for r in tied
            if r.cell.update in ("PPU token", "sequential") and r.cell.advantage in TRUE_DIRECTION
        ),
        "GSPO's geometric mean: monotone single-turn (SeeUPO Table 1: yes)": (
            r for r in tied
            if r.cell.update == "PPU sequence, geometric mean" and r.cell.turns == "single-turn"
            and r.cell.advantage == "group-relative"
        ),
        "division by the group's deviation (GRPO; SeeUPO, section 4): monotone": (
            r for r in tied
            if r.cell.advantage == "group-relative / std" and r.cell.update == "REINFORCE"
        ),
        "finite groups (SeeUPO, Eq. 9): every update is monotone": (
            r for r in records
            if COLUMNS[r.cell.column].sampled and r.cell.advantage == "group-relative"
        ),
        "PPU of all turns at once (SeeUPO Table 1), hidden states: maximising it is monotone": (
            r for r in records
            if r.cell.column == "hidden states" and r.cell.update == "PPU token"
            and r.cell.advantage in TRUE_DIRECTION
        ),
        "gamma = 0.8 in the advantages (SeeUPO Table 1: gamma 1): the plain sum never falls": (
            r for r in records
            if r.cell.column == "discount" and r.cell.update == "PPU token"
            and r.cell.advantage in TRUE_DIRECTION
        ),
    }  # fmt: skip
    return [_failing(claim, list(chosen), files) for claim, chosen in everywhere.items()]


def _failing(claim: str, chosen: list[Record], files: dict[str, Counterexample]) -> Claim:
    """A claim that fails, with the counterexample of its worst cell."""
    worst = min(chosen, key=lambda record: record.changes.min())
    changes = _all(r.changes for r in chosen)
    name = worst.cell.slug if worst.cell.slug in files else ""
    where = f"{len(chosen)} cells, {(changes < -TOLERANCE).mean():.2%} of updates fall"
    return at_least(
        claim, where, changes.size, changes.min(), VISIBLE, expected=False, counterexample=name
    )


def _identities(rng: np.random.Generator, count: int) -> list[Claim]:
    """The group baseline is one number per state: it shifts the credit of all actions alike."""
    paths = tabular.all_paths(*SMALL_SHAPE, early_end=True)

    @jax.jit
    @jax.vmap
    def spread(case: Case):
        weights = tabular.path_probabilities(case.mdp, case.policy, paths)
        pull = []
        for name in ("group-relative", "GAE, exact values"):
            advantages = cells.estimates(case, case.policy, paths, ADVANTAGES[name])
            found = tabular.credit(paths, weights, advantages, case.policy.shape)
            pull.append((found.gain - found.loss) / case.policy)
        return jnp.ptp(pull[0] - pull[1], axis=-1).max()

    case = random_cases(rng, "multi-turn", SMALL_SHAPE, "table", count)
    return [
        at_most(
            "E[r (A_group - A)] is the same for every action of a state (against SeeUPO Table 1)",
            "random MDPs of two turns, largest difference between actions",
            count, np.asarray(spread(case)).max(), TOLERANCE,
        ),
    ]  # fmt: skip


def _two_prompts() -> list[Claim]:
    """The true derivative along the shared direction and the one after division by deviations."""
    case = toys.two_prompts()
    paths = tabular.all_paths(*case.policy.shape, early_end=True)
    direction = case.features[..., 0]
    centred = direction - (case.policy * direction).sum(-1, keepdims=True)

    @jax.jit
    def slope(case, how):
        weights = tabular.path_probabilities(case.mdp, case.policy, paths)
        advantages = cells.estimates(case, case.policy, paths, how)
        found = tabular.credit(paths, weights, advantages, case.policy.shape)
        return ((found.gain - found.loss) * centred).sum()

    names = ("group-relative", "group-relative / std")
    slopes = {name: float(slope(case, ADVANTAGES[name])) for name in names}
    return [
        at_most(
            "two prompts, one direction: dJ = (.25 - 10 x .01) / 2 = +.075 (derived here)",
            "largest difference", 1, abs(slopes["group-relative"] - 0.075), TOLERANCE,
        ),
        at_most(
            "the same over deviations (GRPO): (.5 - 10 x .1) / 2 = -.25, the wrong way",
            "largest difference", 1, abs(slopes["group-relative / std"] + 0.25), TOLERANCE,
        ),
    ]  # fmt: skip


def _all(arrays: Iterable[np.ndarray]) -> np.ndarray:
    return np.concatenate(list(arrays))
