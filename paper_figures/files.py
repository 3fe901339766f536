"""Tables of a run in, figures out: what all modules that draw have in common."""

import argparse
import csv
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib import pyplot as plt

matplotlib.use("Agg")  # here alone: every module that draws imports this one

Row = dict[str, str]


def read_table(directory: Path, name: str) -> list[Row]:
    """Rows of `name`.csv in the folder of a run, as text.

    Raises:
      ValueError: the run has no such table, or it is empty.
    """
    path = directory / f"{name}.csv"
    if not path.exists():
        raise ValueError(f"{path} does not exist: give the folder of a finished run")
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    if not rows:
        raise ValueError(f"{path} has no rows: run the experiment again")
    return rows


def series(rows: list[Row], label: str, x: str, y: str) -> dict[str, np.ndarray]:
    """Columns x and y as [2, N], ascending in x, by the text in column `label`."""
    found: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        found.setdefault(row[label], []).append((float(row[x]), float(row[y])))
    return {name: np.array(sorted(points)).T for name, points in found.items()}


def lines(axis: plt.Axes, found: dict[str, Sequence], **style) -> None:
    """A line per name from its x and y, with a grid; a name has one colour in all panels."""
    for number, (name, (x, y)) in enumerate(found.items()):
        axis.plot(x, y, color=f"C{number}", label=name, linewidth=1.3, **style)
    axis.grid(alpha=0.3)


def save(figure: plt.Figure, target: Path) -> Path:
    """Write a figure as png and pdf, cut to what is drawn, and close it.

    Args:
      figure: laid out already.
      target: path without a suffix.

    Returns: the path of the png.
    """
    png = target.with_name(f"{target.name}.png")
    figure.savefig(png, dpi=160, bbox_inches="tight")
    figure.savefig(png.with_suffix(".pdf"), bbox_inches="tight")
    plt.close(figure)
    return png


def redraw(
    description: str,
    draw: Callable[[Path], list[Path]],
    arguments: Sequence[str] | None = None,
) -> None:
    """Command line of a module that draws: takes the folder of a run, prints what it wrote.

    Args:
      description: docstring of the module.
      draw: from the folder of a run to the png files it wrote there.
      arguments: of the command line, by default those of the process.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="folder of the run")
    for path in draw(parser.parse_args(arguments).run):
        print(path)
