"""Draw what `experiments.preservation` wrote: one panel per broken assumption.

    python -m paper_figures.preservation results/preservation/RUN

Reads `preservation.csv`, computes nothing, writes PNG and PDF beside it.
"""

from pathlib import Path

from matplotlib import pyplot as plt
from matplotlib.ticker import MaxNLocator

from paper_figures.files import read_table, redraw, save

COLORS = {
    "SeeUPO": "#1b6ca8",
    "PPO, lambda 0.95": "#7a7a7a",
    "PPO, lambda 0": "#2a2a2a",
    "RTPO": "#c8553d",
}
TITLES = {
    "rewards": "rewards before the last turn",
    "observation": "random observations",
    "transitions": "random transitions",
    "value_noise": "critic: noise",
    "value_bias": "critic: lasting error",
    "forks": "forks that go wrong",
}
UNITS = {
    "rewards": "size of the potentials",
    "observation": "probability",
    "transitions": "0 deterministic, 1 random",
    "value_noise": "standard deviation",
    "value_bias": "size of the error",
    "forks": "probability",
}
QUANTITIES = {"closed": "share of the gap closed", "lowering": "iterations that lower J"}


def draw(directory: Path) -> list[Path]:
    """Two rows of panels for each kind of data: performance, and how often it falls; the png file."""
    rows = read_table(directory, "preservation")
    axes_names = list(dict.fromkeys(row["axis"] for row in rows))
    figure, axes = plt.subplots(
        2, len(axes_names), figsize=(2.6 * len(axes_names), 5.6), sharey="row", sharex="col"
    )
    for column, name in enumerate(axes_names):
        for axis, quantity in zip(axes[:, column], QUANTITIES, strict=True):
            _panel(axis, [row for row in rows if row["axis"] == name], quantity)
        axes[0, column].set_title(TITLES[name], fontsize=10)
        axes[1, column].set_xlabel(UNITS[name], fontsize=9)
        axes[1, column].xaxis.set_major_locator(MaxNLocator(4))
    for axis, label in zip(axes[:, 0], QUANTITIES.values(), strict=True):
        axis.set_ylabel(label)
    lines, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(lines, labels, loc="lower center", ncol=len(COLORS), fontsize=10)
    figure.tight_layout(rect=(0, 0.11, 1, 1))
    return [save(figure, directory / "preservation")]


def _panel(axis, rows, quantity):
    """Solid: exact data. Dashed: samples of equal size, with 95 % intervals of the mean."""
    for method, color in COLORS.items():
        for data, style in (("exact", "-"), ("sampled", "--")):
            line = [r for r in rows if (r["method"], r["data"]) == (method, data)]
            x = [float(r["level"]) for r in line]
            y = [float(r[quantity]) for r in line]
            axis.plot(x, y, style, color=color, label=f"{method}, {data}", marker=".")
            if quantity == "closed":
                half = [float(r["half_width"]) for r in line]
                low = [a - b for a, b in zip(y, half, strict=True)]
                high = [a + b for a, b in zip(y, half, strict=True)]
                axis.fill_between(x, low, high, color=color, alpha=0.12, linewidth=0)
    axis.grid(alpha=0.3)


if __name__ == "__main__":
    redraw(__doc__, draw)
