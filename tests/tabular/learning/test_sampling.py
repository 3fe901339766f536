"""Sampled states and returns against exact occupancies and moments."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tabular
from tabular.learning.sampling import (
    check_outcomes,
    pick,
    pick_action,
    returns_from,
    trunk_states,
    uniform,
)


@pytest.fixture
def case(draw):
    seed = int(os.environ["FRESH_SEED"])
    mdp, policy = draw(seed, 3, 3, 2, termination=0.8)
    rewards = 1 / (1 + np.exp(-np.asarray(mdp.rewards)))
    return seed, tabular.TurnMDP(mdp.transitions, rewards, mdp.start), jnp.asarray(policy)


def test_pick_counts_the_mass_below_a_draw():
    rows = jnp.array([[0.2, 0.3, 0.5], [0.0, 0.4, 0.0], [0.2, 0.3, 0.5]])
    assert pick(rows, jnp.array([0.2, 0.5, 0.1])).tolist() == [1, 3, 0]
    assert pick_action(rows[:1], jnp.array([0.9999999999])).tolist() == [2]
    assert pick_action(jnp.array([0.0, 0.0, 1.0]), jnp.zeros(())) == 2


def test_trunks_visit_states_as_occupancy_says(case):
    seed, mdp, policy = case
    num = 20_000
    states = trunk_states(uniform(jax.random.key(seed + 1), (7, num)), mdp, policy)
    assert states.shape == (num, 3)
    expected = np.asarray(tabular.occupancy(mdp, policy))
    found = np.stack([(np.asarray(states) == s).mean(0) for s in range(3)], axis=1)
    error = np.sqrt(expected * (1 - expected) / num) + 1e-4
    assert (abs(found - expected) < 5 * error).all(), f"{seed=}"
    ended = np.asarray(states) == 3
    assert (ended[:, 1:] >= ended[:, :-1]).all(), f"{seed=}"


@pytest.mark.parametrize("turn", [0, 1, 2])
def test_returns_have_the_exact_mean_and_variance(case, turn):
    seed, mdp, policy = case
    num, state, action = 20_000, 1, 1
    moments = tabular.return_moments(mdp, policy, mdp.rewards * (1 - mdp.rewards))
    draws = uniform(jax.random.key(seed + 2), (3, 3, num))
    states = jnp.full(num, state)
    found = np.asarray(returns_from(draws, mdp, policy, turn, states, jnp.full(num, action)))
    mean, variance = (float(t[turn, state, action]) for t in (moments.first, moments.variance))
    assert abs(found.mean() - mean) < 5 * (variance / num) ** 0.5, f"{seed=}"
    spread = ((found - mean) ** 2).std() / num**0.5
    assert abs(((found - mean) ** 2).mean() - variance) < 5 * spread + 1e-9, f"{seed=}"


def test_ended_episodes_return_nothing(case):
    _, mdp, policy = case
    draws = uniform(jax.random.key(0), (3, 3, 4))
    states = jnp.array([3, 3, 3, 3])
    assert not returns_from(draws, mdp, policy, 0, states, jnp.zeros(4, int)).any()


def test_bad_input_is_refused(case):
    _, mdp, policy = case
    wild = tabular.TurnMDP(mdp.transitions, mdp.rewards + 1.0, mdp.start)
    with pytest.raises(ValueError, match=r"rewards\[0, 0, 0\] is 1.*from 0 to 1"):
        check_outcomes(wild)
    with pytest.raises(ValueError, match="draws has shape"):
        trunk_states(jnp.zeros((6, 4)), mdp, policy)
    with pytest.raises(ValueError, match="draws has shape"):
        returns_from(jnp.zeros((3, 2, 4)), mdp, policy, 0, jnp.zeros(4, int), jnp.zeros(4, int))
