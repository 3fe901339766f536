"""Draw what the experiments on update order and on normalisation wrote: SeeUPO, Tables 4 and 5.

    python -m paper_figures.orders results/update_order_tabular/RUN
    python -m paper_figures.orders results/normalization_tabular/RUN

Reads the csv files of a run, computes nothing, writes PNG and PDF beside them.
"""

from pathlib import Path

from matplotlib import pyplot as plt

from paper_figures.files import read_table, redraw, save

COLORS = {"reverse": "#1b6ca8", "natural": "#c8553d", "random": "#7a7a7a", "none": "#2a2a2a"}
NORMALISATIONS = {"none": "#1b6ca8", "batch": "#3f8f4f", "group": "#c8553d"}


def draw(directory: Path) -> list[Path]:
    """Figures of `update_order_tabular`: curves and arrivals by order, and what small steps leave."""
    rows = read_table(directory, "curves")
    methods = list(dict.fromkeys(row["method"] for row in rows if row["order"] in COLORS))
    methods = [method for method in methods if "at once" not in method]
    figure, axes = plt.subplots(
        3, len(methods), figsize=(11, 9), sharex="row", sharey="row", layout="tight"
    )
    for column, method in enumerate(methods):
        for row, (update, quantity) in enumerate(
            (("greedy", "arrived"), ("clipped", "closed"), ("clipped", "arrived"))
        ):
            axis = axes[row, column]
            _lines(axis, [r for r in rows if r["update"] == update], method, quantity)
            axis.set_title(f"{method}, {update}", fontsize=9)
    axes[0, 0].set_ylabel("MDPs with 95 % of the gap closed")
    axes[1, 0].set_ylabel("share of the gap closed")
    axes[2, 0].set_ylabel("MDPs with 95 % of the gap closed")
    for axis in axes[-1]:
        axis.set_xlabel("sweeps")
    axes[0, 0].legend(fontsize=8, loc="lower right")
    effect, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="tight")
    _small_steps(axes[0], read_table(directory, "small_steps"))
    _last_turns(axes[1], read_table(directory, "last_turns"))
    return [save(figure, directory / "orders"), save(effect, directory / "order_effect")]


def draw_normalization(directory: Path) -> list[Path]:
    """Figures of `normalization_tabular`: learning curves and what placeholders do."""
    rows = read_table(directory, "curves")
    steps = list(dict.fromkeys(row["step"] for row in rows))
    sizes = list(dict.fromkeys(row["groups"] for row in rows))
    figure, axes = plt.subplots(
        len(steps),
        len(sizes),
        figsize=(4 * len(sizes), 3.2 * len(steps)),
        sharey=True,
        layout="tight",
    )
    for i, step in enumerate(steps):
        for j, size in enumerate(sizes):
            axis = axes[i, j]
            here = [r for r in rows if (r["step"], r["groups"]) == (step, size)]
            for name, color in NORMALISATIONS.items():
                line = [r for r in here if r["normalisation"] == name]
                _band(axis, line, "iteration", "performance", name, color)
            axis.set_title(f"{step} step, {size}", fontsize=9)
            axis.set_xlabel("iteration")
    for axis in axes[:, 0]:
        axis.set_ylabel("performance")
    axes[0, 0].legend(fontsize=8)
    filled, axis = plt.subplots(figsize=(5, 3.4), layout="tight")
    rows = read_table(directory, "placeholders")
    share = [float(r["real share"]) for r in rows]
    for name in ("scale with placeholders", "sign changed", "clipped gain kept"):
        axis.plot(share, [float(r[name]) for r in rows], "o-", label=name)
    axis.set(xlabel="share of chains that reach the turn", ylabel="share, against masked or none")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    return [save(figure, directory / "normalization"), save(filled, directory / "placeholders")]


def _lines(axis, rows, method, quantity):
    for order, color in COLORS.items():
        if order == "none":
            line = [r for r in rows if "at once" in r["method"]]
        else:
            line = [r for r in rows if r["method"] == method and r["order"] == order]
        if not line:
            continue
        label = "all at once" if order == "none" else order
        style = "--" if order == "none" else "-"
        if quantity == "closed":
            _band(axis, line, "sweep", "closed", label, color, style)
        else:
            x = [int(r["sweep"]) for r in line]
            axis.plot(x, [float(r[quantity]) for r in line], style, color=color, label=label)
    axis.grid(alpha=0.3)


def _band(axis, rows, across, quantity, label, color, style="-"):
    """A mean with its 95 % interval."""
    x = [int(r[across]) for r in rows]
    mean = [float(r[quantity]) for r in rows]
    half = [float(r["half_width"]) for r in rows]
    axis.plot(x, mean, style, color=color, label=label)
    low = [m - h for m, h in zip(mean, half, strict=True)]
    high = [m + h for m, h in zip(mean, half, strict=True)]
    axis.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
    axis.grid(alpha=0.3)


def _small_steps(axis, rows):
    rates = [float(r["learning rate"]) for r in rows]
    axis.loglog(rates, [float(r["gain"]) for r in rows], "o-", label="gain of a sweep")
    effect = [float(r["order effect"]) for r in rows]
    axis.loglog(rates, effect, "o-", label="reverse against all at once")
    axis.set_xticks(rates, [f"{rate:g}" for rate in rates])
    axis.xaxis.minorticks_off()
    axis.set_xlabel("step (logits per unit of reward)")
    axis.set_ylabel("performance")
    axis.legend(fontsize=8)
    axis.grid(alpha=0.3)


def _last_turns(axis, rows):
    turns = [int(r["sequential turns"]) for r in rows]
    for name in list(rows[0])[2:]:
        axis.plot(turns, [float(r[name]) for r in rows], "o-", label=name)
    axis.set_xticks(turns)
    axis.set_xlabel("last turns updated one by one")
    axis.set_ylabel("share of the gap left")
    axis.legend(fontsize=8)
    axis.grid(alpha=0.3)


def draw_either(directory: Path) -> list[Path]:
    """Figures of the experiment that the tables of the run belong to."""
    if (directory / "placeholders.csv").exists():
        return draw_normalization(directory)
    return draw(directory)


if __name__ == "__main__":
    redraw(__doc__, draw_either)
