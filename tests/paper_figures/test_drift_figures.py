"""The figures are drawn from csv files alone."""

import csv
import itertools

import pytest

from paper_figures import drift


def write(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def rows_of(**columns):
    """All combinations of the values of each column."""
    return [dict(zip(columns, row, strict=True)) for row in itertools.product(*columns.values())]


def sizes(directory):
    return {path.name: path.stat().st_size for path in directory.iterdir() if path.suffix != ".csv"}


def test_series_are_sorted_by_x():
    rows = [
        {"mode": "b", "n": "2", "v": "5"},
        {"mode": "a", "n": "3", "v": "1"},
        {"mode": "b", "n": "1", "v": "4"},
    ]
    assert drift.series(rows, "mode", "n", "v") == {"b": ([1, 2], [4, 5]), "a": ([3], [1])}


def test_figures_of_the_drift_experiment(tmp_path):
    numbers = {"mean_abs_bias": [0.1], "mean_variance": [0.2], "rmse": [0.5]}
    write(
        tmp_path / "horizon.csv",
        rows_of(
            world=["mixing", "lock"], mode=["fresh", "stale"], remaining_turns=[0, 1, 2], **numbers
        ),
    )
    write(tmp_path / "clamp.csv", rows_of(clamp_high=[1, 2], remaining_turns=[4], **numbers))
    names = ("mean_downstream_tv", "mean_weight_variance", "mean_trunk_tv")
    columns = {name: [0.1] for name in names}
    write(tmp_path / "sharing.csv", rows_of(**{"class": ["a", "b"]}, turn=[0, 1], **columns))
    drift.draw_drift(tmp_path)
    found = sizes(tmp_path)
    assert set(found) == {
        f"{n}.{e}" for n in ("horizon", "clamp", "sharing") for e in ("png", "pdf")
    }
    assert all(size > 1000 for size in found.values())


def test_figures_of_the_clipping_experiment(tmp_path, monkeypatch, capsys):
    ways = {"way": ["reused", "refreshed"], "pays": ["outcome", "every turn"]}
    write(
        tmp_path / "ages.csv",
        rows_of(level=["token", "turn_mean"], horizon=[2, 4], age=[0, 1], bias_norm=[0.1], **ways),
    )
    case = {"level": ["token"], "optimiser": ["sgd", "adam"], "rate": [1.0, 2.0]}
    controls = ["", "smaller step", "gradient clipping"]
    kinds = ["none", "relative"]
    write(
        tmp_path / "curves.csv",
        rows_of(**case, kind=kinds, control=controls, iteration=[0, 1], performance=[0.5]),
    )
    monkeypatch.setattr("sys.argv", ["drift", str(tmp_path)])
    drift.main()
    found = sizes(tmp_path)
    assert set(found) == {f"{n}.{e}" for n in ("ages", "curves") for e in ("png", "pdf")}
    assert all(size > 1000 for size in found.values())
    assert "curves.png" in capsys.readouterr().out


def test_a_run_without_its_tables_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="ages.csv"):
        drift.draw_clipping(tmp_path)
