"""The clipped surrogate against its definition, its gradient cases and its limits.

Run: pytest tests/core/test_surrogates.py
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rtpo_jax import core

RATIOS = np.linspace(0, 3, 61, dtype=np.float32)
SIGNS = [1.0, -1.0, 0.0, 2.5, -0.3]

clipped_surrogate = jax.jit(core.clipped_surrogate)
slope = jax.jit(jax.grad(lambda *arguments: core.clipped_surrogate(*arguments).sum()))


@pytest.mark.parametrize("advantage", SIGNS)
@pytest.mark.parametrize("bounds", [(0.2, 0.2), (0.2, 0.28), (0.0, 1.0), (1.0, 0.0)])
def test_matches_the_minimum_form(advantage, bounds):
    low, high = bounds
    advantages = np.full_like(RATIOS, advantage)
    actual = clipped_surrogate(RATIOS, advantages, low, high)
    clipped = np.clip(RATIOS, np.float32(1) - np.float32(low), np.float32(1) + np.float32(high))
    np.testing.assert_array_equal(actual, np.minimum(RATIOS * advantages, clipped * advantages))


@pytest.mark.parametrize("advantage", SIGNS)
def test_clipped_is_where_the_surrogate_is_flat(advantage):
    """The complement of B = (A >= 0 and r <= 1 + high) or (A < 0 and r >= 1 - low)."""
    advantages = np.full_like(RATIOS, advantage)
    clipped = np.asarray(core.is_clipped(RATIOS, advantages, 0.25, 0.5))
    unclipped = (advantages >= 0) & (RATIOS <= 1.5) | (advantages < 0) & (RATIOS >= 0.75)
    np.testing.assert_array_equal(clipped, ~unclipped)
    slopes = slope(RATIOS, advantages, 0.25, 0.5)
    np.testing.assert_array_equal(slopes, np.where(clipped, 0, advantages))


def test_both_sides_by_hand():
    """Only leaving the interval in the direction that A asks for is clipped."""
    ratios, advantages = jnp.array([2.0, 2.0, 0.5, 0.5]), jnp.array([1.0, -1.0, 1.0, -1.0])
    values = core.clipped_surrogate(ratios, advantages, 0.1, 0.3)
    np.testing.assert_allclose(values, [1.3, -2.0, 0.5, -0.9], rtol=1e-6)
    clipped = core.is_clipped(ratios, advantages, 0.1, 0.3)
    np.testing.assert_array_equal(clipped, [True, False, False, True])


@pytest.mark.parametrize(("ratio", "advantage"), [(1.5, 1.0), (0.5, -1.0)])
def test_a_ratio_exactly_on_the_bound_is_not_clipped(ratio, advantage):
    ratio, advantage = jnp.asarray(ratio), jnp.asarray(advantage)
    assert not core.is_clipped(ratio, advantage, 0.5, 0.5)
    assert slope(ratio, advantage, 0.5, 0.5) == advantage


def test_wide_open_clip_is_importance_weighting():
    advantages = np.random.default_rng(0).normal(size=RATIOS.shape).astype(np.float32)
    expected = core.importance_weighted(RATIOS, advantages)
    np.testing.assert_allclose(expected, RATIOS * advantages)
    for low, high in ((1.0, np.inf), (np.inf, np.inf), (1.0, 1e6)):
        actual = clipped_surrogate(RATIOS, advantages, low, high)
        np.testing.assert_array_equal(actual, expected)
        assert not core.is_clipped(RATIOS, advantages, low, high).any()


@pytest.mark.parametrize("level", ["token", "turn", "trajectory"])
def test_gradient_at_ratio_one_is_reinforce(level):
    """d/dtheta sum_i A_i r_i = sum_i A_i d/dtheta log pi_i where the policies coincide.

    A softmax policy over five choices, six tokens in one row, two turns; products of ratios at
    turn and trajectory level, so that the unit's log-probability is the sum over its tokens.
    """
    rng = np.random.default_rng(1)
    logits = jnp.asarray(rng.normal(size=5), jnp.float32)
    chosen, turn_ids = jnp.asarray(rng.integers(0, 5, (1, 6))), jnp.array([[0, 0, 0, 1, 1, 1]])
    units = {"token": (1, 6), "turn": (1, 2), "trajectory": (1,)}
    advantages = jnp.asarray(rng.normal(size=units[level]), jnp.float32)
    old = jax.nn.log_softmax(logits)[chosen]

    def surrogate(logits):
        gaps = core.token_log_ratios(
            jax.nn.log_softmax(logits)[chosen], old, jnp.ones((1, 6), bool)
        )
        if level == "turn":
            gaps = core.turn_log_ratios(gaps, turn_ids, 2, mean=False)
        if level == "trajectory":
            gaps = core.trajectory_log_ratios(gaps, turn_ids >= 0, mean=False)
        return core.clipped_surrogate(core.ratios(gaps), advantages, 0.2, 0.2).sum()

    per_token = {"token": advantages[0], "turn": np.repeat(advantages, 3)}.get(
        level, np.repeat(advantages, 6)
    )
    probabilities = np.exp(jax.nn.log_softmax(logits))
    # d log pi(a) / d logits = onehot(a) - pi
    expected = sum(
        a * (np.eye(5)[c] - probabilities)
        for a, c in zip(np.asarray(per_token), np.asarray(chosen[0]), strict=True)
    )
    np.testing.assert_allclose(jax.jit(jax.grad(surrogate))(logits), expected, atol=1e-5)


def test_clipped_gradient_is_unclipped_gradient_minus_clipping_bias():
    """SORL, Lemma 4.2, for random ratios, some of them exactly on a bound."""
    rng = np.random.default_rng(3)
    ratios = jnp.asarray(rng.choice([0.5, 0.75, 1.0, 1.25, 1.5], 64), jnp.float32)
    advantages = jnp.asarray(rng.normal(size=64), jnp.float32)
    clipped = core.is_clipped(ratios, advantages, 0.25, 0.25)
    full = jax.grad(lambda r: core.importance_weighted(r, advantages).sum())(ratios)
    bias = jax.grad(lambda r: (core.importance_weighted(r, advantages) * clipped).sum())(ratios)
    actual = slope(ratios, advantages, 0.25, 0.25)
    np.testing.assert_array_equal(actual, full - bias)
    assert clipped.any()


@pytest.mark.parametrize("junk", [0.0, 10.0, jnp.nan, jnp.inf])
@pytest.mark.parametrize("where", ["ratios", "advantages", "both"])
def test_junk_of_weight_zero_reaches_neither_loss_nor_gradient(junk, where):
    ratios = jnp.array([1.0, 1.1, junk if where != "advantages" else 1.0])
    advantages = jnp.array([1.0, 1.0, junk if where != "ratios" else 1.0])
    weights = jnp.array([0.5, 0.5, 0.0])

    def loss(ratios, advantages):
        values = core.clipped_surrogate(ratios, advantages, 0.2, 0.2)
        return core.weighted_sum(values + core.importance_weighted(ratios, advantages), weights)

    value, gradients = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(ratios, advantages)
    np.testing.assert_allclose(value, 2.1, rtol=1e-6)
    np.testing.assert_allclose(gradients[0], [1, 1, 0])
    np.testing.assert_allclose(gradients[1], [1, 1.1, 0], rtol=1e-6)


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_nan_with_weight_stays_visible(place, advantage):
    arguments = [jnp.array([2.0]), jnp.array([advantage])]
    arguments[place] = jnp.array([jnp.nan])
    assert jnp.isnan(core.clipped_surrogate(*arguments, 0.2, 0.2)).all()
    assert jnp.isnan(core.importance_weighted(*arguments)).all()


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (([1.0], [1.0], -0.1, 0.2), "clip_low=-0.1"),
        (([1.0], [1.0], 0.2, -0.1), "clip_high=-0.1"),
        (([1.0], [1.0], 0.2, float("nan")), "clip_high=nan"),
        (([1.0], [1.0], [0.2], 0.2), "clip_low"),
        (([1.0], [1.0, 2.0], 0.2, 0.2), "advantages"),
        (([[1.0]], [1.0], 0.2, 0.2), "broadcast explicitly"),
        (([1j], [1.0], 0.2, 0.2), "ratios has dtype complex64"),
    ],
)
def test_bad_input_is_named(arguments, names):
    for function in (core.clipped_surrogate, core.is_clipped):
        with pytest.raises(ValueError, match=names):
            function(*arguments)
        with pytest.raises(ValueError, match=names):
            jax.jit(lambda function=function: function(*arguments))()
