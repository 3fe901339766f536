"""KL estimators and entropies against closed forms.

Run: pytest tests/core/test_divergences.py
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rtpo_jax import core

KINDS = ["k1", "k2", "k3"]
LOGITS = jnp.array([0.5, -0.5])  # two-action softmax policy; the reference is uniform
entropy_slope = jax.jit(jax.grad(lambda logits: core.entropy(logits).sum()))
UNIFORM = jnp.log(jnp.array([0.5, 0.5]))


def expected_estimate(logits, kind):
    """Exact expectation of the estimate as a loss: the sampling weights are not differentiated."""
    log_probs = jax.nn.log_softmax(logits)
    weights = jax.lax.stop_gradient(jnp.exp(log_probs))
    return core.weighted_sum(core.kl_estimate(log_probs, UNIFORM, kind), weights)


@pytest.mark.parametrize(("kind", "slope"), [("k1", 0.0), ("k2", 0.1966), ("k3", 0.2311)])
def test_gradients_of_the_estimators_as_losses(kind, slope):
    """k1 has zero expected gradient, k2 the KL's, k3 that of the reversed KL (p - 1/2 = .2311).

    True gradient: p (log 2p - KL) = .7311 * (log 1.4621 - .1109) = .1966.
    """
    gradient = jax.jit(jax.grad(expected_estimate), static_argnums=1)(LOGITS, kind)
    np.testing.assert_allclose(gradient, [slope, -slope], atol=5e-5)
    if kind != "k2":  # k2 is biased
        np.testing.assert_allclose(expected_estimate(LOGITS, kind), 0.1109, atol=5e-5)


def test_k3_by_hand_and_never_negative():
    # log pi - log ref = log 2: 1/2 + log 2 - 1
    value = core.kl_estimate(jnp.log(jnp.array([0.5])), jnp.log(jnp.array([0.25])), "k3")
    np.testing.assert_allclose(value, [np.log(2) - 0.5], rtol=1e-6)
    gaps = jnp.linspace(-5, 5, 101)
    assert (core.kl_estimate(gaps, jnp.zeros_like(gaps), "k3") >= 0).all()
    # near 0 it is l^2 / 2 (1e-4: 5e-9), which exp(-l) + l - 1 in float32 rounds to 0 or 1.2e-7
    tiny = core.kl_estimate(jnp.array([1e-4]), jnp.zeros(1), "k3")
    np.testing.assert_allclose(tiny, [5e-9], rtol=2e-2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gap", [100.0, -100.0, 1000.0])
def test_huge_gaps_stay_finite(kind, gap):
    value, slope = jax.value_and_grad(lambda x: core.kl_estimate(x, jnp.float32(gap), kind))(
        jnp.float32(0)
    )
    assert jnp.isfinite(value)
    assert jnp.isfinite(slope)
    if kind == "k3":  # the gap counts as at most 20; below it, exp(-100) + 100 - 1
        expected = np.exp(20.0) - 21 if gap > 0 else -gap - 1
        np.testing.assert_allclose(value, expected, rtol=1e-6)
        assert slope == (0 if gap > 0 else 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("junk", [jnp.nan, jnp.inf, -jnp.inf, 0.0])
def test_junk_of_weight_zero_reaches_neither_loss_nor_gradient(kind, junk):
    """One usable token at log-ratio -.5; the loss is that token's, the other gradient is 0."""
    reference, weights = jnp.array([-1.0, -1.0]), jnp.array([1.0, 0.0])
    value, gradient = jax.value_and_grad(
        lambda x: core.weighted_sum(core.kl_estimate(x, reference, kind), weights)
    )(jnp.array([-1.5, junk]))
    values = {"k1": -0.5, "k2": 0.125, "k3": np.exp(0.5) - 1.5}
    slopes = {"k1": 1.0, "k2": -0.5, "k3": 1 - np.exp(0.5)}
    np.testing.assert_allclose(value, values[kind], rtol=1e-5)
    np.testing.assert_allclose(gradient, [slopes[kind], 0], rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_nan_with_weight_stays_visible(kind):
    assert jnp.isnan(core.kl_estimate(jnp.array([jnp.nan]), jnp.zeros(1), kind)).all()


def test_kl_trains_without_advantages_and_surrogate_without_kl():
    """Penalty coefficient 1 and advantages 0: gradient of the KL; coefficient 0: exactly none."""

    def loss(logits, coefficient):
        log_probs = jax.nn.log_softmax(logits)
        behavior = jax.lax.stop_gradient(log_probs)
        ratios = core.ratios(log_probs - behavior)
        values = core.clipped_surrogate(ratios, jnp.zeros(2), 0.2, 0.2)
        values -= coefficient * core.kl_estimate(log_probs, UNIFORM, "k2")
        return -core.weighted_sum(values, jnp.exp(behavior))

    gradient = jax.jit(jax.grad(loss))
    np.testing.assert_allclose(gradient(LOGITS, 1.0), [0.1966, -0.1966], atol=5e-5)
    np.testing.assert_array_equal(gradient(LOGITS, 0.0), 0)


def test_unknown_kind_lists_the_known_ones():
    with pytest.raises(ValueError, match="kind='k4'.*'k1', 'k2', 'k3'"):
        core.kl_estimate(jnp.zeros(1), jnp.zeros(1), "k4")


def test_entropy_matches_its_definition():
    logits = np.random.default_rng(0).normal(0, 3, (4, 5, 7)).astype(np.float32)
    p = np.exp(logits.astype(float)) / np.exp(logits.astype(float)).sum(-1, keepdims=True)
    np.testing.assert_allclose(core.entropy(logits), -(p * np.log(p)).sum(-1), rtol=1e-5)
    # d H / d logit_v = -p_v (log p_v + H)
    gradient = entropy_slope(logits)
    entropies = -(p * np.log(p)).sum(-1, keepdims=True)
    np.testing.assert_allclose(gradient, -p * (np.log(p) + entropies), atol=1e-5)


def test_impossible_choices_add_nothing():
    logits = jnp.array([[1.0, 1.0, -jnp.inf], [0.0, -jnp.inf, -jnp.inf], [0.0, -2000.0, 0.0]])
    np.testing.assert_allclose(core.entropy(logits), [np.log(2), 0, np.log(2)], atol=1e-6)
    assert jnp.isfinite(entropy_slope(logits)).all()


def test_nan_logits_show_in_the_value_but_not_past_a_zero_weight():
    logits, weights = jnp.array([[1.0, 1.0], [jnp.nan, 0.0]]), jnp.array([1.0, 0.0])
    entropies = core.entropy(logits)
    assert jnp.isnan(entropies[1])
    value, gradient = jax.value_and_grad(lambda x: core.weighted_sum(core.entropy(x), weights))(
        logits
    )
    np.testing.assert_allclose(value, np.log(2), rtol=1e-6)
    np.testing.assert_allclose(gradient, 0, atol=1e-7)


def test_padding_never_counts_among_the_top_entropies():
    mask = jnp.array([True, True, False])
    for junk in (5.0, jnp.nan, jnp.inf, -jnp.inf):
        kept = core.keep_top_entropy(jnp.array([2.0, 0.1, junk]), mask, 0.5)
        np.testing.assert_array_equal(kept, [True, False, False])


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.2, 0.5, 0.7, 1.0])
def test_number_of_kept_tokens(fraction):
    """ceil of the share, computed in integers."""
    rng = np.random.default_rng(2)
    for count in (30, 10, 7, 1, 0):
        mask = np.zeros((5, 8), bool)
        mask.ravel()[rng.permutation(40)[:count]] = True
        entropies = rng.permutation(40).reshape(5, 8).astype(np.float32)
        kept = np.asarray(core.keep_top_entropy(entropies, mask, fraction))
        expected = -(-round(fraction * 10) * count // 10)
        assert kept.sum() == expected
        assert not (kept & ~mask).any()
        if 0 < expected < count:
            assert entropies[kept].min() > entropies[mask & ~kept].max()


@pytest.mark.parametrize(("fraction", "count", "kept"), [(0.15, 100, 15), (0.09, 300, 27)])
def test_share_that_float32_rounds_up_keeps_no_extra_token(fraction, count, kept):
    mask = jnp.ones(count, bool)
    assert core.keep_top_entropy(jnp.arange(count, dtype=float), mask, fraction).sum() == kept


def test_top_entropy_ties_and_nan():
    ones = jnp.ones(4)
    kept = core.keep_top_entropy(ones, jnp.array([False, True, True, True]), 0.5)
    np.testing.assert_array_equal(kept, [False, True, True, False])
    kept = core.keep_top_entropy(jnp.array([2.0, jnp.nan]), jnp.ones(2, bool), 0.5)
    np.testing.assert_array_equal(kept, [False, True])


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda: core.keep_top_entropy(jnp.ones(2), jnp.ones(2, bool), 1.1), "fraction=1.1"),
        (lambda: core.keep_top_entropy(jnp.ones(2), jnp.ones(2), 0.1), "action_mask"),
        (lambda: core.kl_estimate(jnp.ones(2), jnp.ones(3), "k1"), "reference_log_probs"),
        (lambda: core.entropy(jnp.float32(1)), "logits"),
    ],
)
def test_bad_input_is_named(call, names):
    with pytest.raises(ValueError, match=names):
        call()
