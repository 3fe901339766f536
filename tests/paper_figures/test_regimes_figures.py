"""Figures of the regimes experiment from tables written by hand."""

import csv

import pytest
from matplotlib import pyplot as plt

from paper_figures import files, regimes

FAMILY = {"family": "a", **{column: 0.5 + place for place, column in enumerate(regimes.BARS)}}


def write(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def cell(name, task, luck, ratio, within):
    return {
        "turns": 5, name: task, "luck": luck,
        **{column: ratio for column in regimes.PANELS},
        "mean_within": within, "rtpo_threshold": 1 / 3,
        "fork_within": within, "fork_threshold": 0.45,
    }  # fmt: skip


@pytest.fixture
def run(tmp_path):
    write(tmp_path / "families.csv", [FAMILY, {**FAMILY, "family": "b"}])
    for name, column in (("phase_map_1", "luck_after"), ("phase_map_2", "critical")):
        # Rows out of order: luck 2 first; open share .8, .4, .1 at luck 0, 1, 2.
        shares = {0.0: 0.8, 1.0: 0.4, 2.0: 0.1}
        rows = [
            cell(column, task, luck, 2.0**luck * task, shares[luck])
            for task in (1, 2)
            for luck in (2.0, 0.0, 1.0)
        ]
        write(tmp_path / f"{name}.csv", rows)
    return tmp_path


def test_draw_writes_both_figures_twice(run):
    before = plt.get_fignums()
    assert regimes.draw(run) == [run / "families.png", run / "phase_maps.png"]
    for name in ("families", "phase_maps"):
        assert (run / f"{name}.png").stat().st_size > 5_000
        assert (run / f"{name}.pdf").exists()
    assert plt.get_fignums() == before


def test_cells_are_sorted_by_luck(run):
    rows = files.read_table(run, "phase_map_2")
    values, tasks, luck = regimes._table(rows, "critical", "rtpo_4")
    assert tasks == [(5, 1), (5, 2)] and luck == [0.0, 1.0, 2.0]
    assert values.tolist() == [[1.0, 2.0, 4.0], [2.0, 4.0, 8.0]]


@pytest.mark.parametrize(("rule", "place"), [("rtpo", 1.5), ("fork", 0.5)])
def test_frontiers_stand_where_the_share_passes_the_threshold(run, rule, place):
    """Shares .8, .4, .1: above 1/3 twice, above .45 once."""
    rows = files.read_table(run, "phase_map_1")
    figure, axis = plt.subplots()
    regimes._frontier(axis, rows, "luck_after", rule)
    assert [line.get_xdata().tolist() for line in axis.lines] == [[place, place]] * 2
    plt.close(figure)
