"""Figures of the credit experiment from tables written by hand."""

import csv
import math

import numpy as np
import pytest
from matplotlib import pyplot as plt

from paper_figures import credit


def write(directory, name, rows):
    with (directory / f"{name}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


@pytest.fixture
def run(tmp_path):
    columns = {"squared_bias": 0.1, "variance": 0.2, "correlation_squared": 0.3, "wrong": "nan"}
    by_turn = [
        {"mdp": "lock", "turn": turn, "group": group, "size": size, **columns}
        for group, size in (("siblings", 2), ("episodes", 2), ("episodes", 3))
        for turn in range(3)
    ]
    rollouts = [
        {"upstream_share": s, "group_size": g, "correlation_ratio": r, "boundary_share": 0.1}
        for s, g, r in ((0.1, 3, 0.5), (0.1, 4, 1.0), (0.5, 3, 1.5), (0.5, 4, 2.0))
    ]
    turns = [
        {"horizon": k, "luck": luck, "num_siblings": 2, "upstream_share": share,
         "all_turns": 0.5 + share, "rule": 0.6 + share, "rule_finite": 0.4 + share}
        for k in (2, 4) for luck in ("after turn 0", "half-way") for share in (0.1, 0.9)
    ]  # fmt: skip
    write(tmp_path, "by_turn", by_turn)
    write(tmp_path, "equal_rollouts", rollouts)
    write(tmp_path, "equal_turns", turns)
    return tmp_path


def test_both_figures_are_drawn(run):
    names = ("credit_by_turn", "credit_phase")
    assert credit.draw(run) == [run / f"{name}.png" for name in names]
    for name in names:
        for ending in ("png", "pdf"):
            assert (run / f"{name}.{ending}").stat().st_size > 5000


def test_crossing_is_interpolated_on_the_log_scale():
    assert credit._crossing(np.array([0.8, 0.2]), np.array([2.0, 0.5])) == pytest.approx(0.5)
    assert math.isnan(credit._crossing(np.array([0.2, 0.8]), np.array([0.2, 0.5])))
    assert math.isnan(credit._crossing(np.array([0.2, 0.8]), np.array([1.2, 1.5])))


def test_lines_of_a_panel_stand_at_their_horizon_also_where_one_is_missing():
    rows = [
        {"horizon": 4, "upstream_share": share, "all_turns": ratio, "rule": 0.1, "rule_finite": 0.1}
        for share, ratio in ((0.2, 0.5), (0.8, 2.0), (0.2, 0.5))
    ]
    figure, axis = plt.subplots()
    mesh = credit._turns(axis, rows, [2, 4])
    assert [label.get_text() for label in axis.get_yticklabels()] == ["2", "4"]
    x, y = axis.lines[0].get_data()
    assert math.isnan(x[0]) and x[1] == pytest.approx(0.5) and list(y) == [0, 1]
    np.testing.assert_allclose(mesh.get_array().ravel(), [-1, 1])
    np.testing.assert_allclose(mesh.get_coordinates()[0, :, 0], [0.2, 0.5, 0.8])
    assert set(mesh.get_coordinates()[..., 1].ravel()) == {0.5, 1.5}
    plt.close(figure)
