"""Figures of `theorem_drift`, from the csv files of a run alone.

    python -m paper_figures.drift results/theorem_drift/RUN

Error of continuation estimates against the turns that follow (`horizon`) and against the clamp
(`clamp`), and what stages with shared parameters do to other turns (`sharing`).
"""

from pathlib import Path

from matplotlib import pyplot as plt

from paper_figures.files import lines, read_table, redraw, save, series


def draw(directory: Path) -> list[Path]:
    """All figures of a run; returns the png files."""
    return [horizon(directory), clamp(directory), sharing(directory)]


def horizon(directory: Path) -> Path:
    """Variance and bias of every mode against the turns that follow, one column a world."""
    rows = read_table(directory, "horizon")
    worlds = list(dict.fromkeys(row["world"] for row in rows))
    figure, axes = plt.subplots(
        2, len(worlds), figsize=(4.8 * len(worlds), 6), sharex=True, layout="tight"
    )
    for column, world in enumerate(worlds):
        here = [row for row in rows if row["world"] == world]
        for axis, name in zip(axes[:, column], ("mean_variance", "mean_abs_bias"), strict=True):
            # No mark where a mode has no error at all: its logarithm is not a number to draw.
            some = [row for row in here if float(row[name]) > 1e-12]
            modes = list(dict.fromkeys(row["mode"] for row in here))
            found = series(some, "mode", "remaining_turns", name)
            lines(axis, {mode: found.get(mode, ([], [])) for mode in modes})
            axis.set(yscale="log", ylabel=name.replace("_", " "))
        axes[0, column].set_title(world)
        axes[1, column].set_xlabel("turns that follow")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(
        handles, labels, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=4
    )
    return save(figure, directory / "horizon")


def clamp(directory: Path) -> Path:
    """Bias, standard deviation and their root of squares against the upper clamp."""
    rows = read_table(directory, "clamp")
    width = [float(row["clamp_high"]) for row in rows]
    curves = {
        "mean |bias|": [float(row["mean_abs_bias"]) for row in rows],
        "root of mean variance": [float(row["mean_variance"]) ** 0.5 for row in rows],
        "root mean squared error": [float(row["rmse"]) for row in rows],
    }
    figure, axis = plt.subplots(figsize=(5.2, 3.8), layout="tight")
    lines(axis, {name: (width, y) for name, y in curves.items()}, marker="o", markersize=3)
    turns = rows[0]["remaining_turns"]
    axis.set(xscale="log", yscale="log", xlabel="c, weight clamped to [1/c, c]",
             ylabel="units of reward", title=f"{turns} turns follow")  # fmt: skip
    axis.legend(frameon=False, fontsize=8)
    return save(figure, directory / "clamp")


def sharing(directory: Path) -> Path:
    """How far a stage masked to one turn moves later turns, and how stale its trunk states are."""
    rows = read_table(directory, "sharing")
    figure, axes = plt.subplots(1, 3, figsize=(10.5, 3.4), layout="tight")
    for axis, name, label in zip(
        axes,
        ("mean_downstream_tv", "mean_weight_variance", "mean_trunk_tv"),
        (
            "total variation of later turns",
            "Var omega after the stage",
            "total variation of trunk states",
        ),
        strict=True,
    ):
        lines(axis, series(rows, "class", "turn", name), marker="o", markersize=3)
        axis.set(xlabel="turn of the stage", ylabel=label)
    axes[0].legend(frameon=False, fontsize=8)
    return save(figure, directory / "sharing")


if __name__ == "__main__":
    redraw(__doc__, draw)
