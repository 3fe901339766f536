"""A whole loss, from log-probabilities to a scalar: padding, order and splits must not matter.

Run: pytest tests/core/test_invariance.py
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rtpo_jax import core

LEVELS = ["token", "turn", "trajectory"]
H = 3


def make_batch(seed=0, rows=4, tokens=7):
    """Rows with gaps between turns and an unused tail, advantages per trajectory."""
    rng = np.random.default_rng(seed)
    turn_ids = np.array([[0, 0, -1, 1, 1, 1, -1], [0, -1, -1, 1, -1, 2, -1]] * 2)[:rows, :tokens]
    returns = rng.normal(size=rows).astype(np.float32)
    groups = np.array([0, 0, 1, 1])[:rows]
    return {
        "log_probs": rng.normal(-2, 0.6, (rows, tokens)).astype(np.float32),
        "behavior": rng.normal(-2, 0.3, (rows, tokens)).astype(np.float32),
        "reference": rng.normal(-2, 0.3, (rows, tokens)).astype(np.float32),
        "turn_ids": turn_ids,
        "advantages": np.repeat(np.asarray(core.group_relative(returns, groups, 2))[:, None], H, 1),
    }


def weights_of(batch, level):
    mask = batch["turn_ids"] >= 0
    if level == "token":
        return core.token_mean_weights(mask)
    if level == "turn":
        return core.turn_mean_weights(mask, batch["turn_ids"], H)
    return core.sequence_mean_weights(mask)


@partial(jax.jit, static_argnums=3)
@partial(jax.value_and_grad, argnums=0)
def loss(log_probs, batch, weights, level):
    """Clipped surrogate at the level, minus a k3 penalty on tokens."""
    turn_ids = batch["turn_ids"]
    mask = turn_ids >= 0
    gaps = core.token_log_ratios(log_probs, batch["behavior"], mask)
    advantages = core.to_tokens(batch["advantages"], turn_ids)
    if level == "turn":
        gaps = core.to_tokens(core.turn_log_ratios(gaps, turn_ids, H, mean=True), turn_ids)
    if level == "trajectory":
        whole = core.trajectory_log_ratios(gaps, mask, mean=True)
        gaps = jnp.broadcast_to(whole[:, None], gaps.shape)
    values = core.clipped_surrogate(core.ratios(gaps), advantages, 0.2, 0.2)
    values -= 0.1 * core.kl_estimate(log_probs, batch["reference"], "k3")
    return -core.weighted_sum(values, weights)


def evaluate(batch, level, weights=None):
    weights = weights_of(batch, level) if weights is None else weights
    value, gradient = loss(batch["log_probs"], batch, weights, level)
    return np.asarray(value), np.asarray(gradient)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("junk", [0.0, 10.0, np.nan])
def test_what_stands_in_padding_changes_nothing(level, junk):
    batch = make_batch()
    value, gradient = evaluate(batch, level)
    dropped = batch["turn_ids"] < 0
    changed = {**batch}
    for name in ("log_probs", "behavior", "reference"):
        changed[name] = np.where(dropped, np.float32(junk), batch[name])
    # a turn that row 0 never took
    changed["advantages"] = batch["advantages"].copy()
    changed["advantages"][0, 2] = junk
    other_value, other_gradient = evaluate(changed, level)
    np.testing.assert_array_equal(other_value, value)
    np.testing.assert_array_equal(other_gradient, gradient)
    assert (gradient[dropped] == 0).all()
    assert (gradient[~dropped] != 0).any()


@pytest.mark.parametrize("level", LEVELS)
def test_more_padding_changes_nothing(level):
    batch = make_batch()
    value, gradient = evaluate(batch, level)
    wider = {
        name: np.pad(x, ((0, 2), (0, 3)), constant_values=-1 if name == "turn_ids" else np.nan)
        for name, x in batch.items()
        if name != "advantages"
    }
    wider["advantages"] = np.pad(batch["advantages"], ((0, 2), (0, 0)))
    other_value, other_gradient = evaluate(wider, level)
    np.testing.assert_allclose(other_value, value, rtol=1e-6)
    np.testing.assert_allclose(other_gradient[:4, :7], gradient, atol=1e-7)
    np.testing.assert_array_equal(other_gradient[4:], 0)
    np.testing.assert_array_equal(other_gradient[:, 7:], 0)


@pytest.mark.parametrize("level", LEVELS)
def test_row_order_changes_nothing(level):
    batch = make_batch()
    value, gradient = evaluate(batch, level)
    order = np.array([2, 0, 3, 1])
    permuted = {name: x[order] for name, x in batch.items()}
    other_value, other_gradient = evaluate(permuted, level)
    np.testing.assert_allclose(other_value, value, rtol=1e-6)
    np.testing.assert_allclose(other_gradient, gradient[order], atol=1e-7)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("size", [1, 2])
def test_splitting_the_batch_changes_nothing(level, size):
    """Weights are built over the whole batch; then losses and gradients of the parts add up."""
    batch = make_batch()
    value, gradient = evaluate(batch, level)
    weights = weights_of(batch, level)
    parts = [
        evaluate({k: x[i : i + size] for k, x in batch.items()}, level, weights[i : i + size])
        for i in range(0, 4, size)
    ]
    np.testing.assert_allclose(sum(part[0] for part in parts), value, rtol=1e-5)
    np.testing.assert_allclose(np.concatenate([part[1] for part in parts]), gradient, atol=1e-7)


@pytest.mark.parametrize("level", LEVELS)
def test_gradient_matches_finite_differences(level):
    """Central differences in float64 where no ratio sits on a bound."""
    batch = make_batch(seed=4)
    with jax.enable_x64(True):
        batch = {k: x if k == "turn_ids" else np.asarray(x, np.float64) for k, x in batch.items()}
        _, gradient = evaluate(batch, level)
        for n, t in [(0, 0), (0, 2), (1, 5), (3, 3)]:
            sides = []
            for step in (1e-6, -1e-6):
                moved = batch["log_probs"].copy()
                moved[n, t] += step
                sides.append(evaluate({**batch, "log_probs": moved}, level)[0])
            np.testing.assert_allclose(gradient[n, t], (sides[0] - sides[1]) / 2e-6, atol=1e-7)


def test_a_group_without_signal_has_exactly_no_gradient():
    """Equal returns, no penalty: the gradient is 0 to the last bit, at any ratio."""
    batch = make_batch()
    returns, groups = jnp.array([0.7] * 4), jnp.zeros(4, int)
    for scale in (None, "group", "batch"):
        advantages = core.group_relative(returns, groups, 1, scale=scale)
        assert core.has_no_signal(returns, groups, 1).all()

        def objective(log_probs, advantages=advantages):
            mask = batch["turn_ids"] >= 0
            ratios = core.ratios(core.token_log_ratios(log_probs, batch["behavior"], mask))
            spread = jnp.broadcast_to(advantages[:, None], ratios.shape)
            values = core.clipped_surrogate(ratios, spread, 0.2, 0.2)
            return core.weighted_sum(values, core.token_mean_weights(mask))

        gradient = jax.jit(jax.grad(objective))(batch["log_probs"])
        np.testing.assert_array_equal(gradient, 0)
