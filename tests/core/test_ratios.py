"""Ratios by level against numpy sums, and what stands at dropped places.

Run: pytest tests/core/test_ratios.py
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rtpo_jax import core


def random_rows(seed, rows=3, tokens=8, turns=4):
    rng = np.random.default_rng(seed)
    log_ratios = rng.normal(size=(rows, tokens)).astype(np.float32)
    return log_ratios, rng.integers(-1, turns, (rows, tokens))


@pytest.mark.parametrize("seed", range(3))
def test_turn_level_matches_a_loop(seed):
    log_ratios, turn_ids = random_rows(seed)
    sums, means = np.zeros((3, 4)), np.zeros((3, 4))
    for n, h in np.ndindex(3, 4):
        own = log_ratios[n][turn_ids[n] == h]
        sums[n, h], means[n, h] = own.sum(), own.mean() if own.size else 0
    for mean, expected in ((False, sums), (True, means)):
        actual = core.turn_log_ratios(log_ratios, turn_ids, 4, mean=mean)
        np.testing.assert_allclose(actual, expected, atol=1e-6)


def test_trajectory_level_is_the_sum_over_turns():
    log_ratios, turn_ids = random_rows(7)
    mask = turn_ids >= 0
    by_turn = core.turn_log_ratios(log_ratios, turn_ids, 4, mean=False).sum(axis=1)
    whole = core.trajectory_log_ratios(log_ratios, mask, mean=False)
    np.testing.assert_allclose(whole, by_turn, atol=1e-6)
    mean = core.trajectory_log_ratios(log_ratios, mask, mean=True)
    np.testing.assert_allclose(mean, whole / mask.sum(1), rtol=1e-6)


def test_units_without_tokens_have_ratio_one():
    log_ratios = jnp.array([[3.0, 4.0], [5.0, 6.0]])
    turn_ids = jnp.array([[-1, -1], [1, 1]])
    for mean in (True, False):
        by_turn = core.ratios(core.turn_log_ratios(log_ratios, turn_ids, 3, mean=mean))
        np.testing.assert_array_equal(by_turn[0], 1)
        np.testing.assert_array_equal(by_turn[1, jnp.array([0, 2])], 1)
        whole = core.ratios(core.trajectory_log_ratios(log_ratios, turn_ids >= 0, mean=mean))
        assert whole[0] == 1


def test_a_turn_id_beyond_the_horizon_never_reaches_the_next_row():
    """Under jit ids go unchecked: id 2 of row 0 must not become turn 0 of row 1."""
    call = jax.jit(lambda ids: core.turn_log_ratios(jnp.ones((2, 2)), ids, 2, mean=False))
    np.testing.assert_array_equal(call(jnp.array([[0, 2], [1, 1]])), [[1, 0], [0, 2]])


@pytest.mark.parametrize("junk", [10.0, jnp.nan, jnp.inf, -jnp.inf])
@pytest.mark.parametrize("place", [0, 1])
def test_token_log_ratio_is_zero_and_flat_where_dropped(place, junk):
    """Junk on either side alone, so that one unmasked input is enough to show."""
    inputs = [jnp.array([[-1.0, -2.0]]), jnp.array([[-1.5, -2.5]])]
    inputs[place] = inputs[place].at[0, 1].set(junk)
    mask = jnp.array([[True, False]])
    np.testing.assert_array_equal(core.token_log_ratios(*inputs, mask), [[0.5, 0]])
    slopes = jax.grad(lambda *x: core.token_log_ratios(*x, mask).sum(), argnums=(0, 1))(*inputs)
    np.testing.assert_array_equal(slopes[0], [[1, 0]])
    np.testing.assert_array_equal(slopes[1], [[-1, 0]])


@pytest.mark.parametrize("junk", [0.0, 10.0, jnp.nan, jnp.inf, -jnp.inf])
def test_dropped_tokens_have_no_value_and_no_gradient(junk):
    """Through all levels at once, so that junk meets sums, means and exponentials."""
    mask, turn_ids = jnp.array([[True, True, False]]), jnp.array([[0, 1, -1]])
    behavior = jnp.array([[-1.5, -2.5, junk]])

    def total(log_probs):
        log_ratios = core.token_log_ratios(log_probs, behavior, mask)
        by_turn = core.turn_log_ratios(log_ratios, turn_ids, 2, mean=True)
        whole = core.trajectory_log_ratios(log_ratios, mask, mean=True)
        return core.ratios(by_turn).sum() + core.ratios(whole).sum()

    value, gradient = jax.jit(jax.value_and_grad(total))(jnp.array([[-1.0, -2.0, junk]]))
    # each log-ratio is .5; every turn gives e^.5, the whole e^.5 with half the slope per token
    np.testing.assert_allclose(value, 3 * np.exp(0.5), rtol=1e-6)
    np.testing.assert_allclose(gradient, [[1.5 * np.exp(0.5)] * 2 + [0]], rtol=1e-6)


@pytest.mark.parametrize("gap", [100.0, -100.0, jnp.inf, -jnp.inf])
def test_huge_log_ratios_stay_finite(gap):
    value, slope = jax.value_and_grad(core.ratios)(jnp.asarray(gap))
    np.testing.assert_allclose(value, np.exp(np.clip(gap, -20, 20)), rtol=1e-5)
    assert slope == 0


def test_clamp_is_where_it_says():
    log_ratios = jnp.array([-3.0, -1.9, 0, 1.9, 3])
    expected = np.exp([-2, -1.9, 0, 1.9, 2])
    np.testing.assert_allclose(core.ratios(log_ratios, limit=2.0), expected, rtol=1e-6)
    np.testing.assert_allclose(core.ratios(log_ratios, limit=np.inf), np.exp(log_ratios), rtol=1e-6)


def test_nan_stays_visible():
    assert jnp.isnan(core.ratios(jnp.array([jnp.nan])))[0]
    log_ratios = core.token_log_ratios([[jnp.nan]], [[0.0]], [[True]])
    assert jnp.isnan(log_ratios).all()
    assert jnp.isnan(core.turn_log_ratios(log_ratios, [[0]], 1, mean=True)).all()


def test_a_sampler_temperature_must_be_in_both_policies():
    """Logits (2, 0) at temperature .5: log-probability -.0181, without the temperature -.1269.

    Scoring with the sampler's temperature gives ratio 1 exactly; forgetting it gives .897.
    """
    logits = jnp.array([2.0, 0.0])
    sampled = jax.nn.log_softmax(logits / 0.5)[:1][None]
    forgotten = jax.nn.log_softmax(logits)[:1][None]
    np.testing.assert_allclose(sampled, [[-0.0181]], atol=5e-5)
    np.testing.assert_allclose(forgotten, [[-0.1269]], atol=5e-5)
    mask = jnp.ones((1, 1), bool)
    assert core.ratios(core.token_log_ratios(sampled, sampled, mask)) == 1
    wrong = core.ratios(core.token_log_ratios(forgotten, sampled, mask))
    np.testing.assert_allclose(wrong, [[0.8969]], atol=1e-4)


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda: core.token_log_ratios([[0.0]], [[0.0]], [[1]]), "action_mask"),
        (lambda: core.token_log_ratios([[0.0]], [[0.0, 0.0]], [[True]]), "behavior_log_probs"),
        (lambda: core.token_log_ratios([0.0], [0.0], [True]), "log_probs has shape"),
        (lambda: core.turn_log_ratios([[0.0]], [[1]], 1, mean=True), "turn_ids spans 1..1"),
        (lambda: core.turn_log_ratios([[0.0]], [[0]], 1.5, mean=True), "num_turns=1.5"),
        (lambda: core.trajectory_log_ratios([[0.0]], [[True, True]], mean=True), "action_mask"),
        (lambda: core.ratios([0.0], limit=-1.0), "limit=-1.0"),
    ],
)
def test_bad_input_is_named(call, names):
    with pytest.raises(ValueError, match=names):
        call()


def test_rows_with_one_id_are_one_trajectory():
    log_ratios = np.array([[1.0, 2.0], [4.0, 9.0], [5.0, 7.0], [8.0, 8.0]], np.float32)
    mask = np.array([[True, True], [True, False], [True, True], [True, True]])
    ids = np.array([3, 0, 3, -1])

    def found(mean, values=log_ratios):
        return core.trajectory_log_ratios(values, mask, mean=mean, trajectory_ids=ids)

    np.testing.assert_allclose(found(False), [15, 4, 15, 0])
    np.testing.assert_allclose(found(True), [3.75, 4, 3.75, 0])
    broken = log_ratios.copy()
    broken[1, 0] = np.nan
    np.testing.assert_array_equal(np.isnan(found(False, broken)), [False, True, False, False])
    with pytest.raises(ValueError, match="trajectory_ids"):
        core.trajectory_log_ratios(log_ratios, mask, mean=True, trajectory_ids=ids[:3])
