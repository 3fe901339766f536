"""The table of guarantees as a picture, from `guarantees.csv` of a run.

    python -m paper_figures.guarantees results/guarantees/RUN

One panel for single-turn and one for multi-turn. Colour: the verdict. Number: share of updates that
lowered performance, in percent; "." where a theorem says that none can. A tick or a cross in the
last column is the verdict of the paper (SeeUPO, arXiv 2602.06554, Table 1).
"""

from pathlib import Path

from matplotlib import pyplot as plt
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

from paper_figures.files import Row, read_table, redraw, save

COLOURS = {
    "holds": "#9fd3a5",
    "violated: step size": "#f6e58d",
    "violated: optimiser": "#d9cfa0",
    "violated: sampling": "#f4b07a",
    "violated: bias": "#e06666",
    "not run": "#f2f2f2",
}
PAPER = {"yes": "\u2713", "no": "\u2717", "": ""}


def read(directory: Path) -> list[Row]:
    """The rows of the table of a run, one for each cell.

    Raises:
      ValueError: no table or an empty one, or a verdict that has no colour.
    """
    rows = read_table(directory, "guarantees")
    unknown = {row["verdict"] for row in rows} - set(COLOURS)
    if unknown:
        raise ValueError(
            f"guarantees.csv of {directory} has verdicts {sorted(unknown)}: "
            f"give each a colour, as {list(COLOURS)} have"
        )
    return rows


def label(row: Row) -> str:
    """What is printed in a cell."""
    if row["verdict"] == "not run":
        return ""
    if row["basis"] == "theorem":
        return "."
    return f"{100 * float(row['share_lowered']):.3g}"


def panel(axis: plt.Axes, rows: list[Row], title: str) -> None:
    """Draw the cells of one number of turns."""
    columns = list(dict.fromkeys(row["column"] for row in rows))
    lines = sorted({(row["update"], row["advantage"]) for row in rows}, key=_order(rows))
    verdicts = list(COLOURS)
    grid = [[verdicts.index("not run")] * len(columns) for _ in lines]
    for row in rows:
        y, x = lines.index((row["update"], row["advantage"])), columns.index(row["column"])
        grid[y][x] = verdicts.index(row["verdict"])
        axis.text(x, y, label(row), ha="center", va="center", fontsize=8)
        if row["paper"] and x == 0:
            axis.text(len(columns), y, PAPER[row["paper"]], ha="center", va="center", fontsize=11)
    colours = ListedColormap(list(COLOURS.values()))
    axis.imshow(grid, cmap=colours, vmin=-0.5, vmax=len(COLOURS) - 0.5, aspect="auto")
    axis.set_xlim(-0.5, len(columns) + 0.5)
    names = [*(name.replace(", ", ",\n") for name in columns), "paper"]
    axis.set_xticks(range(len(names)), names, rotation=40, ha="right", fontsize=9)
    axis.set_yticks(range(len(lines)), [advantage for _, advantage in lines], fontsize=9)
    axis.set_title(title, fontsize=12)
    for y in range(1, len(lines)):
        if lines[y][0] != lines[y - 1][0]:
            axis.axhline(y - 0.5, color="black", linewidth=0.6)


def _name_updates(axis, rows):
    """Left of the names of the advantages, once for each block of lines, that of the update."""
    lines = sorted({(row["update"], row["advantage"]) for row in rows}, key=_order(rows))
    updates = [update for update, _ in lines]
    for update in dict.fromkeys(updates):
        middle = updates.index(update) + (updates.count(update) - 1) / 2
        axis.annotate(update.replace(", ", ",\n"), (0, middle), xytext=(-165, 0), fontsize=10,
                      xycoords=("axes fraction", "data"), textcoords="offset points",
                      rotation=90, ha="center", va="center", fontweight="bold")  # fmt: skip


def _order(rows):
    """Sort key of a line: where its update and its advantage are first met."""
    updates = list(dict.fromkeys(row["update"] for row in rows if row["verdict"] != "not run"))
    updates += [row["update"] for row in rows if row["update"] not in updates]
    advantages = list(dict.fromkeys(row["advantage"] for row in rows))
    return lambda line: (updates.index(line[0]), advantages.index(line[1]))


def draw(directory: Path) -> list[Path]:
    """Write `guarantees.png` and `guarantees.pdf` beside the table of a run; returns the png."""
    rows = read(directory)
    turns = list(dict.fromkeys(row["turns"] for row in rows))
    figure, axes = plt.subplots(1, len(turns), figsize=(14, 9.5), sharey=True)
    for axis, name in zip(axes, turns, strict=True):
        panel(axis, [row for row in rows if row["turns"] == name], name)
    patches = [Patch(color=colour, label=verdict) for verdict, colour in COLOURS.items()]
    title = 'number: % of updates that lower J; ".": a theorem says none can'
    figure.legend(
        handles=patches, loc="lower center", ncol=len(patches), fontsize=10, title=title
    )  # fmt: skip
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    _name_updates(axes[0], rows)
    return [save(figure, directory / "guarantees")]


if __name__ == "__main__":
    redraw(__doc__, draw)
