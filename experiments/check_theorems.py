"""Every theorem, lemma and guarantee of the three papers, checked in one go.

    python -m experiments.check_theorems

runs all theorem experiments at one size and prints one table: the claim, where it was checked, on how
many instances, the worst case against what it has to be, the verdict, and the file of the
counterexample where the statement fails. Claims that should hold and do not, and counterexamples that
no longer violate, are marked and make the command exit with 1. Each experiment can be run by itself;
its file says what exactly is checked, by enumeration or by sampling:

    theorem_credit           RTPO Theorem 2: state-matched against trajectory advantages
    regimes                  when sibling groups beat flat groups at equal generated turns (ours)
    theorem_convergence      RTPO Theorem 1: recursive optimality in reverse order
    theorem_drift            RTPO Theorem 3: fresh, stale and reweighted continuations
    guarantees               SeeUPO Table 1, extended
    update_order_tabular     SeeUPO Table 4: orders of turn updates, compound ratio
    normalization_tabular    SeeUPO Table 5: none, batch and group normalisation
    clipping_bias            SORL Lemmas 4.1 and 4.2: gradient, clipping bias, normalisation
    preservation             which broken assumption costs whom what (ours)

Writes `results/check_theorems/<run>/`: claims.csv and table.md, and a folder for each experiment with
its tables, figures and counterexamples. Expected on two free CPU cores: about five minutes, all as
expected.
"""

import dataclasses
import sys
import time
from pathlib import Path
from typing import Literal

import tyro
from rich.console import Console
from rich.text import Text

from experiments import (
    clipping_bias,
    guarantees,
    normalization_tabular,
    preservation,
    regimes,
    theorem_convergence,
    theorem_credit,
    theorem_drift,
    theory,
    update_order_tabular,
)
from experiments.theory.claims import Claim

NAME = "check_theorems"
EXPERIMENTS = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (
        theorem_credit,
        regimes,
        theorem_convergence,
        theorem_drift,
        guarantees,
        update_order_tabular,
        normalization_tabular,
        clipping_bias,
        preservation,
    )
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Which experiments run, and how large."""

    size: Literal["tiny", "cpu"] = "cpu"  # preset of every experiment: a minute or two, or five
    seed: int = 0  # of every experiment
    only: tuple[Literal[*EXPERIMENTS], ...] = tuple(EXPERIMENTS)  # these experiments, in this order

    def __post_init__(self):
        if not self.only:
            raise ValueError(f"only={self.only}: name at least one of {', '.join(EXPERIMENTS)}")
        if len(set(self.only)) < len(self.only):
            raise ValueError(f"only={self.only}: name every experiment once")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """What runs, and where it writes."""

    config: tyro.conf.OmitArgPrefixes[Config] = Config()
    run: str | None = None  # name of the run; default: made of size and seed
    results: Path = Path("results")  # where runs are kept


def run(config: Config, directory: Path, console: Console) -> list[Claim]:
    """Run the experiments into folders of `directory`; returns all claims, files named from there."""
    claims = []
    for name in config.only:
        experiment = EXPERIMENTS[name]
        preset = dataclasses.replace(experiment.presets[config.size], seed=config.seed)
        console.print(f"{name}: {experiment.description.partition(chr(10))[0]}")
        findings = theory.run_and_write(experiment, preset, directory / name, console)
        claims += [_in_table(claim, name) for claim in findings.claims]
    theory.write_claims(claims, directory)
    return claims


def _in_table(claim: Claim, name: str) -> Claim:
    """The claim with its experiment's name before it, and its counterexample's as a file."""
    file = claim.counterexample and f"{name}/counterexamples/{claim.counterexample}.json"
    return dataclasses.replace(claim, claim=f"{name}: {claim.claim}", counterexample=file)


def main(arguments: list[str] | None = None) -> int:
    """Run, print one table; 0 if all is as expected, 1 if not, 2 for refused options."""
    console = Console()
    try:
        options = tyro.cli(
            Options,
            args=sys.argv[1:] if arguments is None else arguments,
            prog=f"python -m experiments.{NAME}",
            description=__doc__.partition("\n\n")[0],
        )
        directory = theory.new_run(NAME, options.run, options.results, options.config)
    except (ValueError, OSError) as error:
        refusal = Text.assemble(("refused: ", "red"), str(error))
        Console(stderr=True).print(refusal, soft_wrap=True)
        return 2
    theory.use_compilation_cache()
    started = time.perf_counter()
    claims = run(options.config, directory, console)
    theory.show(claims, NAME, console)
    wrong = sum(not claim.as_expected for claim in claims)
    console.print(
        f"{len(claims)} claims, {wrong} not as expected, "
        f"{time.perf_counter() - started:.0f} s; written to {directory}"
    )
    return theory.exit_code(claims)


if __name__ == "__main__":
    raise SystemExit(main())
