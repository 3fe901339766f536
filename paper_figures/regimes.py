"""Figures of the regimes experiment, from the tables of a run.

    python -m paper_figures.regimes results/regimes/RUN

writes `families.png` and `phase_maps.png`, each also as pdf, into the run's folder.
"""

from pathlib import Path

import numpy as np
from matplotlib import colors
from matplotlib import pyplot as plt

from paper_figures.files import read_table, redraw, save

BARS = {
    "paper_n2": "RTPO, n = 2, no trunk",
    "rtpo_4": "RTPO, G = 4",
    "flat_siblings_best": "flat + siblings, best",
    "flat_tails_best": "flat + tails, best",
    "oracle_tails_best": "the same, states by oracle",
}
# Column -> title, and the closed form whose break-even is drawn.
PANELS = {
    "rtpo_4": ("RTPO at every turn, G = 4", "rtpo"),
    "fork_tails": ("one fork with tails", "fork"),
    "flat_tails_best": ("flat + tails, best", "fork"),
}
FRONTIERS = {
    "rtpo": ("mean_within", "rtpo_threshold", "-"),
    "fork": ("fork_within", "fork_threshold", "--"),
}
SCALE = colors.TwoSlopeNorm(0.0, -3.5, 4.0)  # log2 of the ratio, white at 1


def draw(directory: Path) -> list[Path]:
    """Both figures from `families.csv`, `phase_map_1.csv` and `phase_map_2.csv`; the png files."""
    return [families(directory), phase_maps(directory)]


def families(directory: Path) -> Path:
    """Bars per family: generated turns of flat groups over those of each schedule."""
    rows = read_table(directory, "families")
    places = np.arange(len(rows))
    width = 0.8 / len(BARS)
    figure, axis = plt.subplots(figsize=(7.5, 0.34 * len(rows) + 1.6))
    for place in places[::2]:
        axis.axhspan(place - 0.5, place + 0.5, color="0.95", zorder=0)
    for number, (column, label) in enumerate(BARS.items()):
        values = [float(row[column]) for row in rows]
        # Bars start at 1, to the left where the schedule is dearer.
        gains = [value - 1.0 for value in values]
        axis.barh(places + (number - 2) * width, gains, width, left=1.0, label=label)
    axis.axvline(1.0, color="black", linewidth=0.8)
    axis.set_xscale("log", base=2)
    axis.set(xlabel="generated turns, flat groups of 8 / schedule (right: cheaper)")
    axis.xaxis.set_major_formatter("{x:g}")
    axis.margins(y=0.01)
    axis.grid(axis="x", alpha=0.3)
    axis.set_yticks(places, [row["family"] for row in rows], fontsize=9)
    axis.invert_yaxis()
    axis.legend(frameon=False, fontsize=9, loc="lower center", bbox_to_anchor=(0.35, 1.0), ncols=2)
    return save(figure, directory / "families")


def phase_maps(directory: Path) -> Path:
    """Ratio against luck, by task: map 1 (time of the luck) above, map 2 (critical turns) below.

    Lines are the break-even of the closed forms, the method should lose left of them: solid for
    mean w = 2/(K+1), dashed for w = 1/(1 + sqrt(kappa))^2 at the fork.
    """
    maps = [
        (read_table(directory, "phase_map_1"), "luck_after", "K = {}, luck after turn {}"),
        (read_table(directory, "phase_map_2"), "critical", "K = {}, last {} critical"),
    ]
    heights = [max(len(_tasks(rows, name)), 2) for rows, name, _ in maps]
    figure, axes = plt.subplots(
        2,
        len(PANELS),
        figsize=(11.0, 0.36 * sum(heights) + 2.4),
        height_ratios=heights,
        layout="constrained",
    )
    for line, (rows, name, label) in zip(axes, maps, strict=True):
        for axis, (column, (title, frontier)) in zip(line, PANELS.items(), strict=True):
            image = _panel(axis, rows, name, label, column)
            _frontier(axis, rows, name, frontier)
            axis.set_title(title, fontsize=9)
        for axis in line[1:]:
            axis.set_yticklabels([])
    for axis in axes[-1]:
        axis.set_xlabel("size of the hidden luck")
    bar = figure.colorbar(image, ax=axes, shrink=0.7, label="flat groups of 8 / schedule")
    ticks = np.arange(-3, 5)
    bar.set_ticks(ticks, labels=[f"{2.0**tick:g}" for tick in ticks])
    return save(figure, directory / "phase_maps")


def _tasks(rows, name):
    return list(dict.fromkeys((int(row["turns"]), int(row[name])) for row in rows))


def _table(rows, name, column):
    """Values [task, luck] of one column, with both axes."""
    tasks = _tasks(rows, name)
    luck = sorted({float(row["luck"]) for row in rows})
    values = np.full((len(tasks), len(luck)), np.nan)
    for row in rows:
        place = tasks.index((int(row["turns"]), int(row[name]))), luck.index(float(row["luck"]))
        values[place] = float(row[column])
    return values, tasks, luck


def _panel(axis, rows, name, label, column):
    values, tasks, luck = _table(rows, name, column)
    image = axis.imshow(np.log2(values), norm=SCALE, cmap="RdBu", aspect="auto")
    for (line, place), value in np.ndenumerate(values):
        dark = not 0.2 < value < 6.0
        axis.text(
            place, line, f"{value:.2f}", ha="center", va="center", fontsize=7,
            color="white" if dark else "black",
        )  # fmt: skip
    axis.set_xticks(range(len(luck)), [f"{size:g}" for size in luck], fontsize=8)
    axis.set_yticks(range(len(tasks)), [label.format(*task) for task in tasks], fontsize=8)
    return image


def _frontier(axis, rows, name, rule):
    """In every line, a mark right of the last cell where a closed form predicts a loss."""
    share, threshold, style = FRONTIERS[rule]
    losing = _table(rows, name, share)[0] > _table(rows, name, threshold)[0]
    for line, cells in enumerate(losing):
        place = cells.sum() - 0.5
        axis.plot([place, place], [line - 0.5, line + 0.5], style, color="black", linewidth=1.6)


if __name__ == "__main__":
    redraw(__doc__, draw)
