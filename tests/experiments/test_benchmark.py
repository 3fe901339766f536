"""The benchmark runs and its counts of operations are those of the shapes."""

import pytest

from experiments import benchmark
from rtpo_jax.models import TransformerConfig


def test_a_small_benchmark_reports_every_loop():
    config = benchmark.BenchmarkConfig(repetitions=1, rows=8, context=4, new_tokens=2)
    rows = benchmark.run(config)
    assert [row["what"] for row in rows] == ["matrix product", "decode", "update"]
    assert rows[0]["gflops"] > 0 and rows[0]["share_of_peak"] == 1.0
    assert 0 < rows[2]["share_of_peak"] < 1


def test_operations_per_token_by_hand():
    """One layer, hidden 4, one head of 2, SwiGLU 8, vocabulary 10: 2 flops a matrix parameter."""
    config = TransformerConfig(10, 1, 4, 1, 1, 2, 8)
    matrices = 4 * 2 * 4 + 3 * 4 * 8 + 10 * 4  # q, k, v, out; gate, up, down; head
    assert config.flops_per_token(0) == 2 * matrices
    assert config.flops_per_token(5) == 2 * matrices + 4 * 2 * 5


def test_impossible_sizes_are_refused():
    with pytest.raises(ValueError, match="rows=0"):
        benchmark.BenchmarkConfig(rows=0)
