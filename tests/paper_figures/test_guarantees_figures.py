"""The picture of the table of guarantees, from a csv written by hand."""

import csv

import pytest
from matplotlib import image
from matplotlib import pyplot as plt

from paper_figures import guarantees

VERDICTS = list(guarantees.COLOURS)


def rows():
    found = []
    for turns in ("single-turn", "multi-turn"):
        for place, verdict in enumerate(VERDICTS):
            for column in ("exact", "discount, discounted performance"):
                found.append(
                    {
                        "turns": turns,
                        "update": "PPU token" if place < 3 else "sequential",
                        "advantage": f"kind {place}",
                        "column": column,
                        "paper": ("yes", "no", "")[place % 3],
                        "verdict": verdict,
                        "basis": "theorem" if verdict == "holds" else "search",
                        "share_lowered": "" if verdict == "not run" else "0.0123",
                    }
                )
    return found


def write(path, table):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(table[0]))
        writer.writeheader()
        writer.writerows(table)


def test_writes_both_formats(tmp_path):
    write(tmp_path / "guarantees.csv", rows())
    assert guarantees.draw(tmp_path) == [tmp_path / "guarantees.png"]
    assert image.imread(tmp_path / "guarantees.png").std() > 0.05
    assert (tmp_path / "guarantees.pdf").read_bytes().startswith(b"%PDF")


def test_a_panel_shows_numbers_ticks_and_colours():
    figure, axis = plt.subplots()
    here = [row for row in rows() if row["turns"] == "multi-turn"]
    guarantees.panel(axis, here, "multi-turn")
    texts = [text.get_text() for text in axis.texts]
    assert texts.count("1.23") == 2 * (len(VERDICTS) - 2)
    assert texts.count(".") == 2  # proven
    assert texts.count("\u2713") == 2 and texts.count("\u2717") == 2
    grid = axis.images[0].get_array()
    assert grid.shape == (len(VERDICTS), 2)
    assert sorted(grid[:, 0].tolist()) == list(range(len(VERDICTS)))
    assert (grid[:, 0] == grid[:, 1]).all()
    plt.close(figure)


def test_updates_are_named_once_in_the_middle_of_their_lines():
    figure, axis = plt.subplots()
    guarantees._name_updates(axis, rows())
    places = {text.get_text(): text.xy[1] for text in axis.texts}
    last = len(VERDICTS) - 1
    assert places == {"PPU token": 1.0, "sequential": (3 + last) / 2}
    plt.close(figure)


def test_an_unknown_verdict_is_refused(tmp_path):
    table = rows()
    table[0]["verdict"] = "maybe"
    write(tmp_path / "guarantees.csv", table)
    with pytest.raises(ValueError, match="verdicts \\['maybe'\\]"):
        guarantees.read(tmp_path)
