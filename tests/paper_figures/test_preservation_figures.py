"""One panel per broken assumption, from a table written here."""

import csv

from matplotlib import pyplot as plt

from paper_figures import preservation


def make_run(directory, axes=("rewards", "forks")):
    rows = [
        {"axis": axis, "level": level, "method": method, "data": data, "closed": 1 - level,
         "half_width": 0.1, "lowering": level / 2, "worst fall": 0.0}
        for axis in axes for level in (0.0, 0.5, 1.0)
        for method in preservation.COLORS for data in ("exact", "sampled")
    ]  # fmt: skip
    with open(directory / "preservation.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def test_panels_hold_the_numbers_of_the_table(tmp_path, monkeypatch):
    make_run(tmp_path)
    kept = []
    with monkeypatch.context() as patch:
        patch.setattr(plt, "close", kept.append)
        preservation.draw(tmp_path)
    (figure,) = kept
    assert len(figure.axes) == 4
    for axis, expected in ((figure.axes[0], [1.0, 0.5, 0.0]), (figure.axes[2], [0.0, 0.25, 0.5])):
        assert len(axis.lines) == 2 * len(preservation.COLORS)
        for line in axis.lines:
            assert list(line.get_xdata()) == [0.0, 0.5, 1.0]
            assert list(line.get_ydata()) == expected
    plt.close(figure)
    assert (tmp_path / "preservation.pdf").read_bytes().startswith(b"%PDF")


def test_every_axis_has_a_title(tmp_path):
    make_run(tmp_path, tuple(preservation.TITLES))
    assert preservation.draw(tmp_path) == [tmp_path / "preservation.png"]
    assert (tmp_path / "preservation.png").read_bytes().startswith(b"\x89PNG")
