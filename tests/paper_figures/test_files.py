"""Reading tables, saving figures and the command line that all figure modules share."""

import csv
import runpy
import sys

import matplotlib
import numpy as np
import pytest
from matplotlib import image
from matplotlib import pyplot as plt

from paper_figures import files


def test_a_table_is_read_as_text_in_its_order(tmp_path):
    rows = [{"name": "b, c", "value": "2"}, {"name": "a", "value": "nan"}]
    with (tmp_path / "numbers.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["name", "value"])
        writer.writeheader()
        writer.writerows(rows)
    assert files.read_table(tmp_path, "numbers") == rows


def test_a_missing_table_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"curves\.csv does not exist: give the folder"):
        files.read_table(tmp_path, "curves")


@pytest.mark.parametrize("text", ["", "sweep,gap\n"])
def test_an_empty_table_is_refused(text, tmp_path):
    (tmp_path / "curves.csv").write_text(text)
    with pytest.raises(ValueError, match=r"curves\.csv has no rows: run the experiment again"):
        files.read_table(tmp_path, "curves")


def test_series_are_sorted_by_x():
    rows = [
        {"mode": "b", "n": "10", "v": "5"},
        {"mode": "a", "n": "3", "v": "1"},
        {"mode": "b", "n": "9", "v": "6"},
    ]
    found = files.series(rows, "mode", "n", "v")
    assert list(found) == ["b", "a"]
    np.testing.assert_array_equal(found["b"], [[9, 10], [6, 5]])
    np.testing.assert_array_equal(found["a"], [[3], [1]])


def test_lines_have_the_numbers_and_a_colour_by_place():
    figure, axis = plt.subplots()
    files.lines(axis, {"a": np.array([[0, 1], [2, 3]]), "b": ([4], [5])}, marker="o")
    assert [line.get_label() for line in axis.lines] == ["a", "b"]
    assert [line.get_color() for line in axis.lines] == ["C0", "C1"]
    assert axis.lines[0].get_xydata().tolist() == [[0, 2], [1, 3]]
    assert axis.lines[1].get_marker() == "o"
    plt.close(figure)


def test_both_formats_are_written_and_the_figure_is_closed(tmp_path):
    figure, axis = plt.subplots(figsize=(4, 3))
    axis.plot([0, 1], [0, 1])
    png = files.save(figure, tmp_path / "rate_0.5")
    assert png == tmp_path / "rate_0.5.png"
    assert (tmp_path / "rate_0.5.pdf").read_bytes().startswith(b"%PDF")
    assert image.imread(png).std() > 0.01
    assert not plt.fignum_exists(figure.number)


def test_what_lies_outside_the_figure_is_kept(tmp_path):
    heights = []
    for place in (0.5, 1.5):
        figure, axis = plt.subplots(figsize=(2, 2))
        axis.text(0.5, place, "here", transform=axis.transAxes)
        heights.append(image.imread(files.save(figure, tmp_path / f"at_{place}")).shape[0])
    assert 160 * 1.7 < heights[0] < 160 * 2.1  # inches at 160 dpi, within the margin
    assert heights[1] > heights[0] + 50


def test_redraw_prints_what_was_drawn(tmp_path, capsys, monkeypatch):
    seen = []

    def draw(directory):
        seen.append(directory)
        return [directory / "a.png", directory / "b.png"]

    files.redraw("text", draw, [str(tmp_path)])
    monkeypatch.setattr(sys, "argv", ["module", str(tmp_path)])
    files.redraw("text", draw)
    assert seen == [tmp_path, tmp_path]
    assert capsys.readouterr().out == f"{tmp_path / 'a.png'}\n{tmp_path / 'b.png'}\n" * 2


def test_redraw_without_a_run_explains_itself(capsys):
    with pytest.raises(SystemExit):
        files.redraw("Figures of a run.", list, [])
    assert "run" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        files.redraw("Figures of a run.\n\n    a command", list, ["--help"])
    assert "Figures of a run.\n\n    a command\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    "name",
    ["clipping", "convergence", "credit", "drift", "guarantees", "orders", "preservation",
     "regimes"],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
def test_every_module_is_a_command_that_asks_for_a_run(name, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", [name, str(tmp_path)])
    with pytest.raises(ValueError, match="does not exist: give the folder of a finished run"):
        runpy.run_module(f"paper_figures.{name}", run_name="__main__")
    plt.close("all")


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
def test_drawing_needs_no_screen_whatever_was_chosen_before():
    matplotlib.use("svg")
    runpy.run_module("paper_figures.files")
    assert matplotlib.get_backend().lower() == "agg"
