"""Learning curves and the comparison table of a run, from its `metrics.jsonl` alone.

    python -m paper_figures.comparison results/quickstart/RUN

writes `table.md`, `table.csv`, `learning_curves.png` and `learning_curves.pdf` into the run's folder.
"""

import argparse
import csv
import json
from collections.abc import Callable
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt  # noqa: E402  (the backend has to be chosen first)

Row = dict[str, str]
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
        name: (records["train"], start + records["evaluation"])
        for name, records in phases.items()
        if records["train"] and records["evaluation"]
    }


def _total(records: list[dict], name: str) -> float:
    return sum(record.get(name, 0.0) for record in records)


def _mean(records: list[dict], name: str) -> float:
    values = [record[name] for record in records if name in record]
    return sum(values) / len(values) if values else float("nan")


def _largest(records: list[dict], name: str) -> float:
    return max((record[name] for record in records if name in record), default=float("nan"))


def half_width(share: float, count: int) -> float:
    """Half of the 95 % Wilson interval of a share among `count` tasks."""
    z = 1.96
    spread = share * (1 - share) / count + z**2 / (4 * count**2)
    return z * spread**0.5 / (1 + z**2 / count)


def _before_after(evaluations: list[dict], name: str) -> str:
    before, after, tasks = evaluations[0], evaluations[-1], evaluations[-1]["evaluation_tasks"]
    return f"{before[name]:.3f} -> {after[name]:.3f} ± {half_width(after[name], tasks):.3f}"


# Column -> its text from the training and the evaluation records of one method.
COLUMNS: dict[str, Callable[[list[dict], list[dict]], str]] = {
    "success, sampled": lambda train, evals: _before_after(evals, "success_sampled"),
    "success, greedy": lambda train, evals: _before_after(evals, "success_greedy"),
    "generated tokens": lambda train, evals: f"{train[-1]['tokens']:.0f}",
    "optimiser steps": lambda train, evals: f"{_total(train, 'updates'):.0f}",
    "tool calls / episode": lambda train, evals: f"{evals[-1]['tool_calls']:.2f}",
    "zero-advantage groups": lambda train, evals: f"{_mean(train, 'zero_advantage_share'):.3f}",
    "largest log-ratio before update": lambda train, evals: (
        f"{_largest(train, 'log_ratio_before_update_max'):.2g}"
    ),
    "seconds rollout": lambda train, evals: (
        f"{_total(train, 'sampling_seconds') + _total(train, 'environment_seconds'):.1f}"
    ),
    "seconds scoring": lambda train, evals: f"{_total(train, 'scoring_seconds'):.1f}",
    "seconds update": lambda train, evals: f"{_total(train, 'update_seconds'):.1f}",
    "seconds evaluation": lambda train, evals: f"{_total(evals, 'evaluation_seconds'):.1f}",
    "compiled programs": lambda train, evals: f"{_total(train + evals, 'compiled_programs'):.0f}",
}


def table(directory: Path) -> list[Row]:
    """One row per method: what it reached, and what it cost."""
    return [
        {"method": name, **{column: text(*records) for column, text in COLUMNS.items()}}
        for name, records in methods(directory).items()
    ]


def write_table(directory: Path) -> list[Row]:
    """Write `table.md` and `table.csv`; returns the rows."""
    rows = table(directory)
    if not rows:
        raise ValueError(f"{directory} has no trained method with an evaluation yet")
    names = list(rows[0])
    lines = [names, ["---"] * len(names), *([row[name] for name in names] for row in rows)]
    markdown = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    (directory / "table.md").write_text(markdown + "\n")
    with (directory / "table.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)
    return rows


def learning_curves(directory: Path) -> Path:
    """Success of sampled actions on held-out tasks against generated tokens, a line per method."""
    figure, axis = plt.subplots(figsize=(6.4, 4))
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
    figure.tight_layout()
    target = directory / "learning_curves.png"
    figure.savefig(target, dpi=160)
    figure.savefig(target.with_suffix(".pdf"))
    plt.close(figure)
    return target


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
