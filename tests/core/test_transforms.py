"""Every public function compiles, batches under vmap and keeps the float dtype it is given.

Run: pytest tests/core/test_transforms.py
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rtpo_jax import core

IDS = np.array([0, 1, 0, -1])
TURN_IDS = np.array([[0, 0, -1, 1], [1, -1, -1, 0], [-1, -1, -1, -1], [0, 1, 1, 1]])
MASK = TURN_IDS >= 0
X = np.random.default_rng(0).uniform(0.1, 0.9, (3, 4, 4))
VALUES = np.random.default_rng(1).uniform(0.1, 0.9, (4, 5))

# name -> (function of float arrays, the float arrays)
CASES = {
    "clipped_surrogate": (lambda r, a: core.clipped_surrogate(r, a, 0.2, 0.3), X[:2]),
    "clipping_bias": (lambda r, a: core.clipping_bias(2 * r, a, 0.2, 0.3), X[:2]),
    "clipping_triggered_scale": (
        lambda g, c: core.clipping_triggered_scale(g, c, "relative"),
        X[:2, 0, 0],
    ),
    "discounted_returns": (lambda r, d: core.discounted_returns(r, d, mask=MASK), X[:2]),
    "entropy": (core.entropy, X[:1]),
    "gae": (lambda r, d, v: core.gae(r, d, v, 0.9, mask=MASK), (X[0], X[1], VALUES)),
    "group_relative": (lambda r: core.group_relative(r, IDS, 2, scale="group"), X[:1, 0]),
    "has_no_signal": (lambda r: core.has_no_signal(r, IDS, 2), X[:1, 0]),
    "importance_weighted": (core.importance_weighted, X[:2]),
    "is_clipped": (lambda r, a: core.is_clipped(r, a, 0.2, 0.3), X[:2]),
    "keep_top_entropy": (lambda e: core.keep_top_entropy(e, MASK, 0.3), X[:1]),
    "kl_estimate": (lambda p, q: core.kl_estimate(p, q, "k3"), X[:2]),
    "leave_one_out": (lambda r: core.leave_one_out(r, IDS, 2), X[:1, 0]),
    "ratios": (core.ratios, X[:1]),
    "sequence_mean_weights": (
        lambda p: core.sequence_mean_weights(MASK, row_weights=p),
        X[:1, 0],
    ),
    "sibling_relative": (lambda r: core.sibling_relative(r, TURN_IDS, 2), X[:1]),
    "to_tokens": (lambda x: core.to_tokens(x, TURN_IDS), X[:1]),
    "token_log_ratios": (lambda p, q: core.token_log_ratios(p, q, MASK), X[:2]),
    "token_mean_weights": (lambda p: core.token_mean_weights(MASK, row_weights=p), X[:1, 0]),
    "trajectory_log_ratios": (lambda x: core.trajectory_log_ratios(x, MASK, mean=True), X[:1]),
    "trajectory_mean_weights": (
        lambda p: core.trajectory_mean_weights(MASK, IDS, 2, row_weights=p),
        X[:1, 0],
    ),
    "turn_log_ratios": (lambda x: core.turn_log_ratios(x, TURN_IDS, 2, mean=True), X[:1]),
    "turn_mean_weights": (
        lambda p: core.turn_mean_weights(MASK, TURN_IDS, 2, row_weights=p),
        X[:1, 0],
    ),
    "weighted_sum": (core.weighted_sum, X[:2]),
    "whiten": (lambda x: core.whiten(x, MASK), X[:1]),
}
COMPILED = {name: jax.jit(function) for name, (function, _) in CASES.items()}


def test_every_public_function_is_covered_and_documented():
    assert set(CASES) == set(core.__all__)
    assert core.__all__ == sorted(core.__all__)
    for name in core.__all__:
        doc = getattr(core, name).__doc__
        assert ">>>" in doc, name
        assert "Returns:" in doc, name


@pytest.mark.parametrize("name", CASES)
def test_compiles_and_batches(name):
    function, arrays = CASES[name]
    arrays = [x.astype(np.float32) for x in arrays]
    # two members of a batch that differ, so that mixing them up shows
    halved = [x / 2 for x in arrays]
    pairs = [np.stack(pair) for pair in zip(arrays, halved, strict=True)]
    batched = np.asarray(jax.jit(jax.vmap(function))(*pairs))
    for member, alone in zip(batched, (arrays, halved), strict=True):
        expected = COMPILED[name](*alone)
        np.testing.assert_allclose(member, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_keeps_the_float_dtype(name):
    function, arrays = CASES[name]
    in_float32 = jax.eval_shape(function, *(x.astype(np.float32) for x in arrays))
    with jax.enable_x64(True):
        in_float64 = COMPILED[name](*(x.astype(np.float64) for x in arrays))
        mixed = jax.eval_shape(function, *(x.astype(np.float32) for x in arrays))
    if in_float32.dtype == bool:
        assert in_float64.dtype == bool
        return
    assert in_float32.dtype == mixed.dtype == np.float32
    assert in_float64.dtype == np.float64
    single = COMPILED[name](*(x.astype(np.float32) for x in arrays))
    np.testing.assert_allclose(single, in_float64, rtol=1e-4, atol=1e-5)


def test_uniform_measures_have_the_default_float_and_whole_batches_need_no_rows():
    with jax.enable_x64(True):
        for weights in (
            core.token_mean_weights(MASK),
            core.sequence_mean_weights(MASK),
            core.turn_mean_weights(MASK, TURN_IDS, 2),
            core.trajectory_mean_weights(MASK, IDS, 2),
        ):
            assert weights.dtype == np.float64
    assert core.token_mean_weights(MASK).dtype == np.float32
    empty = core.group_relative(jnp.zeros(0), jnp.zeros(0, int), 2, scale="batch")
    assert empty.shape == (0,)
    assert core.sequence_mean_weights(jnp.zeros((0, 3), bool)).shape == (0, 3)


def test_wrong_static_sizes_and_ranges_are_caught_under_jit_too():
    with pytest.raises(ValueError, match="num_groups"):
        jax.jit(lambda n: core.group_relative(jnp.ones(2), jnp.zeros(2, int), n))(2)
    with pytest.raises(ValueError, match="trace_decay=2"):
        jax.jit(lambda r: core.gae(r, r, jnp.ones((1, 3)), 2.0))(jnp.ones((1, 2)))
    for ids in ([0, 2], np.array([0, 2]), jnp.array([0, 2])):  # constants of the traced function
        with pytest.raises(ValueError, match="group_ids spans 0..2"):
            jax.jit(lambda r, ids=ids: core.group_relative(r, ids, 2))(jnp.ones(2))


def test_ids_outside_the_range_count_as_none_where_they_cannot_be_checked():
    call = jax.jit(lambda ids: core.group_relative(jnp.array([1.0, 3.0, 9.0]), ids, 2))
    np.testing.assert_array_equal(call(jnp.array([1, 1, 2])), [-1, 1, 0])


def test_coefficients_may_be_traced():
    """A schedule for the clip range or epsilon must not recompile."""
    ones = jnp.ones(3)
    call = jax.jit(lambda low, high: core.clipped_surrogate(2 * ones, ones, low, high))
    np.testing.assert_allclose(call(0.1, 0.3), 1.3, rtol=1e-6)
    np.testing.assert_allclose(call(0.1, 0.5), 1.5, rtol=1e-6)


def test_zero_one_rewards_may_be_integers_or_booleans():
    ids = np.array([0, 0, 1, 1])
    expected = [0.5, -0.5, 0.0, 0.0]
    for returns in ([1, 0, 1, 1], np.array([1, 0, 1, 1]), np.array([True, False, True, True])):
        np.testing.assert_allclose(core.group_relative(returns, ids, 2), expected)
    discounted = core.discounted_returns(np.array([[0, 0, 1]]), np.array([[1, 1, 0]]))
    np.testing.assert_allclose(discounted, [[1, 1, 1]])
    assert discounted.dtype == np.float32


def test_static_sizes_may_be_concrete_array_scalars():
    ids = jnp.array([0, 0, 1, 1])
    returns = jnp.array([1.0, 0.0, 1.0, 1.0])
    for size in (jnp.max(ids) + 1, np.int64(2)):
        np.testing.assert_allclose(core.group_relative(returns, ids, size), [0.5, -0.5, 0, 0])
        assert core.has_no_signal(returns, ids, size).shape == (2,)
