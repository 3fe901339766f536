"""The decomposition of the clipped gradient against worked numbers and finite differences."""

import functools
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tabular.ratios.clipping import (
    clipped_objective,
    clipping_bias_objective,
    gradient_terms,
    pull_back,
    score_coefficients,
    unit_ratios,
)
from tabular.ratios.token_rows import TokenRows

FRESH = int(os.environ["FRESH_SEED"])
SEEDS = [0, FRESH]
OBJECTIVE = jax.jit(clipped_objective, static_argnums=(2, 3, 4))
GRADIENT = jax.jit(jax.grad(clipped_objective), static_argnums=(2, 3, 4))
BIAS = jax.jit(jax.grad(clipping_bias_objective), static_argnums=(2, 3, 4))
TERMS = jax.jit(gradient_terms, static_argnums=(3, 4, 5))
SCORES = jax.jit(score_coefficients, static_argnums=(3, 4))
LEVELS = ["token", "turn_mean", "turn_product"]
NUM_TURNS = 3
TURN_IDS = np.array([[0, 0, -1, 1, 1, 1, -1, 2], [0, -1, 1, 1, -1, -1, -1, -1]])

# log pi - log pi_behavior and advantages of four trajectories of two turns with two tokens.
D = np.array(
    [[0.3, -0.1, 0.05, 0.25], [-0.3, 0.1, 0.2, -0.25], [0, 0.4, -0.1, 0.1], [-0.05, 0, 0.3, 0.3]]
)
A = np.repeat(np.array([0.5, -0.5, -0.5, 0.5])[:, None], 4, axis=1)


def golden_rows():
    turn_ids = np.broadcast_to([0, 0, 1, 1], (4, 4))
    return TokenRows(jnp.zeros((4, 4)), jnp.asarray(A), jnp.full((4, 4), 1 / 16), turn_ids)


def random_rows(seed):
    """Ragged rows, log-ratios large enough that about half of the tokens are clipped."""
    rng = np.random.default_rng(seed)
    shape = TURN_IDS.shape
    behavior, advantages = rng.normal(size=shape) - 1.0, rng.normal(size=shape)
    weights = np.where(TURN_IDS >= 0, rng.uniform(0.1, 1.0, shape), 0.0)
    log_probs = behavior + rng.normal(size=shape) * 0.6
    rows = TokenRows(*(jnp.asarray(x) for x in (behavior, advantages, weights)), TURN_IDS)
    return jnp.asarray(log_probs), rows


def by_hand(log_probs, rows, level, clip):
    """Ratios of the units, the clipped objective and who is clipped, in loops."""
    log_ratios = np.asarray(log_probs) - np.asarray(rows.behavior_log_probs)
    total, ratios, clipped = 0.0, np.ones(TURN_IDS.shape), np.zeros(TURN_IDS.shape, bool)
    for n, t in zip(*np.nonzero(TURN_IDS >= 0), strict=True):
        unit = [t] if level == "token" else np.flatnonzero(TURN_IDS[n] == TURN_IDS[n, t])
        log_ratio = log_ratios[n, unit].sum() / (len(unit) if level == "turn_mean" else 1)
        ratio, advantage = np.exp(log_ratio), float(rows.advantages[n, t])
        value = min(ratio * advantage, np.clip(ratio, 1 - clip, 1 + clip) * advantage)
        total += float(rows.weights[n, t]) * value
        ratios[n, t], clipped[n, t] = ratio, value < ratio * advantage - 1e-15
    return ratios, total, clipped


def differences(function, log_probs, step=1e-6):
    found = np.zeros(log_probs.shape)
    for index in np.ndindex(log_probs.shape):
        up, down = (log_probs.at[index].add(sign * step) for sign in (1, -1))
        found[index] = (function(up) - function(down)) / (2 * step)
    return found


@pytest.mark.parametrize(
    ("level", "gradient_norm", "bias_norm"),
    [("token", 0.107382025, 0.089869806), ("turn_mean", 0.123303138, 0.059655895)],
)
def test_worked_example(level, gradient_norm, bias_norm):
    rows, log_probs = golden_rows(), jnp.asarray(D)
    terms = TERMS(log_probs, jnp.zeros((4, 4)), rows, 2, level, 0.2)
    # Tolerance of the nine decimals of the example.
    np.testing.assert_allclose(jnp.linalg.norm(terms.gradient), gradient_norm, atol=1e-9)
    np.testing.assert_allclose(jnp.linalg.norm(terms.clipping_bias), bias_norm, atol=1e-9)
    for gradient, expected in ((GRADIENT, gradient_norm), (BIAS, bias_norm)):
        found = gradient(log_probs, rows, 2, level, 0.2)
        np.testing.assert_allclose(jnp.linalg.norm(found), expected, atol=1e-9)


def test_turn_ratio_hides_what_the_token_ratio_clips():
    # Advantage 1, ratios 1.5 and .9: token 0 is clipped, the turn's sqrt(1.35) = 1.1619 is not.
    log_probs = jnp.log(jnp.array([[1.5, 0.9]]))
    rows = TokenRows(
        jnp.zeros((1, 2)), jnp.ones((1, 2)), jnp.full((1, 2), 0.5), np.zeros((1, 2), int)
    )
    token = BIAS(log_probs, rows, 1, "token", 0.2)
    np.testing.assert_allclose(token, [[0.75, 0.0]], rtol=1e-14)
    turn = BIAS(log_probs, rows, 1, "turn_mean", 0.2)
    np.testing.assert_array_equal(turn, 0.0)
    product = BIAS(log_probs, rows, 1, "turn_product", 0.2)
    np.testing.assert_allclose(product, [[1.35, 1.35]], rtol=1e-14)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("seed", SEEDS)
def test_ratios_and_objective_by_hand(seed, level):
    log_probs, rows = random_rows(seed)
    ratios, total, _ = by_hand(log_probs, rows, level, 0.2)
    found = unit_ratios(log_probs, rows, NUM_TURNS, level)
    np.testing.assert_allclose(found, ratios, rtol=1e-13, err_msg=f"{seed=}")
    found = OBJECTIVE(log_probs, rows, NUM_TURNS, level, 0.2)
    assert abs(found - total) < 1e-13, f"{seed=}"


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("seed", SEEDS)
def test_terms_by_finite_differences(seed, level):
    log_probs, rows = random_rows(seed)
    whole = differences(lambda x: OBJECTIVE(x, rows, NUM_TURNS, level, 0.2), log_probs)
    free = differences(lambda x: OBJECTIVE(x, rows, NUM_TURNS, level, 1e9), log_probs)
    true = jnp.asarray(np.random.default_rng(seed + 1).normal(size=log_probs.shape))
    terms = TERMS(log_probs, true, rows, NUM_TURNS, level, 0.2)
    close = functools.partial(np.testing.assert_allclose, rtol=0, atol=2e-8, err_msg=f"{seed=}")
    close(terms.gradient, whole)
    close(terms.clipping_bias, free - whole)
    # Lemma 4.1, and its sum over the tokens that are not clipped.
    close(SCORES(rows.advantages, log_probs, rows, NUM_TURNS, level), free)
    clipped = by_hand(log_probs, rows, level, 0.2)[2]
    kept = jnp.where(clipped, 0.0, rows.advantages)
    close(SCORES(kept, log_probs, rows, NUM_TURNS, level), whole)
    # The policy gradient is linear in the true advantages and knows nothing of the estimated ones.
    with_true = rows._replace(advantages=true)
    found = differences(lambda x: OBJECTIVE(x, with_true, NUM_TURNS, level, 1e9), log_probs)
    close(terms.policy_gradient, found)
    assert abs(terms.clipping_bias).max() > 1e-2, f"{seed=}"


def test_pull_back_is_the_sum_of_scores():
    rng = np.random.default_rng(FRESH)
    coefficients, params = jnp.asarray(rng.normal(size=(3, 2))), jnp.asarray(rng.normal(size=5))
    actions = np.array([[0, 1], [4, 4], [2, 3]])
    found = pull_back(lambda p: jax.nn.log_softmax(p)[actions], params, coefficients)
    softmax = np.exp(params) / np.exp(params).sum()
    expected = sum(
        c * (np.eye(5)[a] - softmax)
        for c, a in zip(np.ravel(coefficients), actions.ravel(), strict=True)
    )
    np.testing.assert_allclose(found, expected, atol=1e-14)
