"""The command line and the files of every theorem experiment: one way to run, write and replay."""

import csv
import dataclasses
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from experiments import run_directory
from experiments.theory.claims import Claim, Counterexample, Findings, load_counterexample

Say = Callable[[str], None]


def silent(message: str) -> None:
    """Say nothing."""
    del message


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """A theorem experiment.

    Attributes:
      name: of the module in `experiments` and of the folder in `results`.
      description: its docstring.
      presets: configurations by size; every one is a frozen dataclass with `size` and `seed`.
      run: from a configuration and a way to say what is going on to numbers. Writes nothing.
      figures: draws what a run wrote into its folder, None if there is nothing to draw.
      replay: from a counterexample to its numbers, computed again; None if it has none.
    """

    name: str
    description: str
    presets: dict[str, Any]
    run: Callable[[Any, Say], Findings]
    figures: Callable[[Path], list[Path]] | None = None
    replay: Callable[[Counterexample], dict[str, float]] | None = None


def write_claims(claims: list[Claim], directory: Path) -> None:
    """Write `claims.csv`, with exact numbers, and `table.md`, to read."""
    directory.mkdir(parents=True, exist_ok=True)
    _write_csv(
        [{**dataclasses.asdict(claim), "holds": claim.holds} for claim in claims],
        directory / "claims.csv",
    )
    rows = [claim.row() for claim in claims]
    lines = ["| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
    lines += ["| " + " | ".join(v.replace("|", "\\|") for v in r.values()) + " |" for r in rows]
    (directory / "table.md").write_text("\n".join(lines) + "\n")


def write(findings: Findings, directory: Path) -> None:
    """Write the claims, the tables as csv, and the counterexamples as JSON."""
    write_claims(findings.claims, directory)
    for name, table in findings.tables.items():
        _write_csv(table, directory / f"{name}.csv")
    for name, counterexample in findings.counterexamples.items():
        counterexample.save(directory / "counterexamples" / f"{name}.json")


def _write_csv(rows, path):
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def show(claims: list[Claim], title: str, console: Console) -> None:
    """Print one table: a claim with where it was checked and its counterexample, and the verdict."""
    table = Table(title=title, show_lines=True)
    table.add_column("claim\n[dim]where it was checked\ncounterexample", ratio=1, overflow="fold")
    for name in ("instances", "worst", "verdict"):
        table.add_column(name, justify="right")
    for claim in claims:
        row = claim.row()
        place = "\n".join(filter(None, (row["where"], row["counterexample"])))
        cell = Text.assemble(row["claim"], "\n", (place, "dim"))
        verdict = row["verdict"].replace(" (", "\n(")
        style = None if claim.as_expected else "red"
        table.add_row(cell, row["instances"], row["worst"], verdict, style=style)
    console.print(table)


def run_and_write(
    experiment: Experiment, config: Any, directory: Path, console: Console
) -> Findings:
    """Run one experiment into a folder, figures included; says what it does and how long it took."""
    started = time.perf_counter()
    findings = experiment.run(config, lambda message: console.print(f"  {message}"))
    write(findings, directory)
    if experiment.figures is not None:
        experiment.figures(directory)
    console.print(f"{experiment.name}: {time.perf_counter() - started:.0f} s")
    return findings


def exit_code(claims: list[Claim]) -> int:
    """0 if everything is as expected, else 1."""
    return 0 if all(claim.as_expected for claim in claims) else 1


def parse(experiment: Experiment, arguments: list[str]) -> Any:
    """Options from the command line; `--size` picks the preset that the others change."""
    size = "cpu"
    for position, argument in enumerate(arguments):
        if argument.startswith("--size="):
            size = argument.partition("=")[2]
        elif argument == "--size" and position + 1 < len(arguments):
            size = arguments[position + 1]
    default = experiment.presets.get(size, experiment.presets["cpu"])
    kind = dataclasses.make_dataclass(
        "Options",
        [
            ("config", tyro.conf.OmitArgPrefixes[type(default)], dataclasses.field()),
            ("run", str | None, dataclasses.field(default=None)),
            ("replay", Path | None, dataclasses.field(default=None)),
            ("results", Path, dataclasses.field(default=Path("results"))),
        ],
        frozen=True,
    )
    return tyro.cli(
        kind,
        args=arguments,
        default=kind(config=default),
        prog=f"python -m experiments.{experiment.name}",
        description=experiment.description.partition("\n\n")[0],
    )


def replay(experiment: Experiment, path: Path, console: Console) -> int:
    """Compute a counterexample's numbers again; 0 if they agree with the file to 1e-12."""
    if experiment.replay is None:
        raise ValueError(f"replay={path}: {experiment.name} has no counterexamples to replay")
    counterexample = load_counterexample(path)
    try:
        numbers = experiment.replay(counterexample)
        found = {name: numbers[name] for name in counterexample.numbers}
    except KeyError as error:
        raise ValueError(
            f"replay={path} has no {error}: give a counterexample that this version of "
            f"{experiment.name} wrote"
        ) from error
    console.print(counterexample.statement)
    table = Table("number", "in the file", "computed again", "difference")
    for name, stored in counterexample.numbers.items():
        again = found[name]
        table.add_row(name, f"{stored:.15g}", f"{again:.15g}", f"{abs(again - stored):.1e}")
    console.print(table)
    # A number that the instance does not have (NaN) has to be missing again.
    same = np.isclose(list(found.values()), list(counterexample.numbers.values()), rtol=0.0,
                      atol=1e-12, equal_nan=True)  # fmt: skip
    return 0 if same.all() else 1


def main(experiment: Experiment, arguments: list[str] | None = None) -> int:
    """Parse, run or replay, write, print; 0 as expected, 1 if not, 2 for refused options."""
    console = Console()
    try:
        options = parse(experiment, sys.argv[1:] if arguments is None else arguments)
        use_compilation_cache()
        if options.replay is not None:
            return replay(experiment, options.replay, console)
        directory = new_run(experiment.name, options.run, options.results, options.config)
    except (ValueError, OSError) as error:
        refusal = Text.assemble(("refused: ", "red"), str(error))
        Console(stderr=True).print(refusal, soft_wrap=True)
        return 2
    findings = run_and_write(experiment, options.config, directory, console)
    show(findings.claims, experiment.name, console)
    console.print(f"written to {directory}")
    return exit_code(findings.claims)


def new_run(experiment: str, run: str | None, results: Path, config: Any) -> Path:
    """The folder of a new run; without a name, one made of size and seed that is still free.

    Raises:
      ValueError: a negative seed, or a run that is a path.
      FileExistsError: there is such a run.
    """
    if config.seed < 0:
        raise ValueError(f"seed={config.seed}: use 0 or more")
    if run is not None and Path(run).name != run:
        raise ValueError(f"run={run!r}: give a name, and the folder to keep runs in as --results")
    if run is None:
        run = run_directory.unused_name(results, experiment, f"{config.size}-seed{config.seed}")
    return run_directory.create(results, experiment, run, config, resumable=False)


def use_compilation_cache() -> None:
    """Keep compiled programs in ~/.cache/rtpo_jax, as the quickstart does."""
    jax.config.update("jax_compilation_cache_dir", str(Path.home() / ".cache" / "rtpo_jax"))
