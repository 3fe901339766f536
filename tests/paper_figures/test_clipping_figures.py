"""Figures of the clipping experiment from tables written by hand."""

import csv
import itertools

from paper_figures import clipping


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
    assert clipping.draw(tmp_path) == [tmp_path / "ages.png", tmp_path / "curves.png"]
    found = sizes(tmp_path)
    assert set(found) == {f"{n}.{e}" for n in ("ages", "curves") for e in ("png", "pdf")}
    assert all(size > 1000 for size in found.values())
