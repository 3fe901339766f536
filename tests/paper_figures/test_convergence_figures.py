"""The figures of Theorem 1 from made-up tables."""

import csv

import numpy as np

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
    convergence.draw(tmp_path)
    for name in ("convergence_learning", "convergence_updates"):
        for suffix in ("png", "pdf"):
            assert (tmp_path / f"{name}.{suffix}").stat().st_size > 5000, name


def test_series_keep_order_and_numbers(tmp_path):
    tables(tmp_path)
    rows = convergence.load(tmp_path, "siblings")
    found = convergence.series(rows, "siblings", "sweep", "mean_gap")
    assert list(found) == ["2", "8"]
    np.testing.assert_allclose(found["8"], [[0, 1], [1, 0.5], [2, 0.25], [3, 0.125]])
