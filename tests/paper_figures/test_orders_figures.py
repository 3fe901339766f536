"""Figures of update order and normalisation, from tables written here."""

import csv

import pytest
from matplotlib import pyplot as plt

from paper_figures import orders


def write(path, rows):
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def order_run(directory):
    curves = [
        {"update": update, "method": method, "order": order, "sweep": sweep, "closed": sweep / 2,
         "half_width": 0.1, "worst": 0.0, "arrived": sweep / 2}
        for update in ("greedy", "clipped")
        for method, order in (("SeeUPO", "reverse"), ("SeeUPO", "natural"), ("RTPO", "reverse"),
                              ("group PPU, all at once", "none"))
        for sweep in range(3)
    ]  # fmt: skip
    write(directory / "curves.csv", curves)
    steps = [{"learning rate": r, "gain": r, "order effect": r**2} for r in (0.5, 1.0)]
    write(directory / "small_steps.csv", steps)
    turns = [
        {"sequential turns": m, "updates a sweep": m + 1, "gap": 0.1 / (m + 1)} for m in (0, 1)
    ]
    write(directory / "last_turns.csv", turns)


def normalization_run(directory):
    curves = [
        {"step": step, "groups": groups, "normalisation": name, "iteration": i,
         "performance": 0.1 * i, "half_width": 0.01}
        for step in ("equal length", "equal rate") for groups in ("a", "b")
        for name in orders.NORMALISATIONS for i in range(3)
    ]  # fmt: skip
    write(directory / "curves.csv", curves)
    rows = [{"real share": s, "scale with placeholders": s, "sign changed": 1 - s,
             "clipped gain kept": 1.0} for s in (1.0, 0.5)]  # fmt: skip
    write(directory / "placeholders.csv", rows)


@pytest.mark.parametrize(
    ("make", "draw", "names"),
    [
        (order_run, orders.draw, ["orders", "order_effect"]),
        (normalization_run, orders.draw_normalization, ["normalization", "placeholders"]),
    ],
)
def test_figures_are_written_from_the_tables_alone(make, draw, names, tmp_path):
    make(tmp_path)
    assert draw(tmp_path) == [tmp_path / f"{name}.png" for name in names]
    for name in names:
        for kind, start in (("png", b"\x89PNG"), ("pdf", b"%PDF")):
            assert (tmp_path / f"{name}.{kind}").read_bytes().startswith(start)


def test_lines_are_the_numbers_of_the_table(tmp_path, monkeypatch):
    kept = {}
    monkeypatch.setattr(orders, "save", lambda figure, stem: kept.update({stem.name: figure}))
    order_run(tmp_path)
    orders.draw(tmp_path)
    axes = kept["orders"].axes
    assert len(axes) == 6
    for line in axes[2].lines:
        assert list(line.get_xdata()) == [0, 1, 2] and list(line.get_ydata()) == [0.0, 0.5, 1.0]
    assert [line.get_label() for line in axes[0].lines] == [
        "reverse", "natural", "all at once"]  # fmt: skip
    for figure in kept.values():
        plt.close(figure)


@pytest.mark.parametrize(
    ("make", "first"), [(order_run, "orders"), (normalization_run, "normalization")]
)
def test_the_tables_say_which_run_it_is(make, first, tmp_path):
    make(tmp_path)
    assert orders.draw_either(tmp_path)[0] == tmp_path / f"{first}.png"
