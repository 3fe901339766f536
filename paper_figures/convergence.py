"""Figures of RTPO's Theorem 1 (arXiv 2608.18682), from the csv files of a run alone.

    python -m paper_figures.convergence results/theorem_convergence/RUN

`convergence_learning`: error of turn-wise Q-learning against samples, step sizes that break the
theorem, and orders at equally many episodes. `convergence_updates`: what the clipped update leaves of
the gap to V*, by order and by number of siblings, and where assumptions are violated.
"""

from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt

from paper_figures.files import read_table, redraw, save, series

STYLES = {"reverse": "-", "natural": "--", "random": ":", "simultaneous": "-."}


def draw(directory: Path) -> list[Path]:
    """Write both figures as png and pdf into the run's folder; returns the png files."""
    learning, axes = plt.subplots(1, 3, figsize=(12, 3.6), layout="tight")
    _errors(axes[0], read_table(directory, "errors"))
    _step_sizes(axes[1], read_table(directory, "step_sizes"))
    _orders(axes[2], read_table(directory, "learning_orders"))
    updates, axes = plt.subplots(1, 4, figsize=(15, 3.8), layout="tight")
    _sweeps(axes[0], read_table(directory, "sweep_curves"), "maximiser, random")
    _sweeps(axes[1], read_table(directory, "ascent_curves"), "ascent, uniform")
    _siblings(axes[2], read_table(directory, "siblings"))
    _violations(axes[3], read_table(directory, "violations"))
    for axis in (*learning.axes, *updates.axes):
        axis.grid(alpha=0.3)
    return [
        save(learning, directory / "convergence_learning"),
        save(updates, directory / "convergence_updates"),
    ]


def _errors(axis, rows):
    last = max(int(row["turn"]) for row in rows)
    kept = [row for row in rows if int(row["turn"]) == last]
    for name, points in series(kept, "schedule", "samples", "rms_sup_error").items():
        axis.loglog(*points, marker="o", markersize=3, label=name)
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
        shown = points[:, points[1] > 1e-6]
        axis.semilogy(*shown, STYLES[name], label=name)
    axis.set(xlabel="sweep", ylabel="mean share of the gap to V* left", title=update)
    axis.legend(frameon=False, fontsize=8)


def _siblings(axis, rows):
    halves = series(rows, "siblings", "sweep", "half_width")
    for count, (sweeps, gap) in series(rows, "siblings", "sweep", "mean_gap").items():
        (line,) = axis.semilogy(sweeps, gap, label=f"n = {count}")
        half = halves[count][1]
        axis.fill_between(sweeps, gap - half, gap + half, alpha=0.3, color=line.get_color())
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
    axis.set(xlabel="performance", title="violated assumptions", xlim=(0, 1.05))
    axis.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.4, -0.16), ncols=3)


if __name__ == "__main__":
    redraw(__doc__, draw)
