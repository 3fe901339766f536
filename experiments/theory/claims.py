"""What a theorem experiment finds: claims with their worst case, tables, and counterexamples."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from tabular import TurnMDP


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """One statement and the worst case found for it.

    Attributes:
      claim: the statement in one line, with its source.
      where: what it was checked on, in one line.
      instances: how many MDPs, states or updates were checked.
      worst: the number that decides, at its worst instance.
      relation: what `worst` has to be to `bound` for the claim to hold.
      bound: the other side.
      expected: True if the claim should hold, False for a counterexample to a claim.
      counterexample: name of the counterexample that shows it, "" if none.
    """

    claim: str
    where: str
    instances: int
    worst: float
    relation: str
    bound: float
    expected: bool = True
    counterexample: str = ""

    def __post_init__(self):
        if self.relation not in ("<=", ">="):
            raise ValueError(f"relation={self.relation!r}: use '<=' or '>='")
        if self.instances < 1:
            raise ValueError(f"instances={self.instances}: a claim needs 1 or more of them")

    @property
    def holds(self) -> bool:
        """Whether the worst instance satisfies the claim; a NaN does not."""
        if self.relation == "<=":
            return bool(self.worst <= self.bound)
        return bool(self.worst >= self.bound)

    @property
    def as_expected(self) -> bool:
        """Whether the claim holds where it should and fails where a counterexample is claimed."""
        return bool(np.isfinite(self.worst)) and self.holds == self.expected

    def row(self) -> dict[str, str]:
        """The claim as a line of a table, everything as text."""
        verdict = "holds" if self.holds else "violated"
        return {
            "claim": self.claim,
            "where": self.where,
            "instances": str(self.instances),
            "worst": f"{self.worst:.3g} {self.relation} {self.bound:.3g}",
            "verdict": verdict if self.as_expected else f"{verdict} (NOT EXPECTED)",
            "counterexample": self.counterexample,
        }


def at_most(claim: str, where: str, instances: int, worst: Any, bound: float, **more) -> Claim:
    """The claim that a quantity, `worst` at its largest, is at most `bound`."""
    return Claim(claim=claim, where=where, instances=instances, worst=float(worst),
                 relation="<=", bound=float(bound), **more)  # fmt: skip


def at_least(claim: str, where: str, instances: int, worst: Any, bound: float, **more) -> Claim:
    """The claim that a quantity, `worst` at its smallest, is at least `bound`."""
    return Claim(claim=claim, where=where, instances=instances, worst=float(worst),
                 relation=">=", bound=float(bound), **more)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Counterexample:
    """An instance that violates a claim, with everything needed to compute it again.

    Attributes:
      statement: what it shows, in one or two sentences.
      arrays: named arrays, of float64 or integers; `transitions`, `rewards` and `start` are the MDP.
      settings: named strings, numbers or booleans that decide the computation.
      numbers: named results, such as performance before and after.
    """

    statement: str
    arrays: dict[str, Any]
    settings: dict[str, Any]
    numbers: dict[str, float]

    @property
    def mdp(self) -> TurnMDP:
        """The MDP of the instance."""
        return TurnMDP(*(self.arrays[name] for name in ("transitions", "rewards", "start")))

    def save(self, path: Path) -> None:
        """Write JSON; floats are written so that they are read back bit for bit."""
        record = dataclasses.asdict(self)
        record["arrays"] = {name: np.asarray(a).tolist() for name, a in self.arrays.items()}
        record["numbers"] = {name: float(number) for name, number in self.numbers.items()}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record, indent=1) + "\n")


def mdp_arrays(mdp: TurnMDP) -> dict[str, Any]:
    """The arrays of an MDP by name, for a `Counterexample`."""
    return {field.name: getattr(mdp, field.name) for field in dataclasses.fields(mdp)}


def load_counterexample(path: Path) -> Counterexample:
    """Read what `Counterexample.save` wrote.

    Raises:
      FileNotFoundError: no such file.
      ValueError: it is not a counterexample; the message names the file and what is wrong.
    """
    try:
        record = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON: {error}; give a counterexample file") from error
    names = {field.name for field in dataclasses.fields(Counterexample)}
    found = set(record) if isinstance(record, dict) else set()
    if found != names:
        raise ValueError(
            f"{path} is not a counterexample: fields differ in {sorted(found ^ names)}; give a "
            "file from a run's counterexamples folder"
        )
    record["arrays"] = {name: jnp.asarray(array) for name, array in record["arrays"].items()}
    return Counterexample(**record)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Findings:
    """Everything an experiment returns.

    Attributes:
      claims: in the order to print.
      tables: rows by table name; each is written as `<name>.csv`.
      counterexamples: by name; each is written as `counterexamples/<name>.json`.
    """

    claims: list[Claim]
    tables: dict[str, list[dict[str, Any]]] = dataclasses.field(default_factory=dict)
    counterexamples: dict[str, Counterexample] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        named = {claim.counterexample for claim in self.claims} - {""}
        missing = sorted(named - set(self.counterexamples))
        if missing:
            raise ValueError(f"claims name counterexamples that are not there: {missing}")
        fail = [claim for claim in self.claims if not (claim.expected or claim.holds)]
        bare = [claim.claim for claim in fail if not claim.counterexample]
        if bare:
            raise ValueError(f"claims that fail name no counterexample: {bare}; save one")
