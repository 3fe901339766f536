"""Quickstart: a tool-using agent learns under GRPO and RTPO, side by side, at equal tokens.

    python -m experiments.quickstart
    python -m experiments.quickstart --model smollm2 --questions gsm8k_test.jsonl

Shows, in miniature, what RTPO is about (arXiv 2608.18682): the mismatch between the context a turn is
sampled with and the one it is trained with (its Figure 3), and siblings forked at boundary states. One
small transformer is warm-started by imitating noisy demonstrations of multi-hop search: four queries,
then the answer, each turn seeing the question and a summary of what is left to ask. From the same
parameters it is then trained, to the same budget of generated tokens, by

* GRPO on the full history: sampled under the summaries, trained on the flattened episode;
* GRPO on recorded contexts: trained on what each turn was sampled with;
* RTPO in the paper's form: reverse turns, G - 1 fresh siblings, trunks as anchors only.

Writes `results/quickstart/<run>/`: config.json, metrics.jsonl, table.md, table.csv,
learning_curves.png and .pdf, and checkpoints. An interrupted run goes on with `--resume <run>` and
ends with the same numbers, bit for bit. Compiled programs are kept in ~/.cache/rtpo_jax.

Expected on two CPU cores: about two minutes. The log-ratio before the first update stays below 1e-4 on
recorded contexts and is far from 0 on the full history, where learning is slowest. GRPO on recorded
contexts learns fastest. RTPO learns too, but trains few of the turns it generates: where every turn
matters and there is no turn to spare, it is not expected to beat GRPO at equal tokens.

Differs from the paper: toy size; G = 4 and one trunk per task (the paper: G = 3, two or four trunks);
one constant learning rate shared by the methods; budgets end with the iteration that passes them.
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
from rich.text import Text

from experiments import real_model, run_directory
from experiments.progress import LiveProgress
from experiments.real_model import RealModelConfig
from experiments.toy_agent import ToyAgent, ToyConfig
from experiments.toy_run import ToyRun
from paper_figures import comparison
from rtpo_jax.models.gguf import find_smollm2

EXPERIMENT = "quickstart"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(ToyConfig):
    """Everything that decides a run's numbers."""

    size: Literal["tiny", "cpu"] = "cpu"  # preset of the other options: seconds, or minutes
    model: Literal["toy", "smollm2"] = "toy"  # smollm2: a real model; see --model smollm2 --help

    def __post_init__(self):
        super().__post_init__()
        if self.model != "toy":
            raise ValueError(f"model={self.model!r}: a real model is a RealModelConfig")


PRESETS = {
    "cpu": Config(),
    "tiny": Config(
        size="tiny",
        num_hops=2,
        warm_start_steps=20,
        warm_start_episodes=64,
        luck=0.5,  # so that an agent that never succeeds still has something to learn from
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


def show(rows: list[dict[str, str]], title: str, console: Console) -> None:
    """Print the comparison with a column per method."""
    table = Table(title=title, caption=comparison.NOTE)
    table.add_column("")
    for row in rows:
        table.add_column(row["method"], justify="right")
    for name in list(rows[0])[1:]:
        table.add_row(name, *(row[name] for row in rows))
    console.print(table)
    still = [row["method"] for row in rows if row["optimiser steps"] == "0"]
    if still:
        console.print(
            f"no group of {', '.join(still)} ever differed in return: nothing was learned"
        )


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
    if "--questions" in arguments and chosen.model != "smollm2":
        raise ValueError("questions: only the real model is asked, add --model smollm2")
    return tyro.cli(
        type(default),
        args=arguments,
        default=default,
        prog="python -m experiments.quickstart",
        description=__doc__.partition("\n\n")[0],
    )


def open_run(options: RunOptions, arguments: list[str]) -> tuple[Config | RealModelConfig, Path]:
    """The configuration and folder of a new run, or of the one to resume."""
    config = options.config
    if options.resume is not None:
        flags = {argument.split("=")[0] for argument in arguments if argument.startswith("--")}
        extra = sorted(flags - {"--resume", "--results"})
        if extra:
            raise ValueError(
                f"{', '.join(extra)}: --resume takes its options from the run; leave them out"
            )
        directory = run_directory.find(options.results, EXPERIMENT, options.resume)
        if run_directory.stored_config(directory)["model"] != "toy":
            raise ValueError(
                f"resume={options.resume!r}: a run of the real model starts over, give its options"
            )
        return run_directory.load_config(directory, Config), directory
    parts = [getattr(config, "size", ""), config.model, f"seed{config.seed}"]
    name = options.run or "-".join(filter(None, parts))
    if isinstance(config, RealModelConfig):
        find_smollm2()  # before a folder is made for it
        run_directory.forget_unfinished(options.results, EXPERIMENT, name, config.model)
    return config, run_directory.create(options.results, EXPERIMENT, name, config)


def _stop_on_terminate(signum, frame) -> None:
    del frame
    raise SystemExit(128 + signum)


def main(arguments: list[str] | None = None) -> int:
    """Parse, run, print; 0 when done, 2 for refused options, 130 or 143 when stopped."""
    arguments = sys.argv[1:] if arguments is None else arguments
    console = Console()
    try:
        config, directory = open_run(parse(arguments), arguments)
    except (ValueError, OSError, ImportError) as error:
        refusal = Text.assemble(("refused: ", "red"), str(error))
        Console(stderr=True).print(refusal, soft_wrap=True)
        return 2
    signal.signal(signal.SIGTERM, _stop_on_terminate)
    jax.config.update("jax_compilation_cache_dir", str(Path.home() / ".cache" / "rtpo_jax"))
    console.print(f"writing to {directory}")
    try:
        rows = run(config, directory, console)
    except (KeyboardInterrupt, SystemExit) as stop:
        if isinstance(config, RealModelConfig):
            console.print("stopped; the same command starts over")
        else:
            console.print("stopped; go on with:")
            command = f"python -m experiments.quickstart --resume {directory}"
            console.print(command, soft_wrap=True, highlight=False)
        return stop.code if isinstance(stop, SystemExit) else 130
    real = isinstance(config, RealModelConfig)
    title = "One iteration each, from the released weights" if real else "Equal generated tokens"
    show(rows, title, console)
    console.print(f"table, curves and metrics are in {directory}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
