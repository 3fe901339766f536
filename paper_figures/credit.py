"""Figures of `experiments.theorem_credit`, from the csv files of a run alone.

    python -m paper_figures.credit results/theorem_credit/RUN

draws bias and variance by turn (`credit_by_turn`) and the phase diagrams (`credit_phase`) as PNG and
PDF into the run's folder.
"""

from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt

from paper_figures.files import read_table, redraw, save

_STYLES = {"siblings": "-", "episodes": "--"}


def draw(directory: Path) -> list[Path]:
    """Draw both figures of a run into its folder; returns the png files."""
    return [by_turn(directory), phase(directory)]


def by_turn(directory: Path) -> Path:
    """Squared bias, variance, squared correlation and wrong signs of both groups, turn by turn."""
    rows = read_table(directory, "by_turn")
    names = list(dict.fromkeys(row["mdp"] for row in rows))
    columns = {
        "squared_bias": "squared bias",
        "variance": "variance",
        "correlation_squared": "squared correlation with A",
        "wrong": "wrong sign, given A and estimate not 0",
    }
    figure, axes = plt.subplots(
        len(columns),
        len(names),
        figsize=(3.4 * len(names), 9.5),
        squeeze=False,
        sharex="col",
        layout="tight",
    )
    for place, name in enumerate(names):
        own = [row for row in rows if row["mdp"] == name]
        sizes = sorted({int(row["size"]) for row in own if row["group"] == "siblings"})
        for axis, (column, label) in zip(axes[:, place], columns.items(), strict=True):
            for index, size in enumerate(sizes):
                for group, style in _STYLES.items():
                    line = [r for r in own if r["group"] == group and int(r["size"]) == size]
                    turns = [int(row["turn"]) for row in line]
                    values = [float(row[column]) for row in line]
                    axis.plot(
                        turns, values, style, color=f"C{index}", linewidth=1.2, marker=".",
                        label=f"{group}, {size}",
                    )  # fmt: skip
            axis.set_ylim(bottom=0)
            axis.grid(alpha=0.3)
            axis.xaxis.get_major_locator().set_params(integer=True)
            if place == 0:
                axis.set_ylabel(label, fontsize=8)
        axes[0, place].set_title(name, fontsize=9)
        axes[-1, place].set_xlabel("turn")
    axes[0, -1].legend(frameon=False, fontsize=6, ncols=2)
    return save(figure, directory / "credit_by_turn")


def phase(directory: Path) -> Path:
    """Where siblings are better: equal rollouts, then equal generated turns for each n and luck."""
    rollouts, turns = read_table(directory, "equal_rollouts"), read_table(directory, "equal_turns")
    panels = list(dict.fromkeys((row["luck"], row["num_siblings"]) for row in turns))
    num_columns = 1 + (len(panels) + 1) // 2
    figure, axes = plt.subplots(
        2, num_columns, figsize=(3.6 * num_columns, 6.5), squeeze=False, layout="tight"
    )
    _rollouts(axes[0, 0], rollouts)
    places = [*axes[0, 1:], *axes[1, 1:]]
    panels.sort(key=lambda panel: (panel[0], int(panel[1])))
    for axis, (luck, siblings) in zip(places, panels, strict=False):
        own = [r for r in turns if (r["luck"], r["num_siblings"]) == (luck, siblings)]
        mesh = _turns(axis, own)
        axis.set_title(f"luck {luck}, n = {siblings}", fontsize=8)
    for axis in places[len(panels) :]:
        axis.set_axis_off()
    axes[1, 0].set_axis_off()
    figure.colorbar(mesh, ax=axes[1, 0], label="log2 of turns episodes need / turns siblings need")
    return save(figure, directory / "credit_phase")


def _rollouts(axis, rows):
    """Colour: log2 ratio of squared correlations; line: the condition."""
    shares = sorted({float(row["upstream_share"]) for row in rows})
    sizes = sorted({int(row["group_size"]) for row in rows})
    grid = np.full((len(sizes), len(shares)), np.nan)
    for row in rows:
        place = sizes.index(int(row["group_size"])), shares.index(float(row["upstream_share"]))
        grid[place] = np.log2(float(row["correlation_ratio"]))
    positions = np.arange(len(sizes))
    mesh = axis.pcolormesh(shares, positions, grid, cmap="RdBu", vmin=-2, vmax=2, shading="nearest")
    edges = {int(row["group_size"]): float(row["boundary_share"]) for row in rows}
    axis.plot([edges[size] for size in sizes], positions, "k.-", label="share = 1/(G-1)^2")
    axis.set(xscale="log", xlabel="upstream share of the variance", ylabel="G (n = G - 1 siblings)")
    axis.set_yticks(positions, [str(size) for size in sizes])
    axis.set_title("equal rollouts: log2 ratio of squared correlations", fontsize=8)
    axis.legend(frameon=False, fontsize=7)
    axis.figure.colorbar(mesh, ax=axis)


def _turns(axis, rows):
    """Colour: exact ratio on the log2 scale; where it is 1, and where the rule says so."""
    share, horizon, exact, rule, finite = (
        np.array([float(row[name]) for row in rows])
        for name in ("upstream_share", "horizon", "all_turns", "rule", "rule_finite")
    )
    mesh = axis.scatter(
        share, np.log2(horizon), c=np.log2(exact), cmap="RdBu", vmin=-2, vmax=2, marker="s", s=45
    )
    for values, style, label in ((exact, "k-", "exact"), (rule, "k:", "2/((K+1) mean w)"),
                                 (finite, "k--", "with group sizes")):  # fmt: skip
        points = [
            (_crossing(share[horizon == k], values[horizon == k]), np.log2(k))
            for k in sorted(set(horizon))
        ]
        points = [point for point in points if np.isfinite(point[0])]
        if points:
            axis.plot(*zip(*points, strict=True), style, linewidth=1.2, label=label)
            axis.legend(fontsize=6, loc="lower left")
    ticks = sorted(set(horizon))
    axis.set_yticks(np.log2(ticks), [f"{k:.0f}" for k in ticks])
    axis.set(xlabel="upstream share after the luck", ylabel="turns K", xlim=(0, 1))
    return mesh


def _crossing(share, values):
    """Share at which values, increasing with it, reach 1, by interpolation; NaN if they do not."""
    order = np.argsort(share)
    share, values = share[order], np.log(values[order])
    if values[0] > 0 or values[-1] < 0:
        return np.nan
    return float(np.interp(0.0, values, share))


if __name__ == "__main__":
    redraw(__doc__, draw)
