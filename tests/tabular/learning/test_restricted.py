"""Restricted policies against enumeration in plain Python and closed forms."""

import itertools
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tabular
from tabular.learning.restricted import (
    absent_minded,
    best_deterministic,
    best_stochastic,
    deterministic_rules,
    greedy_sweep,
    number_by_turn,
    pool,
)


@pytest.fixture
def seed():
    return int(os.environ["FRESH_SEED"])


def clear(mdp):
    return jnp.broadcast_to(jnp.arange(mdp.num_states), mdp.rewards.shape[:2])


def test_numbers_differ_between_turns_only():
    found = number_by_turn(np.array([[0, 2], [2, 2]]))
    assert found.tolist() == [[0, 1], [2, 2]]
    assert number_by_turn(np.array([[0, 2], [0, 1]])).tolist() == [[0, 1], [2, 3]]


def test_pool_is_the_conditional_mean():
    weights = jnp.array([0.1, 0.3, 0.0])
    table = jnp.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    found = pool(weights, table, jnp.array([2, 2, 0]))
    expected = [[0, 0], [0, 0], [(0.1 + 0.9) / 0.4, (0.2 + 1.2) / 0.4]]
    np.testing.assert_allclose(found, expected, atol=1e-15)


def test_reverse_greedy_is_optimal_everywhere(seed):
    mdp = tabular.random_mdp(jax.random.key(seed), 3, 3, 2, termination=0.5)
    trunk = tabular.uniform_policy(mdp)
    policy = greedy_sweep(mdp, trunk, tabular.reverse_order(3), clear(mdp))
    found = tabular.values(mdp, policy).V
    np.testing.assert_allclose(found, tabular.optimal_values(mdp), atol=1e-13, err_msg=f"{seed=}")


def plain_sweep(mdp, trunk, order, contexts, episodes, allowed):
    """Greedy decisions from enumerated episodes: mean return per context and action."""
    policy = np.array(trunk)
    weights = np.asarray(tabular.occupancy(mdp, trunk))
    for turn in order:
        sums = np.zeros((mdp.num_states, mdp.num_actions))
        for state in range(mdp.num_states):
            for action in range(mdp.num_actions):
                forced = policy.copy()
                forced[turn, state] = np.eye(mdp.num_actions)[action]
                value = sum(
                    p * sum(reward for *_, reward in steps)
                    for p, steps in episodes(mdp, forced, turn, state)
                )
                sums[contexts[turn, state], action] += weights[turn, state] * value
        for state in range(mdp.num_states):
            row = np.where(allowed[turn, state], sums[contexts[turn, state]], -np.inf)
            policy[turn, state] = np.eye(mdp.num_actions)[row.argmax()]
    return policy


@pytest.mark.parametrize("order", [(2, 1, 0), (0, 1, 2), (1, 2, 0, 2)])
def test_sweep_is_the_enumerated_one(seed, order, draw, episodes):
    mdp, trunk = draw(seed, 3, 3, 2)
    contexts = np.array([[0, 0, 1], [0, 1, 1], [2, 1, 2]])
    allowed = np.ones((3, 3, 2), bool)
    allowed[1, 0, 1] = False
    found = greedy_sweep(mdp, trunk, np.array(order), contexts, allowed)
    expected = plain_sweep(mdp, trunk, order, contexts, episodes, allowed)
    np.testing.assert_array_equal(found, expected, err_msg=f"{seed=}")


def test_stale_sweep_ignores_what_was_decided():
    mdp = tabular.toy_reverse_order().mdp
    trunk, back = tabular.uniform_policy(mdp), tabular.reverse_order(2)
    ends = {fresh: float(tabular.performance(mdp, greedy_sweep(mdp, trunk, back, clear(mdp),
                                                               fresh=fresh)))
            for fresh in (True, False)}  # fmt: skip
    assert ends == {True: 0.9, False: 0.5}


def test_best_deterministic_by_brute_force(seed, draw, episodes):
    mdp, _ = draw(seed, 2, 3, 2)
    contexts = np.array([[0, 1, 1], [2, 2, 0]])  # number 0 is one row at both turns
    best = -np.inf
    for actions in itertools.product(range(2), repeat=3):
        policy = np.eye(2)[np.array(actions)[contexts]]
        value = sum(p * sum(r for *_, r in steps) for p, steps in episodes(mdp, policy))
        best = max(best, value)
    policy, found = best_deterministic(mdp, contexts)
    assert abs(found - best) < 1e-13, f"{seed=}"
    assert abs(tabular.performance(mdp, policy) - best) < 1e-13, f"{seed=}"
    assert (policy[0, 0] == policy[1, 2]).all() and (policy[0, 1] == policy[0, 2]).all()


def test_forbidden_actions_stay_out(seed):
    mdp = tabular.random_mdp(jax.random.key(seed), 2, 2, 2)
    # What is forbidden would be the best.
    mdp = tabular.TurnMDP(mdp.transitions, mdp.rewards.at[1, :, 0].add(1.0), mdp.start)
    numbers = number_by_turn(np.array([[0, 1], [0, 1]]))
    allowed = jnp.ones((2, 2, 2), bool).at[1, :, 0].set(False)
    policy, found = best_deterministic(mdp, numbers, allowed)
    assert not policy[1, :, 0].any()
    changed = tabular.TurnMDP(mdp.transitions, mdp.rewards.at[1, :, 0].set(-9.0), mdp.start)
    expected = changed.start @ tabular.optimal_values(changed)[0]
    assert abs(found - expected) < 1e-13, f"{seed=}"


def test_rules_are_all_different_and_refused_when_too_many():
    rules = deterministic_rules(np.array([[0, 1], [1, 2]]), 3)
    assert rules.shape == (27, 2, 2, 3) and len(np.unique(rules, axis=0)) == 27
    with pytest.raises(ValueError, match="limit is 10 but there are 27 rules"):
        deterministic_rules(np.array([[0, 1], [1, 2]]), 3, limit=10)


def test_absent_minded_by_hand():
    """J(p) = p (1 - p) + p^2 / 4, largest 1/3 at p = 2/3; the search finds it from anywhere."""
    instance = absent_minded()
    contexts = np.zeros((2, 1), dtype=int)
    for p in (0.0, 0.3, 1.0):
        policy = jnp.broadcast_to(jnp.array([p, 1 - p]), (2, 1, 2))
        assert abs(tabular.performance(instance.mdp, policy) - p * (1 - p) - p * p / 4) < 1e-15
    assert float(best_deterministic(instance.mdp, contexts)[1]) == 0.25
    for start in ([1.0, 0.0], [0.1, 0.9]):
        policy, found = best_stochastic(instance.mdp, contexts, np.array([[start]]))
        assert abs(found - 1 / 3) < 1e-12
        np.testing.assert_allclose(policy[0, 0], [2 / 3, 1 / 3], atol=1e-6)
    assert float(instance.mdp.start @ tabular.optimal_values(instance.mdp)[0]) == 1.0


@pytest.mark.parametrize("shared", [False, True])
def test_search_against_a_grid(seed, shared):
    """Two rows with two actions: a grid of stochastic policies never beats the search."""
    mdp = tabular.random_mdp(jax.random.key(seed), 2, 2, 2)
    contexts = np.array([[0, 0], [0, 1]] if shared else [[0, 0], [1, 1]])
    starts = np.random.default_rng(seed).dirichlet(np.ones(2), size=(6, 2))
    _, found = best_stochastic(mdp, contexts, starts)
    grid = np.linspace(0, 1, 41)
    rows = np.stack(np.meshgrid(grid, grid, indexing="ij"), -1).reshape(-1, 2)
    policies = np.stack([rows, 1 - rows], -1)[:, contexts]
    best = jax.jit(jax.vmap(tabular.performance, (None, 0)))(mdp, jnp.asarray(policies)).max()
    assert found >= best - 1e-12, f"{seed=}"
    assert found <= best + 0.01, f"{seed=}"
    if not shared:
        assert abs(found - best_deterministic(mdp, contexts)[1]) < 1e-12, f"{seed=}"
