"""Quickstart: a tool-using agent learns under GRPO and RTPO, side by side, at equal tokens.

    python -m experiments.quickstart
    python -m experiments.quickstart --model smollm2 --questions gsm8k_test.jsonl

Shows, in miniature, what RTPO's Figure 3 and Table 1 are about (arXiv 2608.18682). One small
transformer is warm-started by imitating noisy demonstrations of multi-hop search (four queries, then
the answer, under managed contexts: the question and the last turn). From the same parameters it is
then trained, at equal generated tokens, by

* GRPO on the full history: sampled under managed contexts, trained on the flattened episode;
* GRPO on recorded contexts: trained on what each turn was sampled with;
* RTPO, paper-exact: reverse turns, fresh siblings, trunks as anchors only.

Writes `results/quickstart/<run>/`: config.json, metrics.jsonl, table.md, table.csv,
learning_curves.png and .pdf, and checkpoints. An interrupted run goes on with `--resume <run>` and
ends with the same numbers, bit for bit.

Expected: under five minutes on two CPU cores. GRPO on recorded contexts learns fastest; the
log-ratio before the first update is at most 1e-4 for recorded contexts and far from 0 for the full
history, where learning stalls or falls back. RTPO learns too, with fewer trained rows per token: in
a task whose turns all matter and whose errors are fatal it is not expected to beat GRPO at equal
tokens. One seed shows the effects, not their size.

Differs from the papers: toy size, one seed, constant learning rate shared by the methods.
"""

import argparse
import dataclasses
import signal
import sys
from pathlib import Path
from typing import Annotated, Literal

import jax
import tyro
from rich.console import Console
from rich.table import Table

from experiments import real_model, run_directory
from experiments.progress import LiveProgress
from experiments.real_model import RealModelConfig
from experiments.toy_agent import ToyAgent, ToyConfig
from experiments.toy_run import ToyRun
from paper_figures import comparison

EXPERIMENT = "quickstart"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(ToyConfig):
    """Everything that decides a run's numbers."""

    size: Literal["tiny", "cpu"] = "cpu"  # preset of the other options: seconds, or minutes
    model: Literal["toy", "smollm2"] = "toy"  # smollm2: a real model; it has options of its own


PRESETS = {
    "cpu": Config(),
    "tiny": Config(
        size="tiny",
        num_hops=2,
        warm_start_steps=20,
        warm_start_episodes=64,
        token_budget=600,
        tasks_per_iteration=4,
        grpo_group_size=4,
        evaluations=2,
        evaluation_tasks=8,
    ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The run's folder."""

    run: str | None = None  # name of the new run; default: made of size, model and seed
    resume: str | None = None  # name or folder of a run to go on with; takes its configuration
    results: Path = Path("results")  # where runs are kept


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToyOptions(RunOptions):
    """Options of the small agent."""

    config: Annotated[Config, tyro.conf.OmitArgPrefixes]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RealModelOptions(RunOptions):
    """Options of the real model."""

    config: Annotated[RealModelConfig, tyro.conf.OmitArgPrefixes]


def run(
    config: Config | RealModelConfig, directory: Path, console: Console | None = None
) -> list[dict[str, str]]:
    """Train, or go on training, in `directory`; returns the rows of the comparison table."""
    if isinstance(config, RealModelConfig):
        return real_model.run(config, directory, console or Console())
    with LiveProgress(console) as progress:
        ToyRun(ToyAgent(config), directory, progress).run()
    rows = comparison.write_table(directory)
    comparison.learning_curves(directory)
    return rows


def show(rows: list[dict[str, str]], console: Console) -> None:
    """Print the comparison with a column per method."""
    table = Table(title="Equal generated tokens, same warm start")
    table.add_column("")
    for row in rows:
        table.add_column(row["method"], justify="right")
    for name in list(rows[0])[1:]:
        table.add_row(name, *(row[name] for row in rows))
    console.print(table)


def parse(arguments: list[str]) -> ToyOptions | RealModelOptions:
    """Options from the command line. `--model` and `--size` pick what the others can change."""
    chooser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    chooser.add_argument("--model")
    chooser.add_argument("--size", default="cpu")
    chosen, _ = chooser.parse_known_args(arguments)
    if chosen.model == "smollm2":
        default = RealModelOptions(config=RealModelConfig())
    else:
        # An unknown size is refused below, with the choices.
        default = ToyOptions(config=PRESETS.get(chosen.size, PRESETS["cpu"]))
    return tyro.cli(type(default), args=arguments, default=default, description=__doc__)


def open_run(options: RunOptions, arguments: list[str]) -> tuple[Config | RealModelConfig, Path]:
    """The configuration and folder of a new run, or of the one to resume."""
    config = options.config
    if options.resume is None:
        parts = [getattr(config, "size", ""), config.model, f"seed{config.seed}"]
        name = options.run or "-".join(filter(None, parts))
        return config, run_directory.create(options.results, EXPERIMENT, name, config)
    flags = {argument.split("=")[0] for argument in arguments if argument.startswith("--")}
    extra = sorted(flags - {"--resume", "--results"})
    if extra:
        raise ValueError(
            f"{', '.join(extra)}: --resume takes its options from the run; leave them out"
        )
    directory = run_directory.find(options.results, EXPERIMENT, options.resume)
    stored = run_directory.load_config(directory)
    if stored["model"] != "toy":
        raise ValueError(f"resume={options.resume!r}: a {stored['model']} run starts over instead")
    return Config(**stored), directory


def _stop_on_terminate(signum, frame) -> None:
    del frame
    raise SystemExit(128 + signum)


def main(arguments: list[str] | None = None) -> int:
    """Parse, run, print; 0 when done, 2 for refused options, 130 when interrupted."""
    arguments = sys.argv[1:] if arguments is None else arguments
    console = Console()
    try:
        config, directory = open_run(parse(arguments), arguments)
    except (ValueError, FileExistsError, FileNotFoundError) as error:
        Console(stderr=True).print(f"[red]refused:[/red] {error}", highlight=False)
        return 2
    signal.signal(signal.SIGTERM, _stop_on_terminate)
    jax.config.update("jax_compilation_cache_dir", str(Path.home() / ".cache" / "rtpo_jax"))
    console.print(f"writing to {directory}")
    try:
        rows = run(config, directory, console)
    except (KeyboardInterrupt, SystemExit) as stop:
        console.print(f"stopped; go on with: python -m experiments.quickstart --resume {directory}")
        return stop.code if isinstance(stop, SystemExit) else 130
    show(rows, console)
    console.print(f"table, curves and metrics are in {directory}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
