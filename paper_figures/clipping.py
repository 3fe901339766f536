"""Figures of `clipping_bias`, from the csv files of a run alone.

    python -m paper_figures.clipping results/clipping_bias/RUN

Norm of the clipping bias against the age of the batch and the horizon (`ages`), and performance of
the normalisations against plain control runs (`curves`).
"""

from pathlib import Path

from matplotlib import pyplot as plt
from matplotlib.lines import Line2D

from paper_figures.files import lines, read_table, redraw, save, series


def draw(directory: Path) -> list[Path]:
    """All figures of a run; returns the png files."""
    return [ages(directory), curves(directory)]


def ages(directory: Path) -> Path:
    """Norm of the clipping bias against the age of the batch, and of its last value on the horizon."""
    rows = [row for row in read_table(directory, "ages") if row["pays"] == "every turn"]
    longest = max(int(row["horizon"]) for row in rows)
    oldest = max(int(row["age"]) for row in rows)
    figure, axes = plt.subplots(1, 3, figsize=(11.5, 3.6), layout="tight")
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
    axes[2].xaxis.minorticks_off()
    axes[0].legend(frameon=False, fontsize=8)
    return save(figure, directory / "ages")


def curves(directory: Path) -> Path:
    """Learning curves by normalisation and, dashed, gradient clipping of equal mean step length."""
    rows = read_table(directory, "curves")
    cases = list(dict.fromkeys((r["level"], r["optimiser"], r["rate"]) for r in rows))
    columns = (len(cases) + 1) // 2
    figure, axes = plt.subplots(
        2, columns, figsize=(3.6 * columns, 6.4), sharex=True, layout="tight"
    )
    for axis, case in zip(axes.flat, cases, strict=False):
        here = [r for r in rows if (r["level"], r["optimiser"], r["rate"]) == case]
        scaled = series([r for r in here if not r["control"]], "kind", "iteration", "performance")
        clipped = [r for r in here if r["control"] == "gradient clipping"]
        for number, (kind, (x, y)) in enumerate(scaled.items()):
            axis.plot(x, y, color=f"C{number}", label=kind, linewidth=1.3)
        for kind, (x, y) in series(clipped, "kind", "iteration", "performance").items():
            color = f"C{list(scaled).index(kind)}"
            axis.plot(x, y, color=color, linestyle="--", linewidth=0.9)
        axis.set_title(f"{case[0]}, {case[1]}, step {case[2]}", fontsize=10)
        axis.grid(alpha=0.3)
    for axis in axes[:, 0]:
        axis.set_ylabel("performance over the optimum")
    for axis in axes[-1]:
        axis.set_xlabel("iteration")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    handles.append(Line2D([], [], color="0.4", linestyle="--", linewidth=0.9))
    labels.append("gradient clipping at equal mean step")
    figure.legend(
        handles, labels, fontsize=9, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=7
    )
    return save(figure, directory / "curves")


if __name__ == "__main__":
    redraw(__doc__, draw)
