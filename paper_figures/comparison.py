"""Learning curves and the comparison table of a run, from its `metrics.jsonl` alone.

    python -m paper_figures.comparison results/quickstart/RUN

writes `table.md`, `table.csv`, `learning_curves.png` and `learning_curves.pdf` into the run's folder.
"""

import argparse
import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt

from paper_figures.files import Row, save

WARM_START = "warm start"  # the phase that all methods start from


def load(directory: Path) -> dict[str, dict[str, list[dict]]]:
    """Metrics by phase and kind ("train" or "evaluation"), in the order they were written."""
    phases: dict[str, dict[str, list[dict]]] = {}
    with (directory / "metrics.jsonl").open() as file:
        for line in file:
            record = json.loads(line)
            kinds = phases.setdefault(record["phase"], {"train": [], "evaluation": []})
            kinds[record["kind"]].append(record)
    return phases


def methods(directory: Path) -> dict[str, tuple[list[dict], list[dict]]]:
    """Training and evaluation records of each method that was evaluated after training.

    The evaluations start with that of the shared warm start, at 0 generated tokens.
    """
    phases = load(directory)
    start = phases.pop(WARM_START)["evaluation"] if WARM_START in phases else []
    return {
        name: (records["train"], start[-1:] + records["evaluation"])
        for name, records in phases.items()
        if records["train"] and records["evaluation"]
    }


def _total(records: list[dict], name: str) -> float:
    return sum(record.get(name, 0.0) for record in records)


def _mean(records: list[dict], name: str) -> float:
    values = [record[name] for record in records if name in record]
    return sum(values) / len(values) if values else float("nan")


def _largest(records: list[dict], name: str) -> float:
    values = [record[name] for record in records if name in record]
    return float(np.max(values)) if values else float("nan")  # NaN stays NaN


def half_width(share: float, count: int) -> float:
    """Half of the 95 % Wilson interval of a share among `count` tasks."""
    z = 1.96
    spread = share * (1 - share) / count + z**2 / (4 * count**2)
    return z * spread**0.5 / (1 + z**2 / count)


def summary(train: list[dict], evaluations: list[dict]) -> dict[str, float]:
    """What a method reached and what it cost, as numbers; the columns of `table.csv`.

    The first evaluation is that of the shared start and costs the method nothing. A number that was
    not measured (greedy success of an unfinished run) is NaN.
    """
    start, *own = evaluations
    last, nan = evaluations[-1], float("nan")
    sampled, tasks = last["success_sampled"], last["evaluation_tasks"]
    rollout = _total(train, "sampling_seconds") + _total(train, "environment_seconds")
    return {
        "success_sampled_before": start["success_sampled"],
        "success_sampled_after": sampled,
        "success_sampled_after_half_width": half_width(sampled, tasks),
        "success_greedy_before": start.get("success_greedy", nan),
        "success_greedy_after": last.get("success_greedy", nan),
        "evaluation_tasks": tasks,
        "generated_tokens": train[-1]["tokens"],
        "optimiser_steps": _total(train, "updates"),
        "tool_calls_per_episode": last["tool_calls"],
        "zero_advantage_share": _mean(train, "zero_advantage_share"),
        "log_ratio_before_update_max": _largest(train, "log_ratio_before_update_max"),
        "rollout_seconds": rollout,
        "scoring_seconds": _total(train, "scoring_seconds"),
        "update_seconds": _total(train, "update_seconds"),
        "evaluation_seconds": _total(own, "evaluation_seconds"),
        "compiled_programs": _total(train + own, "compiled_programs"),
    }


# Line of the printed table -> its text from a summary.
LINES: dict[str, Callable[[dict], str]] = {
    "success before": lambda s: f"{s['success_sampled_before']:.3f}",
    "success after": lambda s: (
        f"{s['success_sampled_after']:.3f} ±{s['success_sampled_after_half_width']:.3f}"
    ),
    "greedy before": lambda s: f"{s['success_greedy_before']:.3f}",
    "greedy after": lambda s: f"{s['success_greedy_after']:.3f}",
    "generated tokens": lambda s: f"{s['generated_tokens']:.0f}",
    "optimiser steps": lambda s: f"{s['optimiser_steps']:.0f}",
    "tool calls/episode": lambda s: f"{s['tool_calls_per_episode']:.2f}",
    "zero-advantage share": lambda s: f"{s['zero_advantage_share']:.3f}",
    "max log-ratio*": lambda s: f"{s['log_ratio_before_update_max']:.2g}",
    "rollout, s": lambda s: f"{s['rollout_seconds']:.1f}",
    "scoring, s": lambda s: f"{s['scoring_seconds']:.1f}",
    "update, s": lambda s: f"{s['update_seconds']:.1f}",
    "evaluation, s": lambda s: f"{s['evaluation_seconds']:.1f}",
    "compiled programs": lambda s: f"{s['compiled_programs']:.0f}",
}
NOTE = "* largest |log-ratio| of any token before the first update of its batch"


def write_table(directory: Path) -> list[Row]:
    """Write `table.md` (a column per method) and `table.csv` (numbers); returns the printed rows.

    Raises:
      ValueError: no method of the run has been trained and evaluated yet.
    """
    numbers = [{"method": n, **summary(*records)} for n, records in methods(directory).items()]
    if not numbers:
        raise ValueError(f"{directory} has no trained method with an evaluation yet: go on with it")
    rows = [
        {"method": s["method"], **{line: text(s) for line, text in LINES.items()}} for s in numbers
    ]
    lines = [[name, *(row[name] for row in rows)] for name in rows[0]]
    lines.insert(1, ["---"] * len(lines[0]))
    markdown = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    (directory / "table.md").write_text(f"{markdown}\n\n{NOTE}\n")
    with (directory / "table.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(numbers[0]))
        writer.writeheader()
        writer.writerows(numbers)
    return rows


def learning_curves(directory: Path) -> Path:
    """Success of sampled actions on held-out tasks against generated tokens, a line per method."""
    figure, axis = plt.subplots(figsize=(6.4, 4), layout="tight")
    for name, (_, evaluations) in methods(directory).items():
        success = [record["success_sampled"] for record in evaluations]
        axis.errorbar(
            [record["tokens"] / 1000 for record in evaluations],
            success,
            [
                half_width(p, r["evaluation_tasks"])
                for p, r in zip(success, evaluations, strict=True)
            ],
            marker="o",
            markersize=3,
            linewidth=1.2,
            capsize=2,
            label=name,
        )
    axis.set(
        xlabel="generated tokens, thousands",
        ylabel="success on held-out tasks",
        ylim=(0, 1),
    )
    axis.grid(alpha=0.3)
    axis.legend(frameon=False, fontsize=8)
    return save(figure, directory / "learning_curves")


def main() -> None:
    """Redraw the table and the figure of a run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="folder of the run")
    directory = parser.parse_args().run
    write_table(directory)
    print((directory / "table.md").read_text())
    print(learning_curves(directory))


if __name__ == "__main__":
    main()
