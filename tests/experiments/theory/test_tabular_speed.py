"""The tabular benchmark: both computations agree, and disagreement is an error."""

import numpy as np
import pytest

from experiments import numpy_reference, tabular_speed


def test_both_computations_are_measured():
    rows = tabular_speed.run(num_mdps=32, repetitions=1)
    assert [row["what"] for row in rows] == ["exact values", "exact proximal update"]
    for row in rows:
        ratio = row["mdps_per_second"] / row["numpy_loop_mdps_per_second"]
        assert row["mdps"] == 32 and row["speed_up"] == pytest.approx(ratio)


def test_disagreement_is_refused(monkeypatch):
    exact = numpy_reference.performances
    monkeypatch.setattr(numpy_reference, "performances", lambda *a: exact(*a) + 1e-9)
    with pytest.raises(ArithmeticError, match="exact values"):
        tabular_speed.run(num_mdps=4, repetitions=1)
    monkeypatch.setattr(numpy_reference, "performances", lambda *a: exact(*a) * np.nan)
    with pytest.raises(ArithmeticError, match="nan"):
        tabular_speed.run(num_mdps=4, repetitions=1)
