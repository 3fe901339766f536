"""Figures of the drift experiment from tables written by hand."""

import csv
import itertools

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


def test_figures_are_drawn(tmp_path):
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
    figures = ("horizon", "clamp", "sharing")
    assert drift.draw(tmp_path) == [tmp_path / f"{name}.png" for name in figures]
    found = sizes(tmp_path)
    assert set(found) == {f"{n}.{e}" for n in figures for e in ("png", "pdf")}
    assert all(size > 1000 for size in found.values())
