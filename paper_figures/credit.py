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
        "wrong": "wrong sign, A and estimate not 0",
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
                axis.set_ylabel(label, fontsize=9)
        axes[0, place].set_title(name, fontsize=11)
        axes[-1, place].set_xlabel("turn")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(
        handles, labels, fontsize=9, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=4,
        handlelength=3.5,
    )  # fmt: skip
    return save(figure, directory / "credit_by_turn")


def phase(directory: Path) -> Path:
    """Where siblings are better: equal rollouts on the left, equal generated turns on the right.

    The right has a row of panels for each time of the luck and a column for each number of siblings.
    """
    rollouts, turns = read_table(directory, "equal_rollouts"), read_table(directory, "equal_turns")
    lucks = list(dict.fromkeys(row["luck"] for row in turns))
    counts = sorted({int(row["num_siblings"]) for row in turns})
    horizons = sorted({int(row["horizon"]) for row in turns})
    figure = plt.figure(figsize=(4.2 + 2.3 * len(counts), 2.6 * len(lucks) + 0.8))
    left, right = figure.subfigures(1, 2, width_ratios=(4.2, 2.3 * len(counts)))
    _rollouts(left.subplots(gridspec_kw={"left": 0.17, "bottom": 0.14, "top": 0.9}), rollouts)
    axes = right.subplots(
        len(lucks), len(counts), sharex=True, sharey=True, squeeze=False,
        gridspec_kw={"right": 0.86, "bottom": 0.14, "top": 0.9, "hspace": 0.25, "wspace": 0.12},
    )  # fmt: skip
    for line, luck in zip(axes, lucks, strict=True):
        for axis, count in zip(line, counts, strict=True):
            own = [r for r in turns if (r["luck"], int(r["num_siblings"])) == (luck, count)]
            mesh = _turns(axis, own, horizons)
            axis.set_title(f"luck {luck}, n = {count}", fontsize=9)
        line[0].set_ylabel("turns K")
    for axis in axes[-1]:
        axis.set_xlabel("upstream share after luck", fontsize=9)
    bar = right.add_axes((0.89, 0.14, 0.02, 0.76))
    figure.colorbar(mesh, cax=bar, label="log2 (turns for episodes / for siblings)")
    handles, labels = axes[0, -1].get_legend_handles_labels()
    right.legend(handles, labels, fontsize=9, loc="lower center", ncols=3, frameon=False)
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
    axis.set_title("equal rollouts", fontsize=10)
    axis.legend(fontsize=8, loc="lower left")
    axis.figure.colorbar(mesh, ax=axis, label="log2 ratio of squared correlations")


def _turns(axis, rows, horizons):
    """Colour: exact ratio on the log2 scale, a line a horizon; where it is 1, and the rules are."""
    share, horizon, exact, rule, finite = (
        np.array([float(row[name]) for row in rows])
        for name in ("upstream_share", "horizon", "all_turns", "rule", "rule_finite")
    )
    for place, k in enumerate(horizons):
        if k not in horizon:
            continue  # no turn for the luck to come half-way
        # Shares below what the lock itself has were raised to that, so some come twice.
        own, first = np.unique(share[horizon == k], return_index=True)
        colours = np.log2(exact[horizon == k])[first][None]
        mesh = axis.pcolormesh(_edges(own), [place - 0.5, place + 0.5], colours,
                               cmap="RdBu", vmin=-2, vmax=2)  # fmt: skip
    for values, style, label in ((exact, "k-", "exact ratio 1"), (rule, "k:", "2/((K+1) mean w) = 1"),
                                 (finite, "k--", "the rule with group sizes = 1")):  # fmt: skip
        points = [_crossing(share[horizon == k], values[horizon == k]) for k in horizons]
        axis.plot(points, range(len(horizons)), style, linewidth=1.2, label=label)
    axis.set_yticks(range(len(horizons)), horizons)
    axis.set_xticks([0, 0.5, 1], ["0", ".5", "1"])
    axis.set(xlim=(0, 1), ylim=(-0.5, len(horizons) - 0.5))
    return mesh


def _edges(middles):
    """Edges [N + 1] of cells around ascending numbers [N]."""
    inner = (middles[1:] + middles[:-1]) / 2
    return np.concatenate([middles[:1], inner, middles[-1:]]) if len(middles) > 1 else [0.0, 1.0]


def _crossing(share, values):
    """Share at which values, increasing with it, reach 1, by interpolation; NaN if they do not."""
    order = np.argsort(share)
    share, values = share[order], np.log(values[order])
    if not values.size or values[0] > 0 or values[-1] < 0:
        return np.nan
    return float(np.interp(0.0, values, share))


if __name__ == "__main__":
    redraw(__doc__, draw)
