"""Group comparisons against numpy, enumeration and the theorems about them.

Run: pytest tests/core/test_advantages.py
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtpo_jax import core


def compiled(function, **options):
    """One program per shape instead of one per operation; results as numpy arrays."""
    program = jax.jit(function, **options)
    return lambda *args, **kwargs: np.asarray(program(*args, **kwargs))


group_relative = compiled(
    core.group_relative, static_argnums=2, static_argnames=("scale", "ddof", "epsilon")
)
leave_one_out = compiled(core.leave_one_out, static_argnums=2)
sibling_relative = compiled(core.sibling_relative, static_argnums=2)
has_no_signal = compiled(core.has_no_signal, static_argnums=2)
whiten = compiled(core.whiten, static_argnames=("ddof", "epsilon"))

GRID = st.integers(-8, 8).map(lambda x: x / 4)
ROWS = st.lists(st.tuples(GRID, st.integers(-1, 3)), min_size=12, max_size=12)


@pytest.fixture
def debug_nans():
    with jax.debug_nans(True):
        yield


def relative_by_loop(returns, ids, scale, ddof, epsilon):
    """Group-relative advantages in float64 numpy, one group at a time."""
    out = np.zeros(len(returns))
    for group in set(ids[ids >= 0]):
        rows = ids == group
        out[rows] = returns[rows] - returns[rows].mean()
        if scale == "group":
            own = returns[rows]
            equal = (own == own[0]).all()
            out[rows] = 0 if equal else out[rows] / (own.std(ddof=ddof) + epsilon)
    kept = ids >= 0
    if scale == "batch" and out.any():
        out[kept] /= out[kept].std(ddof=ddof) + epsilon
    return out


def arrays(rows):
    returns, ids = zip(*rows, strict=True)
    return np.array(returns, np.float32), np.array(ids, np.int32)


@settings(max_examples=60, deadline=None)
@given(ROWS, st.sampled_from([None, "group", "batch"]), st.sampled_from([0, 1]))
def test_matches_a_loop_over_groups(rows, scale, ddof):
    returns, ids = arrays(rows)
    actual = group_relative(returns, ids, 4, scale=scale, ddof=ddof, epsilon=1e-3)
    expected = relative_by_loop(returns.astype(float), ids, scale, ddof, 1e-3)
    np.testing.assert_allclose(actual, expected, atol=2e-5)


@settings(max_examples=40, deadline=None)
@given(ROWS)
def test_leave_one_out_matches_its_definition(rows):
    returns, ids = arrays(rows)
    expected = np.zeros(12)
    for i in range(12):
        others = [j for j in range(12) if j != i and ids[j] == ids[i]]
        if ids[i] >= 0 and others:
            expected[i] = returns[i] - returns[others].mean()
    np.testing.assert_allclose(leave_one_out(returns, ids, 4), expected, atol=1e-5)


@settings(max_examples=40, deadline=None)
@given(ROWS, st.randoms(use_true_random=False))
def test_row_order_carries_no_meaning(rows, random):
    returns, ids = arrays(rows)
    order = list(range(12))
    random.shuffle(order)
    for function in (group_relative, leave_one_out, sibling_relative):
        straight, permuted = function(returns, ids, 4), function(returns[order], ids[order], 4)
        np.testing.assert_allclose(permuted, straight[order], atol=1e-6)


@settings(max_examples=40, deadline=None)
@given(ROWS)
def test_no_signal_matches_counting_distinct_returns(rows):
    returns, ids = arrays(rows)
    expected = [len(set(returns[ids == group])) == 1 for group in range(4)]
    np.testing.assert_array_equal(has_no_signal(returns, ids, 4), expected)


@pytest.mark.parametrize("scale", [None, "group", "batch"])
@pytest.mark.parametrize("value", [0.7, 0.1, 1e8, 0.0])
def test_equal_returns_give_exactly_zero(scale, value, debug_nans):
    """The float32 mean of seven 0.7 is off by one unit in the last place."""
    returns, ids = np.full(7, value, np.float32), np.zeros(7, int)
    assert (group_relative(returns, ids, 1, scale=scale) == 0).all()
    assert (group_relative(returns, ids, 1, scale=scale, epsilon=0.0) == 0).all()
    assert (leave_one_out(returns, ids, 1) == 0).all()
    assert has_no_signal(returns, ids, 1).all()


def test_equal_group_stays_zero_beside_a_group_with_signal(debug_nans):
    returns, ids = jnp.array([0.7] * 7 + [0.0, 1.0]), jnp.array([0] * 7 + [1, 1])
    for scale in (None, "group", "batch"):
        advantages = group_relative(returns, ids, 2, scale=scale)
        assert (advantages[:7] == 0).all()
        assert advantages[8] > 0.4


def test_nearly_equal_returns_keep_their_signal():
    """1.00000 and 1.00001: 5e-6 / (7.07e-6 + 1e-6) = .62; E[x^2] - E[x]^2 loses it in float32."""
    advantages = group_relative(
        jnp.array([1.0, 1.00001]), np.zeros(2, int), 1, scale="group", epsilon=1e-6
    )
    np.testing.assert_allclose(advantages, [-0.6195, 0.6195], atol=2e-3)


@pytest.mark.parametrize("scale", [None, "group", "batch"])
def test_lone_rows_and_rows_without_a_group_get_zero(scale, debug_nans):
    returns = jnp.array([5.0, 1.0, 3.0, 100.0])
    ids = jnp.array([0, 2, 2, -1])  # a group of one, an empty one, a pair, no group
    advantages = group_relative(returns, ids, 3, scale=scale)
    np.testing.assert_array_equal(advantages[[0, 3]], 0)
    assert advantages[2] == -advantages[1] > 0
    np.testing.assert_array_equal(leave_one_out(returns, ids, 3), [0, -2, 2, 0])
    np.testing.assert_array_equal(has_no_signal(returns, ids, 3), [True, False, False])


@pytest.mark.parametrize("junk", [jnp.nan, jnp.inf, 1e30])
@pytest.mark.parametrize("scale", [None, "group", "batch"])
def test_a_row_without_a_group_leaks_nowhere(scale, junk):
    """Neither into the last group, where a negative index would land, nor into batch statistics."""
    ids = jnp.array([0, 0, 1, 1, -1])
    with_junk = group_relative(jnp.array([0.0, 1, 2, 6, junk]), ids, 2, scale=scale)
    without = group_relative(jnp.array([0.0, 1, 2, 6]), np.asarray(ids)[:4], 2, scale=scale)
    np.testing.assert_array_equal(with_junk[:4], without)
    assert with_junk[4] == 0
    loo = leave_one_out(jnp.array([0.0, 1, 2, 6, junk]), ids, 2)
    np.testing.assert_array_equal(loo, [-1, 1, -4, 4, 0])
    signal = has_no_signal(jnp.array([0.0, 1, 2, 2, junk]), ids, 2)
    np.testing.assert_array_equal(signal, [False, True])


def test_a_nan_return_shows_in_its_group_only():
    returns, ids = jnp.array([1.0, jnp.nan, 3.0, 5.0]), jnp.array([0, 0, 1, 1])
    for scale in (None, "group"):
        advantages = group_relative(returns, ids, 2, scale=scale)
        assert np.isnan(advantages[:2]).all()
        assert np.isfinite(advantages[2:]).all()
    assert np.isnan(group_relative(returns, ids, 2, scale="batch")).all()
    np.testing.assert_array_equal(has_no_signal(returns, ids, 2), [False, False])


def test_advantage_is_a_centring_projection():
    """Gradient of one advantage by the group's returns: 1 - 1/n for itself, -1/n for the others."""
    ids = jnp.array([0, 0, 0, 1])
    jacobian = jax.jit(jax.jacobian(lambda r: core.group_relative(r, ids, 2)))(
        jnp.array([3.0, 1, 2, 5])
    )
    expected = np.zeros((4, 4))
    expected[:3, :3] = np.eye(3) - 1 / 3
    np.testing.assert_allclose(jacobian, expected, atol=1e-6)


@pytest.mark.parametrize("num_siblings", [2, 3, 4])
def test_expected_sibling_advantage_is_shrunk_true_advantage(num_siblings):
    """RTPO, Theorem 2(a): E[A^H | u] = (n - 1) / n A(u); leave-one-out removes the factor.

    Enumerates every tuple of n siblings over three actions with deterministic returns.
    """
    policy, q = np.array([0.2, 0.5, 0.3]), np.array([1.0, 0.0, 0.25])
    true = q - policy @ q
    tuples = np.array(list(itertools.product(range(3), repeat=num_siblings)))
    probabilities = policy[tuples].prod(1)
    ids = np.repeat(np.arange(len(tuples))[:, None], num_siblings, 1)
    returns = q[tuples].astype(np.float32)
    shrunk = sibling_relative(returns, ids, len(tuples))
    unbiased = leave_one_out(returns.ravel(), ids.ravel(), len(tuples))
    for action in range(3):
        measure = probabilities * (tuples[:, 0] == action) / policy[action]
        factor = (num_siblings - 1) / num_siblings
        np.testing.assert_allclose(measure @ shrunk[:, 0], factor * true[action], atol=1e-6)
        first = unbiased.reshape(ids.shape)[:, 0]
        np.testing.assert_allclose(measure @ first, true[action], atol=1e-6)


def test_siblings_of_one_turn_are_a_group():
    returns, ids = jnp.array([1.0, 0, 4, 1]), jnp.array([0, 0, 1, 1])
    expected = group_relative(returns, ids, 2)
    np.testing.assert_array_equal(sibling_relative(returns, ids, 2), expected)
    column = sibling_relative(np.array(returns)[:, None], np.array(ids)[:, None], 2)
    np.testing.assert_array_equal(column, expected[:, None])


def test_siblings_are_compared_at_their_own_boundary():
    """Rows 0 and 1 share the first boundary, rows 1 and 2 the second; row 0 never reached it."""
    returns = jnp.array([[1.0, jnp.nan], [0, 4], [9, 1]])
    ids = jnp.array([[0, -1], [0, 1], [2, 1]])
    advantages = sibling_relative(returns, ids, 3)
    np.testing.assert_array_equal(advantages, [[0.5, 0], [-0.5, 1.5], [0, -1.5]])


@pytest.mark.parametrize(("size", "share"), [(2, 0.70), (4, 0.45), (8, 0.20), (16, 0.04)])
def test_share_of_useless_groups(size, share):
    """Binary returns with success .18: p^G + (1 - p)^G of the groups agree; all are enumerated."""
    outcomes = (np.arange(2**size)[:, None] >> np.arange(size)) & 1
    probabilities = np.where(outcomes, 0.18, 0.82).prod(1)
    ids = np.repeat(np.arange(2**size), size)
    useless = has_no_signal(outcomes.ravel().astype(np.float32), ids, 2**size)
    np.testing.assert_allclose(probabilities @ useless, share, atol=0.005)
    np.testing.assert_allclose(probabilities @ useless, 0.18**size + 0.82**size, rtol=1e-6)


def test_whitened_values_have_zero_mean_and_unit_deviation():
    rng = np.random.default_rng(0)
    values, mask = rng.normal(3, 5, (6, 8)).astype(np.float32), rng.uniform(size=(6, 8)) > 0.4
    for ddof in (0, 1):
        whitened = whiten(values, mask, ddof=ddof, epsilon=0.0)
        np.testing.assert_allclose(whitened[mask].mean(), 0, atol=1e-6)
        np.testing.assert_allclose(whitened[mask].std(ddof=ddof), 1, rtol=1e-5)
        assert (whitened[~mask] == 0).all()
    junk = np.where(mask, values, np.nan)
    np.testing.assert_array_equal(whiten(junk, mask), whiten(values, mask))


@pytest.mark.parametrize("kept", [[], [1], [1, 2]])
def test_whitening_without_variance_gives_zero(kept, debug_nans):
    """None, one (sample variance 0/0) and two equal elements."""
    mask = np.isin(np.arange(4), kept)
    np.testing.assert_array_equal(whiten(jnp.array([1.0, 0.7, 0.7, 5.0]), mask), 0)


def test_each_token_gets_its_own_turns_value():
    """Two turns of one trajectory whose tokens stand at different places, advantage 2 each."""
    turn_ids = jnp.array([[-1, -1, -1, 0, 0, 0], [-1, 1, 1, -1, -1, -1]])
    values = core.to_tokens(jnp.array([[2.0, jnp.nan], [jnp.nan, 2.0]]), turn_ids)
    np.testing.assert_array_equal(values, [[0, 0, 0, 2, 2, 2], [0, 2, 2, 0, 0, 0]])
    assert values[1].sum() == 4
    # the last turn's value must not fill the tokens without a turn, as index -1 would
    values = core.to_tokens(jnp.array([[3.0, 7.0]]), jnp.array([[-1, 0, 1, 1]]))
    np.testing.assert_array_equal(values, [[0, 3, 7, 7]])


RETURNS, IDS = jnp.ones(2), jnp.array([0, 1])


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda: core.group_relative(RETURNS, jnp.array([0, 2]), 2), "group_ids spans 0..2"),
        (lambda: core.group_relative(RETURNS, jnp.array([0, -2]), 2), "group_ids spans -2..0"),
        (lambda: core.group_relative(RETURNS, IDS.astype(float), 2), "group_ids"),
        (lambda: core.group_relative(IDS * 1j, IDS, 2), "returns has dtype complex64"),
        (lambda: core.group_relative(RETURNS, IDS[:1], 2), "group_ids"),
        (lambda: core.group_relative(RETURNS, IDS, 0), "num_groups=0"),
        (lambda: core.group_relative(RETURNS, IDS, 2, scale="std"), "scale='std'"),
        (lambda: core.group_relative(RETURNS, IDS, 2, ddof=2), "ddof=2"),
        (lambda: core.group_relative(RETURNS, IDS, 2, epsilon=-1.0), "epsilon=-1.0"),
        (lambda: core.sibling_relative(RETURNS, IDS, 1), "sibling_ids spans 0..1"),
        (lambda: core.to_tokens(RETURNS[None], jnp.array([[2]])), "turn_ids spans 2..2"),
        (lambda: core.to_tokens(RETURNS[None], jnp.array([[1], [1]])), "turn_ids"),
        (lambda: core.whiten(RETURNS, jnp.ones(3, bool)), "mask"),
    ],
)
def test_bad_input_is_named(call, names):
    with pytest.raises(ValueError, match=names):
        call()
