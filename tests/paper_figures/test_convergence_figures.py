"""The figures of Theorem 1 from made-up tables."""

import csv

import numpy as np
from matplotlib import pyplot as plt

from paper_figures import convergence


def write(directory, name, rows):
    with (directory / f"{name}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def tables(directory):
    write(directory, "errors", [
        {"schedule": s, "turn": t, "samples": n, "rms_sup_error": n**-0.5}
        for s in ("1/i", "other") for t in (0, 1) for n in (64, 128)])  # fmt: skip
    write(directory, "step_sizes", [
        {"schedule": "c", "constant": c, "error2_over_variance": c, "predicted": c}
        for c in (0.1, 0.2, float("nan"))])  # fmt: skip
    write(directory, "learning_orders", [
        {"order": o, "passes": 1, "mean_loss": 0.1, "half_width": 0.01}
        for o in ("reverse", "natural")])  # fmt: skip
    for name, update in (
        ("sweep_curves", "maximiser, random"),
        ("ascent_curves", "ascent, uniform"),
    ):
        write(directory, name, [
            {"update": update, "order": o, "sweep": t, "mean_gap": 0.5**t}
            for o in ("reverse", "natural", "random", "simultaneous") for t in range(4)])  # fmt: skip
    write(directory, "siblings", [
        {"siblings": n, "sweep": t, "mean_gap": 0.5**t, "half_width": 0.01}
        for n in (2, 8) for t in range(4)])  # fmt: skip
    write(directory, "violations", [
        {"instance": "tied_states", "performance_limit": 0.6, "performance_best_of_class": 1,
         "performance_optimal": 1}])  # fmt: skip


def test_both_figures_are_drawn(tmp_path):
    tables(tmp_path)
    names = ("convergence_learning", "convergence_updates")
    assert convergence.draw(tmp_path) == [tmp_path / f"{name}.png" for name in names]
    for name in names:
        for suffix in ("png", "pdf"):
            assert (tmp_path / f"{name}.{suffix}").stat().st_size > 5000, name


def test_bands_belong_to_their_lines(tmp_path):
    rows = [
        {"siblings": n, "sweep": t, "mean_gap": 0.5**t, "half_width": 0.1 / int(n)}
        for n in ("2", "8")
        for t in (2, 0, 1)
    ]
    figure, axis = plt.subplots()
    convergence._siblings(axis, rows)
    for line, band, width in zip(axis.lines, axis.collections, (0.05, 0.0125), strict=True):
        assert line.get_xydata().tolist() == [[0, 1], [1, 0.5], [2, 0.25]]
        at_end = band.get_paths()[0].vertices
        heights = at_end[at_end[:, 0] == 2, 1]
        np.testing.assert_allclose((heights.min(), heights.max()), (0.25 - width, 0.25 + width))
    plt.close(figure)
