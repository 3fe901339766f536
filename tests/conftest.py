"""Strictness for every test: rank promotion raises, float64 only where exactness is the point."""

from pathlib import Path

import jax
import pytest

import tabular  # noqa: F401  (turns on float64 for the process; what follows turns it off again)

jax.config.update("jax_enable_x64", False)
jax.config.update("jax_numpy_rank_promotion", "raise")

# Benchmark files are read where somebody put them beside the checkout; the project ships none.
_DATA = Path(__file__).parents[2] / "shared" / "data"
_FLOAT64 = ("tests/tabular", "tests/test_bridge", "tests/experiments/theory")


@pytest.fixture(autouse=True)
def _precision(request):
    """Run tabular and bridge tests in float64, everything else in JAX's default float32."""
    exact = any(part in str(request.node.path) for part in _FLOAT64)
    with jax.enable_x64(exact):
        yield


@pytest.fixture
def gsm8k_test():
    """Path of the GSM8K test questions; the test is skipped where they are not there."""
    path = _DATA / "gsm8k" / "test.jsonl"
    if not path.exists():
        pytest.skip(f"needs {path}")
    return path
