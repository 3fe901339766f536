"""Figures of RTPO's Theorem 1 (arXiv 2608.18682), from the csv files of a run alone.

    python -m paper_figures.convergence results/theorem_convergence/RUN

`convergence_learning`: error of turn-wise Q-learning against samples, step sizes that break the
theorem, and orders at equally many episodes. `convergence_updates`: what the clipped update leaves of
the gap to V*, by order and by number of siblings, and where assumptions are violated.
"""

import argparse
import csv
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot as plt  # noqa: E402  (the backend has to be chosen first)

Row = dict[str, str]
STYLES = {"reverse": "-", "natural": "--", "random": ":", "simultaneous": "-."}


def load(directory: Path, name: str) -> list[Row]:
    """Rows of one table of the run, as text."""
    with (directory / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


def series(rows: list[Row], label: str, x: str, y: str) -> dict[str, np.ndarray]:
    """Points [N, 2] by the text in column `label`, in the order of the rows."""
    found: dict[str, list] = {}
    for row in rows:
        found.setdefault(row[label], []).append((float(row[x]), float(row[y])))
    return {name: np.array(points) for name, points in found.items()}


def draw(directory: Path) -> None:
    """Write both figures as PNG and PDF into the run's folder."""
    figure, axes = plt.subplots(1, 3, figsize=(12, 3.6))
    _errors(axes[0], load(directory, "errors"))
    _step_sizes(axes[1], load(directory, "step_sizes"))
    _orders(axes[2], load(directory, "learning_orders"))
    _save(figure, directory / "convergence_learning")
    figure, axes = plt.subplots(1, 4, figsize=(16, 3.6))
    _sweeps(axes[0], load(directory, "sweep_curves"), "maximiser, random")
    _sweeps(axes[1], load(directory, "ascent_curves"), "ascent, uniform")
    _siblings(axes[2], load(directory, "siblings"))
    _violations(axes[3], load(directory, "violations"))
    _save(figure, directory / "convergence_updates")


def _errors(axis, rows):
    last = max(int(row["turn"]) for row in rows)
    kept = [row for row in rows if int(row["turn"]) == last]
    for name, points in series(kept, "schedule", "samples", "rms_sup_error").items():
        axis.loglog(*points.T, marker="o", markersize=3, label=name)
    axis.set(xlabel="episodes of the stage", ylabel="rms of sup |Q - Q~|", title="last turn")
    axis.legend(frameon=False, fontsize=8)


def _step_sizes(axis, rows):
    kept = [row for row in rows if row["constant"] != "nan"]
    for name, marker in (("error2_over_variance", "o"), ("predicted", "-")):
        axis.loglog(*np.array([[float(r["constant"]), float(r[name])] for r in kept]).T, marker,
                    label={"predicted": "alpha / (2 - alpha)"}.get(name, "measured"))  # fmt: skip
    steps = [float(row["constant"]) for row in kept]
    axis.set_xticks(steps, [f"{step:g}" for step in steps])
    axis.set_xticks([], minor=True)
    axis.set(xlabel="constant step alpha", ylabel="error^2 / Var(Y)", title="plateau")
    axis.legend(frameon=False, fontsize=8)


def _orders(axis, rows):
    names = [f"{r['order']}, {r['passes']}" for r in rows]
    numbers = [[float(r[k]) for r in rows] for k in ("mean_loss", "half_width")]
    axis.barh(names[::-1], numbers[0][::-1], xerr=numbers[1][::-1], color="0.7", capsize=2)
    axis.set(xlabel="mean J* - J", title="order, passes; equal episodes")


def _sweeps(axis, rows, update):
    kept = [row for row in rows if row["update"] == update]
    for name, points in series(kept, "order", "sweep", "mean_gap").items():
        shown = points[points[:, 1] > 1e-6]
        axis.semilogy(*shown.T, STYLES[name], label=name)
    axis.set(xlabel="sweep", ylabel="mean share of the gap to V* left", title=update)
    axis.legend(frameon=False, fontsize=8)


def _siblings(axis, rows):
    for count, points in series(rows, "siblings", "sweep", "mean_gap").items():
        half = np.array([float(r["half_width"]) for r in rows if r["siblings"] == count])
        (line,) = axis.semilogy(*points.T, label=f"n = {count}")
        axis.fill_between(points[:, 0], points[:, 1] - half, points[:, 1] + half, alpha=0.3,
                          color=line.get_color())  # fmt: skip
    axis.set(xlabel="sweep", ylabel="mean share of the gap to V* left", title="sampled siblings")
    axis.legend(frameon=False, fontsize=8)


def _violations(axis, rows):
    kinds = {"performance_optimal": "V*", "performance_best_of_class": "best of class",
             "performance_limit": "limit of learning"}  # fmt: skip
    places = np.arange(len(rows))
    for shift, (column, label) in enumerate(kinds.items()):
        numbers = [float(row[column]) for row in rows]
        axis.barh(places + 0.25 * (1 - shift), numbers, height=0.25, label=label)
    axis.set_yticks(places, [row["instance"].replace("_", " ") for row in rows])
    axis.set(xlabel="performance", title="violated assumptions", xlim=(0, 1.75))
    axis.legend(frameon=False, fontsize=8, loc="center right")


def _save(figure, target: Path):
    for axis in figure.axes:
        axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(target.with_suffix(".png"), dpi=160)
    figure.savefig(target.with_suffix(".pdf"))
    plt.close(figure)


def main() -> None:
    """Redraw the figures of a run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="folder of the run")
    draw(parser.parse_args().run)


if __name__ == "__main__":
    main()
