"""Aggregation over seeds against numbers worked out by hand."""

import math

import pytest

from paper_figures import seeds
from paper_figures.comparison import half_width


def write_run(directory, success, method="M"):
    directory.mkdir()
    (directory / "table.csv").write_text(f"method,success\n{method},{success}\n")
    return directory


def test_mean_and_student_interval_by_hand(tmp_path):
    """Values 1, 2, 3: mean 2, deviation 1, error 1/sqrt(3), t(0.975, 2) = 4.3027."""
    runs = [write_run(tmp_path / str(i), i) for i in (1, 2, 3)]
    (row,) = seeds.write(tmp_path / "out" / "all.csv", runs)
    assert row["mean"] == 2 and row["runs"] == 3
    assert abs(row["half_width"] - 4.30265 / math.sqrt(3)) < 1e-4
    assert "M,success,2.0" in (tmp_path / "out" / "all.csv").read_text()


def test_one_run_has_no_interval(tmp_path):
    (row,) = seeds.write(tmp_path / "one.csv", [write_run(tmp_path / "a", 0.5)])
    assert row["mean"] == 0.5 and math.isnan(row["half_width"])


def test_unlike_runs_are_refused(tmp_path):
    runs = [write_run(tmp_path / "a", 1), write_run(tmp_path / "b", 1, method="other")]
    with pytest.raises(ValueError, match="2 runs differ"):
        seeds.write(tmp_path / "x.csv", runs)


def test_wilson_interval_by_hand():
    """p = 0.5, n = 100: 1.96 sqrt(0.0025 + 3.8416 / 40000) / (1 + 0.038416) = 0.09617."""
    assert abs(half_width(0.5, 100) - 0.09617) < 1e-5
    assert half_width(1.0, 100) > 0
