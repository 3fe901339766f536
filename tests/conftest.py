"""Strictness for every test: rank promotion raises, float64 only where exactness is the point.

Theorems are also tested on instances that nobody has seen: `FRESH_SEED` is drawn for every run and
printed in its first lines; the same value in the environment repeats them.
"""

import os
import secrets
from pathlib import Path

import jax
import pytest

import tabular  # noqa: F401  (turns on float64 for the process; what follows turns it off again)

jax.config.update("jax_enable_x64", False)
jax.config.update("jax_numpy_rank_promotion", "raise")

# Set before any test module is read; parallel workers inherit it.
os.environ.setdefault("FRESH_SEED", str(secrets.randbits(32)))

# Benchmark files are read where somebody put them beside the checkout; the project ships none.
_DATA = Path(__file__).parents[2] / "shared" / "data"
_FLOAT64 = ("tests/tabular", "tests/test_bridge", "tests/experiments/theory")


def pytest_report_header():
    """Say which instances this run draws."""
    return f"FRESH_SEED={os.environ['FRESH_SEED']}"


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
