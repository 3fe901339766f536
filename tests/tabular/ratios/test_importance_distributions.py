"""Distributions of continuation weights and clamped estimates against enumeration."""

import os

import jax
import numpy as np
import pytest

import tabular
from tabular import TurnMDP
from tabular.ratios.importance import continuation_estimate, policy_ratios
from tabular.ratios.weight_distributions import clamped_estimate, continuation_distributions

FRESH = int(os.environ["FRESH_SEED"])
SEEDS = [0, 1, FRESH]


def world(seed, draw):
    mdp, behavior = draw(seed, 4, 2, 2)
    _, policy = draw(seed + 10_000, 4, 2, 2)
    noise = np.random.default_rng(seed).uniform(0.0, 0.5, mdp.rewards.shape)
    return mdp, np.asarray(behavior), np.asarray(policy), noise


def listed(mdp, behavior, ratios, noise, episodes, place):
    """Probability, weight, return and variance of the return of every continuation of a place."""
    turn, state, action = place
    forced = behavior.copy()
    forced[turn, state] = np.eye(behavior.shape[-1])[action]
    paths = [(p, path[1:]) for p, path in episodes(mdp, forced, turn, state)]
    columns = [
        (
            p,
            np.prod([ratios[t, s, a] for t, s, a, _ in path]),
            sum(r for *_, r in path),
            sum(noise[t, s, a] for t, s, a, _ in path),
        )
        for p, path in paths
    ]
    return np.array(columns).T


@pytest.mark.parametrize("clamp", [(0.8, 1.2), (0.1, 10.0), (0.0, 1.5)])
@pytest.mark.parametrize("seed", SEEDS)
def test_clamped_estimates_by_enumeration(seed, clamp, draw, episodes):
    mdp, behavior, policy, noise = world(seed, draw)
    ratios = np.asarray(policy_ratios(mdp, policy, behavior))
    distributions = continuation_distributions(mdp, behavior, ratios, noise)
    bias, variance = clamped_estimate(mdp, policy, distributions, *clamp, noise)
    target = np.asarray(tabular.values(mdp, policy).Q)
    for place in np.ndindex(mdp.rewards.shape):
        p, weights, returns, spreads = listed(mdp, behavior, ratios, noise, episodes, place)
        clamped = np.minimum(np.maximum(weights, clamp[0]), clamp[1])
        first = p @ (clamped * returns)
        second = p @ (clamped**2 * (returns**2 + spreads))
        expected = mdp.rewards[place] + first - target[place]
        assert abs(bias[place] - expected) < 1e-12, f"{seed=} {place=}"
        expected = noise[place] + second - first**2
        assert abs(variance[place] - expected) < 1e-11, f"{seed=} {place=}"


@pytest.mark.parametrize("seed", SEEDS)
def test_without_a_clamp_they_are_the_exact_and_the_stale_estimate(seed, draw):
    mdp, behavior, policy, noise = world(seed, draw)
    ratios = policy_ratios(mdp, policy, behavior)
    distributions = continuation_distributions(mdp, behavior, ratios, noise)
    for factors, clamp in ((ratios, (0.0, np.inf)), (np.ones_like(ratios), (1.0, 1.0))):
        expected = continuation_estimate(mdp, policy, behavior, factors, noise)
        found = clamped_estimate(mdp, policy, distributions, *clamp, noise)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12, err_msg=f"{seed=}")


@pytest.mark.parametrize("seed", SEEDS)
def test_distribution_is_that_of_the_listed_continuations(seed, draw, episodes):
    mdp, behavior, policy, noise = world(seed, draw)
    ratios = np.asarray(policy_ratios(mdp, policy, behavior))
    place = (0, 1, 1)
    found = continuation_distributions(mdp, behavior, ratios, noise)[place]
    p, weights, returns, _ = listed(mdp, behavior, ratios, noise, episodes, place)
    assert (np.diff(found.weights) > 0).all()
    for bound in np.quantile(weights, [0.1, 0.5, 0.9]) * (1 + 1e-9):
        below = found.weights <= bound
        assert abs(found.probability[below].sum() - p[weights <= bound].sum()) < 1e-12
        expected = (p * returns)[weights <= bound].sum()
        assert abs(found.first[below].sum() - expected) < 1e-12, f"{seed=}"
    assert abs(found.probability.sum() - 1.0) < 1e-12
    assert abs(found.probability @ found.weights - 1.0) < 1e-12, f"{seed=}"


def test_two_ratios_over_sixty_turns_have_sixty_products():
    # N turns follow turn 0 with 59 later ones: products 1.2^i .8^(59 - i), binomial probabilities.
    shape = (60, 1, 2)
    mdp = TurnMDP(np.ones((*shape, 1)), np.zeros(shape), np.ones(1))
    policy = np.broadcast_to([0.6, 0.4], shape)
    behavior = tabular.uniform_policy(mdp)
    ratios = policy_ratios(mdp, policy, behavior)
    found = continuation_distributions(mdp, behavior, ratios)[0, 0, 0]
    powers = np.arange(60)
    np.testing.assert_allclose(found.weights, 1.2**powers * 0.8 ** (59 - powers), rtol=1e-12)
    choose = np.array([1.0])
    for _ in range(59):
        choose = np.append(choose, 0.0) / 2 + np.append(0.0, choose) / 2
    np.testing.assert_allclose(found.probability, choose, rtol=1e-10)


def test_a_weight_of_zero_is_one_point():
    shape = (3, 1, 2)
    mdp = TurnMDP(np.ones((*shape, 1)), np.ones(shape), np.ones(1))
    policy = np.broadcast_to([1.0, 0.0], shape)
    behavior = tabular.uniform_policy(mdp)
    ratios = policy_ratios(mdp, policy, behavior)
    found = continuation_distributions(mdp, behavior, ratios)[0, 0, 0]
    np.testing.assert_array_equal(found.weights, [0.0, 4.0])
    np.testing.assert_allclose(found.probability, [0.75, 0.25], rtol=1e-15)
    np.testing.assert_allclose(found.first, [1.5, 0.5], rtol=1e-15)


def test_refusals(draw):
    mdp, behavior, policy, _ = world(0, draw)
    ratios = policy_ratios(mdp, policy, behavior)
    with pytest.raises(ValueError, match="limit is 10 but a distribution has"):
        continuation_distributions(mdp, behavior, ratios, limit=10)
    with pytest.raises(ValueError, match="arguments are traced"):
        jax.jit(lambda factors: continuation_distributions(mdp, behavior, factors)[0])(ratios)
    distributions = continuation_distributions(mdp, behavior, ratios)
    with pytest.raises(ValueError, match="clamp_low is 2.0, clamp_high 1.0"):
        clamped_estimate(mdp, policy, distributions, 2.0, 1.0)
