"""Moments of continuation weights against enumeration, closed forms and hand-made worlds."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tabular
from tabular import TurnMDP
from tabular.moments import return_moments, reward_noise
from tabular.ratios.importance import (
    clip_ratios,
    continuation_estimate,
    policy_ratios,
    weight_moments,
)

FRESH = int(os.environ["FRESH_SEED"])
SEEDS = [0, 1, FRESH]
ESTIMATE = jax.jit(continuation_estimate)


def world(seed, draw, num_turns=4):
    mdp, behavior = draw(seed, num_turns, 2, 2)
    _, policy = draw(seed + 10_000, num_turns, 2, 2)
    factors = np.random.default_rng(seed).uniform(0.2, 2.0, mdp.rewards.shape)
    return mdp, np.asarray(behavior), np.asarray(policy), factors


def continuations(mdp, sampler, episodes, turn, state, action):
    """(probability, [(turn, state, action, reward), ..] of the later turns) after (h, s, a)."""
    forced = np.array(sampler)
    forced[turn, state] = np.eye(forced.shape[-1])[action]
    return [(p, path[1:]) for p, path in episodes(mdp, forced, turn, state)]


def brute_force(mdp, sampler, factors, noise, episodes, turn, state, action):
    """Mean and variance of r + w G by listing every continuation; noise is independent by turn."""
    paths = continuations(mdp, sampler, episodes, turn, state, action)
    weights = np.array([np.prod([factors[t, s, a] for t, s, a, _ in path]) for _, path in paths])
    returns = np.array([sum(r for *_, r in path) for _, path in paths])
    spreads = np.array([sum(noise[t, s, a] for t, s, a, _ in path) for _, path in paths])
    p = np.array([probability for probability, _ in paths])
    first = p @ (weights * returns)
    second = p @ (weights**2 * (returns**2 + spreads))
    reward = np.asarray(mdp.rewards)[turn, state, action]
    return reward + first, noise[turn, state, action] + second - first**2


@pytest.mark.parametrize("seed", SEEDS)
def test_bias_and_variance_of_any_product_weight_by_enumeration(seed, draw, episodes):
    mdp, behavior, policy, factors = world(seed, draw)
    noise = np.random.default_rng(seed + 1).uniform(0.0, 0.5, mdp.rewards.shape)
    bias, variance = ESTIMATE(mdp, policy, behavior, factors, jnp.asarray(noise))
    target = np.asarray(tabular.values(mdp, policy).Q)
    for turn, state, action in np.ndindex(mdp.rewards.shape):
        place = (turn, state, action)
        mean, spread = brute_force(mdp, behavior, factors, noise, episodes, *place)
        assert abs(bias[place] - (mean - target[place])) < 1e-12, f"{seed=} {place=}"
        assert abs(variance[place] - spread) < 1e-11, f"{seed=} {place=}"


@pytest.mark.parametrize("seed", SEEDS)
def test_moments_of_the_weight_by_enumeration(seed, draw, episodes):
    mdp, behavior, _, factors = world(seed, draw)
    first, second = map(np.asarray, weight_moments(mdp, behavior, factors))
    np.testing.assert_array_equal(first[-1], 1.0)
    np.testing.assert_array_equal(second[-1], 1.0)
    for turn, state in np.ndindex(first[:-1].shape):
        paths = episodes(mdp, behavior, turn, state)
        weights = [np.prod([factors[t, s, a] for t, s, a, _ in path]) for _, path in paths]
        p = np.array([probability for probability, _ in paths])
        assert abs(first[turn, state] - p @ weights) < 1e-12, f"{seed=}"
        assert abs(second[turn, state] - p @ np.square(weights)) < 1e-11, f"{seed=}"


@pytest.mark.parametrize("seed", SEEDS)
def test_four_modes_have_the_bias_the_theorem_gives_them(seed, draw):
    mdp, behavior, policy, _ = world(seed, draw)
    ratios = policy_ratios(mdp, policy, behavior)
    ones = jnp.ones_like(ratios)
    fresh = ESTIMATE(mdp, policy, policy, ones)
    np.testing.assert_allclose(fresh.bias, 0.0, atol=1e-13, err_msg=f"{seed=}")
    expected = return_moments(mdp, policy).variance
    np.testing.assert_allclose(fresh.variance, expected, atol=1e-12, err_msg=f"{seed=}")
    exact = ESTIMATE(mdp, policy, behavior, ratios)
    np.testing.assert_allclose(exact.bias, 0.0, atol=1e-12, err_msg=f"{seed=}")
    np.testing.assert_allclose(weight_moments(mdp, behavior, ratios).first, 1.0, atol=1e-12)
    # Stale: the value of the next state under the behaviour instead of the policy.
    later = np.zeros_like(np.asarray(tabular.values(mdp, policy).V))
    later[:-1] = (tabular.values(mdp, behavior).V - tabular.values(mdp, policy).V)[1:]
    gap = np.einsum("hsat,ht->hsa", mdp.transitions, later[:-1])
    stale = ESTIMATE(mdp, policy, behavior, ones)
    np.testing.assert_allclose(stale.bias, gap, atol=1e-13, err_msg=f"{seed=}")
    assert abs(gap).max() > 1e-3, f"{seed=}"
    # Nothing follows the last turn: no bias and no variance in any mode.
    for found in (fresh, exact, stale):
        np.testing.assert_allclose(found.bias[-1], 0.0, atol=1e-14)
        np.testing.assert_allclose(found.variance[-1], 0.0, atol=1e-14)


@pytest.mark.parametrize(("num_turns", "expected"), [(10, 0.480244), (100, 49.504948)])
def test_ratios_of_a_fifth_by_hand(num_turns, expected):
    # E[ratio^2] = (1.44 + .64) / 2 = 1.04; Var = 1.04^N - 1.
    shape = (num_turns, 1, 2)
    mdp = TurnMDP(np.ones((*shape, 1)), np.zeros(shape), np.ones(1))
    policy = np.broadcast_to([0.6, 0.4], shape)
    behavior = tabular.uniform_policy(mdp)
    ratios = policy_ratios(mdp, policy, behavior)
    np.testing.assert_allclose(ratios[0, 0], [1.2, 0.8], rtol=1e-15)
    moments = weight_moments(mdp, behavior, ratios)
    assert float(moments.second[0, 0] - 1.0) == pytest.approx(expected, rel=1e-6)
    # The second half of the episode alone: the row counts turns from h on.
    half = moments.second[num_turns // 2, 0]
    assert float(half) == pytest.approx(1.04 ** (num_turns // 2), rel=1e-12)


def test_early_ends_stop_the_weight():
    # After turn 0 the episode goes on with probability 1/4; ratios 2 or 0 after that.
    shape = (2, 1, 2)
    transitions = np.full((*shape, 1), 0.25)
    mdp = TurnMDP(transitions, np.zeros(shape), np.ones(1))
    policy = np.array([[[0.5, 0.5]], [[1.0, 0.0]]])
    behavior = tabular.uniform_policy(mdp)
    ratios = policy_ratios(mdp, policy, behavior)
    # E[w^2] = 3/4 + 1/4 * (4 / 2) = 1.25.
    assert weight_moments(mdp, behavior, ratios).second[0, 0] == pytest.approx(1.25, rel=1e-15)


def test_an_ideal_proposal_beats_a_fresh_continuation():
    # Behaviour proportional to policy times reward: w r = .5 / .8 = .5 * .25 / .2 = .625 always.
    rewards = np.zeros((2, 1, 2))
    rewards[1] = [1.0, 0.25]
    mdp = TurnMDP(np.ones((2, 1, 2, 1)), rewards, np.ones(1))
    policy = np.full((2, 1, 2), 0.5)
    behavior = np.array([[[0.5, 0.5]], [[0.8, 0.2]]])
    ratios = policy_ratios(mdp, policy, behavior)
    weighted = ESTIMATE(mdp, policy, behavior, ratios).variance[0]
    np.testing.assert_allclose(weighted, 0.0, atol=1e-15)
    fresh = ESTIMATE(mdp, policy, policy, jnp.ones_like(ratios)).variance[0]
    np.testing.assert_allclose(fresh, (0.75 / 2) ** 2, rtol=1e-14)


def test_clip_is_that_of_numpy():
    ratios = jnp.array([0.0, 0.5, 0.7, 0.75, 1.0, 1.3, 1.4, 1.5, 9.0])
    found = clip_ratios(ratios, 0.3, 0.4)
    np.testing.assert_allclose(found, np.clip(ratios, 0.7, 1.4), rtol=0, atol=1e-15)


def test_ratios_where_a_policy_does_not_act():
    mdp = tabular.lock(2, num_actions=3)
    policy = np.broadcast_to([0.5, 0.5, 0.0], (2, 2, 3))
    behavior = np.broadcast_to([1.0, 0.0, 0.0], (2, 2, 3))
    np.testing.assert_array_equal(policy_ratios(mdp, behavior, policy)[0, 0], [2.0, 0.0, 0.0])
    with pytest.raises(ValueError, match=r"behavior\[0, 0, 1\] is 0 but policy\[0, 0, 1\] is 0.5"):
        policy_ratios(mdp, policy, behavior)
    # Inside jit the numbers are not known; the ratio of what is never sampled is never used.
    assert np.isfinite(jax.jit(policy_ratios)(mdp, policy, behavior)).all()


def test_refusals():
    mdp = tabular.lock(2)
    policy = tabular.uniform_policy(mdp)
    with pytest.raises(ValueError, match="reward_variances has shape"):
        reward_noise(mdp, jnp.zeros((2, 2)))
    with pytest.raises(ValueError, match="policy"):
        continuation_estimate(mdp, policy, policy[:1], policy)


def test_vmap_over_64_mdps_changes_nothing(draw):
    worlds = [world(seed, draw) for seed in range(64)]
    mdps = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(w[0] for w in worlds))
    tables = [jnp.stack([w[i] for w in worlds]) for i in (1, 2, 3)]
    mapped = jax.jit(jax.vmap(continuation_estimate))(mdps, tables[1], tables[0], tables[2])
    for seed in range(0, 64, 7):
        mdp, behavior, policy, factors = worlds[seed]
        alone = ESTIMATE(mdp, policy, behavior, factors)
        for expected, found in zip(alone, mapped, strict=True):
            np.testing.assert_allclose(found[seed], expected, 0, 1e-13, err_msg=f"{seed=}")
