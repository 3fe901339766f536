"""Checkpoints: whole or absent, typed keys included, and metrics files that are cut back."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rtpo_jax.training import Checkpoints, CompileCounter, MetricsFile, create_state
from rtpo_jax.training.metrics import Averages


def arrays(seed=0):
    params = {"w": jnp.arange(6.0).reshape(2, 3) + seed, "b": {"x": jnp.ones(4)}}
    return {"state": create_state(params, optax.adam(0.1)), "key": jax.random.key(seed)}


def test_round_trip_keeps_values_structure_and_the_next_random_draw(tmp_path):
    saved = arrays(3)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, saved, {"tokens": 12, "phase": "a"})
    loaded = Checkpoints(tmp_path).arrays(1, arrays())
    assert jax.tree.structure(loaded) == jax.tree.structure(saved)
    for a, b in zip(jax.tree.leaves(saved["state"]), jax.tree.leaves(loaded["state"]), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(
        jax.random.normal(saved["key"], (3,)), jax.random.normal(loaded["key"], (3,))
    )
    assert Checkpoints(tmp_path).position(1) == {"tokens": 12, "phase": "a"}


def test_only_the_newest_are_kept_and_numbers_only_grow(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    assert checkpoints.latest() is None
    for number in (1, 2, 3):
        checkpoints.save(number, arrays(number), {})
    assert checkpoints.latest() == 3
    assert sorted(int(p.name) for p in tmp_path.iterdir() if p.name.isdigit()) == [2, 3]
    with pytest.raises(ValueError, match="number=2"):
        checkpoints.save(2, arrays(), {})


def test_a_half_written_checkpoint_is_not_the_newest(tmp_path):
    Checkpoints(tmp_path).save(1, arrays(), {})
    (tmp_path / "2.orbax-checkpoint-tmp-0").mkdir()
    assert Checkpoints(tmp_path).latest() == 1


def test_metrics_file_is_cut_back_to_the_checkpoint(tmp_path):
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(path)
    for value in range(3):
        file.write(step=value)
    path.write_text(path.read_text() + '{"step": 3')  # killed in the middle of a line
    resumed = MetricsFile(path, keep_lines=2)
    resumed.write(step=9)
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [0, 1, 9]
    with pytest.raises(ValueError, match="expects 7"):
        MetricsFile(path, keep_lines=7)


def test_compile_counter_counts_new_programs_only():
    counter = CompileCounter()
    compiled = jax.jit(lambda x: x * 3 + 1)
    compiled(np.ones(3, np.float32))
    first = counter.count
    assert first >= 1
    compiled(np.zeros(3, np.float32))
    assert counter.count == first
    compiled(np.ones(4, np.float32))
    assert counter.count > first


def test_averages_weigh_sum_and_never_hide_a_nan():
    """Device 1: one token of value 3; device 2: three tokens of value 1. The mean is 1.5, not 2."""
    averages = Averages()
    averages.add_mean("kl", 3.0, 1)
    averages.add_mean("kl", 1.0, 3)
    averages.add_sum("tokens", 2)
    averages.add_sum("tokens", 3)
    for value in (1e-6, np.nan, 1e-5):
        averages.add_max("gap", value)
    results = averages.results()
    assert results["kl"] == 1.5 and results["tokens"] == 5 and np.isnan(results["gap"])
