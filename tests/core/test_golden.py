"""Worked example: one task, four trajectories of two turns with two tokens each.

Every number below follows with a pocket calculator from the log-ratios D and the returns R, e.g.
the geometric ratio of trajectory 0, turn 0 is exp((.3 - .1) / 2) = exp(.1) = 1.105171; the gradient
norms were confirmed by finite differences of an independent implementation in numpy.
Run: pytest tests/core/test_golden.py
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rtpo_jax import core

# log pi - log pi_behavior, [N, T] = four trajectories x (two tokens of turn 0, two of turn 1)
D = np.array(
    [[0.3, -0.1, 0.05, 0.25], [-0.3, 0.1, 0.2, -0.25], [0, 0.4, -0.1, 0.1], [-0.05, 0, 0.3, 0.3]],
    np.float32,
)
R = np.array([1.0, 0.0, 0.0, 1.0], np.float32)
GROUP = np.zeros(4, np.int32)
MASK = np.ones((4, 4), bool)
TURN_IDS = np.array([[0, 0, 1, 1]] * 4)
A = np.array([0.5, -0.5, -0.5, 0.5], np.float32)


@jax.jit
def log_ratios(log_probs):
    return core.token_log_ratios(log_probs, np.zeros_like(D), MASK)


@jax.jit
def turn_ratios(log_probs):
    return core.ratios(core.turn_log_ratios(log_ratios(log_probs), TURN_IDS, 2, mean=True))


def test_group_advantages():
    np.testing.assert_allclose(core.group_relative(R, GROUP, 1), A)
    # sample variance = 4 * .25 / 3, std = .577350, .5 / .577350 = .866025
    scaled = core.group_relative(R, GROUP, 1, scale="group", epsilon=0.0)
    np.testing.assert_allclose(scaled, np.sign(A) * 0.866025, rtol=1e-6)
    # population std is exactly .5
    scaled = core.group_relative(R, GROUP, 1, scale="group", ddof=0, epsilon=0.0)
    np.testing.assert_allclose(scaled, np.sign(A))
    # one against the mean of the others: 1 - 1/3
    np.testing.assert_allclose(core.leave_one_out(R, GROUP, 1), np.sign(A) * 2 / 3, rtol=1e-6)


def test_epsilon_is_added_to_the_standard_deviation():
    # .5 / (.5 + .75), so neither sqrt(var + epsilon) nor max(std, epsilon)
    scaled = core.group_relative(R, GROUP, 1, scale="group", ddof=0, epsilon=0.75)
    np.testing.assert_allclose(scaled, np.sign(A) * 0.4, rtol=1e-6)


def test_ratios_at_three_levels():
    token = core.ratios(log_ratios(D))
    expected = [
        [1.349859, 0.904837, 1.051271, 1.284025],
        [0.740818, 1.105171, 1.221403, 0.778801],
        [1, 1.491825, 0.904837, 1.105171],
        [0.951229, 1, 1.349859, 1.349859],
    ]
    np.testing.assert_allclose(token, expected, rtol=1e-6)
    expected = [[1.105171, 1.161834], [0.904837, 0.975310], [1.221403, 1], [0.975310, 1.349859]]
    np.testing.assert_allclose(turn_ratios(D), expected, rtol=1e-6)
    trajectory = core.ratios(core.trajectory_log_ratios(log_ratios(D), MASK, mean=True))
    np.testing.assert_allclose(trajectory, [1.133148, 0.939413, 1.105171, 1.147402], rtol=1e-6)
    # exp of the sum over all four tokens: .5, -.25, .4, .55
    product = core.ratios(core.trajectory_log_ratios(log_ratios(D), MASK, mean=False))
    np.testing.assert_allclose(product, np.exp([0.5, -0.25, 0.4, 0.55]), rtol=1e-6)


@pytest.mark.parametrize(("clip_high", "expected"), [(0.2, 0.008716601), (0.28, 0.018716601)])
def test_token_level_surrogate(clip_high, expected):
    values = core.clipped_surrogate(
        core.ratios(log_ratios(D)), np.repeat(A[:, None], 4, 1), 0.2, clip_high
    )
    objective = core.weighted_sum(values, core.token_mean_weights(MASK))
    np.testing.assert_allclose(objective, expected, atol=5e-8)


def test_turn_and_trajectory_level_surrogates():
    by_turn = core.clipped_surrogate(turn_ratios(D), np.repeat(A[:, None], 2, 1), 0.2, 0.2)
    np.testing.assert_allclose(by_turn.mean(), 0.021297812, atol=5e-8)
    # Handing the turn's value to its tokens and averaging inside turns changes nothing.
    weights = core.turn_mean_weights(MASK, TURN_IDS, 2)
    over_tokens = core.weighted_sum(core.to_tokens(by_turn, TURN_IDS), weights)
    np.testing.assert_allclose(over_tokens, 0.021297812, atol=5e-8)
    trajectory = core.ratios(core.trajectory_log_ratios(log_ratios(D), MASK, mean=True))
    by_trajectory = core.clipped_surrogate(trajectory, A, 0.2, 0.2)
    np.testing.assert_allclose(by_trajectory.mean(), 0.029495766, atol=5e-8)


def test_k3_against_the_behavior_policy():
    values = core.kl_estimate(D, np.zeros_like(D), "k3")
    np.testing.assert_allclose(values.mean(), 0.021669229, atol=1e-8)


def test_clip_fractions():
    # tokens beyond: (0,0), (0,3) above 1.2 with A > 0; (1,0), (1,3) below .8 with A < 0;
    # (3,2), (3,3) above 1.2 with A > 0: 6 of 16. Turns: only (3,1): 1 of 8.
    clipped = core.is_clipped(core.ratios(log_ratios(D)), np.repeat(A[:, None], 4, 1), 0.2, 0.2)
    expected = [[1, 0, 0, 1], [1, 0, 0, 1], [0, 0, 0, 0], [0, 0, 1, 1]]
    np.testing.assert_array_equal(clipped, np.array(expected, bool))
    clipped = core.is_clipped(turn_ratios(D), np.repeat(A[:, None], 2, 1), 0.2, 0.2)
    np.testing.assert_array_equal(clipped, np.array([[0, 0], [0, 0], [0, 0], [0, 1]], bool))


@pytest.mark.parametrize(
    ("level", "gradient_norm", "bias_norm"),
    [("token", 0.107382025, 0.089869806), ("turn", 0.123303138, 0.059655895)],
)
def test_gradient_and_clipping_bias(level, gradient_norm, bias_norm):
    """Norms of the clipped gradient g and the clipping bias C, and g = unclipped gradient - C."""
    of = turn_ratios if level == "turn" else lambda x: core.ratios(log_ratios(x))
    advantages = np.repeat(A[:, None], 2 if level == "turn" else 4, 1)

    def clipped(x):
        return core.clipped_surrogate(of(x), advantages, 0.2, 0.2).mean()

    def bias(x):
        beyond = core.is_clipped(of(x), advantages, 0.2, 0.2)
        return (core.importance_weighted(of(x), advantages) * beyond).mean()

    def unclipped(x):
        return core.importance_weighted(of(x), advantages).mean()

    g, c, full = (jax.jit(jax.grad(f))(jnp.asarray(D)) for f in (clipped, bias, unclipped))
    np.testing.assert_allclose(jnp.linalg.norm(g), gradient_norm, rtol=1e-6)
    np.testing.assert_allclose(jnp.linalg.norm(c), bias_norm, rtol=1e-6)
    np.testing.assert_allclose(g, full - c, atol=1e-8)


def test_seeupo_normalisation_and_compound_ratio():
    normalised = core.group_relative(R, GROUP, 1, scale="batch", epsilon=0.0)
    np.testing.assert_allclose(normalised, np.sign(A) * 0.866025, rtol=1e-6)
    last = {
        mean: core.ratios(core.turn_log_ratios(D, TURN_IDS, 2, mean=mean))[:, 1]
        for mean in (True, False)
    }
    product = normalised * last[False]
    np.testing.assert_allclose(product, [1.169012, -0.823789, -0.866025, 1.578001], rtol=1e-6)
    geometric = normalised * last[True]
    np.testing.assert_allclose(geometric, [1.006178, -0.844643, -0.866025, 1.169012], rtol=1e-6)
    first = turn_ratios(D)[:, 0]
    surrogate = core.clipped_surrogate(first, product, 0.2, 0.2).mean()
    np.testing.assert_allclose(surrogate, 0.256959366, rtol=1e-6)
    # with the factor additionally clamped to [.8, 1.2]
    clamped = jnp.array([1.006178, -0.844643, -0.866025, 1.039230])
    surrogate = core.clipped_surrogate(first, clamped, 0.2, 0.2).mean()
    np.testing.assert_allclose(surrogate, 0.075884967, atol=1e-6)


def test_rtpo_stage_objective():
    """Two siblings (turn 1 of trajectories 0 and 1), returns 1 and 0, advantages +-1/2."""
    siblings, mask = D[:2, 2:], np.ones((2, 2), bool)
    advantages = core.sibling_relative(R[:2], np.zeros(2, int), 1)
    np.testing.assert_allclose(advantages, [0.5, -0.5])
    values = core.clipped_surrogate(
        core.ratios(siblings), np.repeat(np.asarray(advantages)[:, None], 2, 1), 0.2, 0.2
    )
    # token mean inside each sibling, then over siblings:
    # ((1.051271 + 1.2) / 2 - (1.221403 + .8) / 2) / 4 = .028733542
    objective = core.weighted_sum(values, core.sequence_mean_weights(mask))
    np.testing.assert_allclose(objective, 0.028733542, atol=5e-8)


def test_token_and_turn_level_disagree_on_what_is_clipped():
    """One turn, two tokens, A = 1, ratios (1.5, .9): the token level clips, the turn level not."""
    log_probs = jnp.log(jnp.array([[1.5, 0.9]]))
    ones = jnp.ones((1, 2))

    def bias(x):
        ratios = core.ratios(x)
        clipped = core.is_clipped(ratios, ones, 0.2, 0.2)
        return (core.importance_weighted(ratios, ones) * clipped).mean()

    np.testing.assert_allclose(jax.jit(jax.grad(bias))(log_probs), [[0.75, 0.0]], rtol=1e-6)
    turn_ids = jnp.zeros((1, 2), int)
    ratio = core.ratios(core.turn_log_ratios(log_probs, turn_ids, 1, mean=True))
    np.testing.assert_allclose(ratio, [[1.161895]], rtol=1e-6)  # sqrt(1.5 * .9)
    assert not core.is_clipped(ratio, jnp.ones((1, 1)), 0.2, 0.2).any()
