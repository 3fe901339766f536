"""Figures of `theorem_drift` and `clipping_bias` from the csv files of a run.

    python -m paper_figures.drift results/theorem_drift/RUN
    python -m paper_figures.drift results/clipping_bias/RUN

`theorem_drift`: error of continuation estimates against the turns that follow, and against the
clamp. `clipping_bias`: norm of the clipping bias against the age of the batch and the horizon, and
performance of the normalisations against plain control runs.
"""

import argparse
import csv
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt  # noqa: E402  (the backend has to be chosen first)

Row = dict[str, str]


def read(path: Path) -> list[Row]:
    """The rows of a csv file."""
    with path.open() as file:
        return list(csv.DictReader(file))


def series(rows: list[Row], label: str, x: str, y: str) -> dict[str, tuple[list, list]]:
    """Numbers x and y by the value of column `label`, ascending in x."""
    found: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        found.setdefault(row[label], []).append((float(row[x]), float(row[y])))
    return {name: tuple(map(list, zip(*sorted(points), strict=True)))
            for name, points in found.items()}  # fmt: skip


def save(figure: plt.Figure, target: Path) -> Path:
    """Write png and pdf and close the figure."""
    figure.tight_layout()
    figure.savefig(target.with_suffix(".png"), dpi=160)
    figure.savefig(target.with_suffix(".pdf"))
    plt.close(figure)
    return target.with_suffix(".png")


def lines(axis: plt.Axes, found: dict[str, tuple[list, list]], **style) -> None:
    """A line per name, with a grid; a name has the same colour in every panel."""
    for number, (name, (x, y)) in enumerate(found.items()):
        axis.plot(x, y, color=f"C{number}", label=name, linewidth=1.3, **style)
    axis.grid(alpha=0.3)


def horizon(directory: Path) -> Path:
    """Variance and bias of every mode against the turns that follow, one column a world."""
    rows = read(directory / "horizon.csv")
    worlds = list(dict.fromkeys(row["world"] for row in rows))
    figure, axes = plt.subplots(2, len(worlds), figsize=(4.8 * len(worlds), 6), sharex=True)
    for column, world in enumerate(worlds):
        here = [row for row in rows if row["world"] == world]
        for axis, name in zip(axes[:, column], ("mean_variance", "mean_abs_bias"), strict=True):
            lines(axis, series(here, "mode", "remaining_turns", name))
            axis.set(yscale="log", ylabel=name.replace("_", " "))
        axes[0, column].set_title(world)
        axes[1, column].set_ylim(bottom=1e-9)
        axes[1, column].set_xlabel("turns that follow")
    axes[0, 0].legend(frameon=False, fontsize=7)
    return save(figure, directory / "horizon")


def clamp(directory: Path) -> Path:
    """Bias, standard deviation and their root of squares against the upper clamp."""
    rows = read(directory / "clamp.csv")
    width = [float(row["clamp_high"]) for row in rows]
    curves = {
        "mean |bias|": [float(row["mean_abs_bias"]) for row in rows],
        "root of mean variance": [float(row["mean_variance"]) ** 0.5 for row in rows],
        "root mean squared error": [float(row["rmse"]) for row in rows],
    }
    figure, axis = plt.subplots(figsize=(5.2, 3.8))
    lines(axis, {name: (width, y) for name, y in curves.items()}, marker="o", markersize=3)
    turns = rows[0]["remaining_turns"]
    axis.set(xscale="log", yscale="log", xlabel="c, weight clamped to [1/c, c]",
             ylabel="units of reward", title=f"{turns} turns follow")  # fmt: skip
    axis.legend(frameon=False, fontsize=8)
    return save(figure, directory / "clamp")


def sharing(directory: Path) -> Path:
    """How far a stage masked to one turn moves later turns, and how stale its trunk states are."""
    rows = read(directory / "sharing.csv")
    figure, axes = plt.subplots(1, 3, figsize=(10.5, 3.4))
    for axis, name, label in zip(
        axes,
        ("mean_downstream_tv", "mean_weight_variance", "mean_trunk_tv"),
        ("total variation of later turns", "Var omega after the stage", "drift of trunk states"),
        strict=True,
    ):
        lines(axis, series(rows, "class", "turn", name), marker="o", markersize=3)
        axis.set(xlabel="turn of the stage", ylabel=label)
    axes[0].legend(frameon=False, fontsize=8)
    return save(figure, directory / "sharing")


def draw_drift(directory: Path) -> None:
    """All figures of a run of `theorem_drift`."""
    horizon(directory)
    clamp(directory)
    sharing(directory)


def ages(directory: Path) -> Path:
    """Norm of the clipping bias against the age of the batch, and of its last value on the horizon."""
    rows = [row for row in read(directory / "ages.csv") if row["pays"] == "every turn"]
    longest = max(int(row["horizon"]) for row in rows)
    oldest = max(int(row["age"]) for row in rows)
    figure, axes = plt.subplots(1, 3, figsize=(11.5, 3.6))
    for axis, way in zip(axes, ("reused", "refreshed"), strict=False):
        here = [row for row in rows if row["way"] == way and int(row["horizon"]) == longest]
        found = series(here, "level", "age", "bias_norm")
        lines(axis, found)
        axis.set(yscale="log", xlabel="age of the batch, updates", ylabel="norm of C",
                 title=f"{way} batch, {longest} turns")  # fmt: skip
    end = [row for row in rows if int(row["age"]) == oldest and row["way"] == "refreshed"]
    lines(axes[2], series(end, "level", "horizon", "bias_norm"), marker="o", markersize=3)
    axes[2].set(xscale="log", yscale="log", xlabel="turns", ylabel="norm of C",
                title=f"after {oldest} updates")  # fmt: skip
    turns = sorted({int(row["horizon"]) for row in end})
    axes[2].set_xticks(turns, turns)
    axes[2].minorticks_off()
    axes[0].legend(frameon=False, fontsize=8)
    return save(figure, directory / "ages")


def curves(directory: Path) -> Path:
    """Learning curves by normalisation and, dashed, gradient clipping of equal mean step length."""
    rows = read(directory / "curves.csv")
    cases = list(dict.fromkeys((r["level"], r["optimiser"], r["rate"]) for r in rows))
    columns = (len(cases) + 1) // 2
    figure, axes = plt.subplots(2, columns, figsize=(3.6 * columns, 6.4), sharex=True)
    for axis, case in zip(axes.flat, cases, strict=False):
        here = [r for r in rows if (r["level"], r["optimiser"], r["rate"]) == case]
        scaled = series([r for r in here if not r["control"]], "kind", "iteration", "performance")
        clipped = [r for r in here if r["control"] == "gradient clipping"]
        for number, (kind, (x, y)) in enumerate(scaled.items()):
            axis.plot(x, y, color=f"C{number}", label=kind, linewidth=1.3)
        for kind, (x, y) in series(clipped, "kind", "iteration", "performance").items():
            color = f"C{list(scaled).index(kind)}"
            axis.plot(x, y, color=color, linestyle="--", linewidth=0.9)
        axis.set_title(f"{case[0]}, {case[1]}, step {case[2]}", fontsize=8)
        axis.grid(alpha=0.3)
    axes[0, 0].legend(frameon=False, fontsize=7)
    axes[-1, 0].set(xlabel="iteration", ylabel="performance over the optimum")
    return save(figure, directory / "curves")


def draw_clipping(directory: Path) -> None:
    """All figures of a run of `clipping_bias`."""
    ages(directory)
    curves(directory)


def main() -> None:
    """Redraw the figures of the run named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="folder of the run")
    directory = parser.parse_args().run
    draw = draw_drift if (directory / "horizon.csv").exists() else draw_clipping
    draw(directory)
    print("\n".join(str(path) for path in sorted(directory.glob("*.png"))))


if __name__ == "__main__":
    main()
