"""Dynamic programming against enumeration, brute force, closed forms and identities."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tabular
from tabular import TurnMDP

SEEDS = range(4)
SIZES = [(3, 3, 2), (1, 2, 3), (4, 2, 2)]


def _mean_return(episodes):
    return sum(p * sum(reward for *_, reward in path) for p, path in episodes)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("seed", SEEDS)
def test_values_are_mean_returns_of_all_continuations(seed, size, draw, episodes):
    mdp, policy = draw(seed, *size)
    state_values, action_values = map(np.asarray, tabular.values(mdp, policy))
    assert state_values.shape == (size[0] + 1, size[1]) and action_values.shape == size
    np.testing.assert_array_equal(state_values[-1], 0.0)
    for turn, state in np.ndindex(size[:2]):
        expected = _mean_return(episodes(mdp, policy, turn, state))
        assert abs(state_values[turn, state] - expected) < 1e-12, f"{seed=} {turn=} {state=}"
        for action in range(size[2]):
            forced = policy.copy()
            forced[turn, state] = np.eye(size[2])[action]
            expected = _mean_return(episodes(mdp, forced, turn, state))
            found = action_values[turn, state, action]
            assert abs(found - expected) < 1e-12, f"{seed=} {turn=} {state=} {action=}"


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("seed", SEEDS)
def test_occupancy_and_performance_count_episodes(seed, size, draw, episodes):
    mdp, policy = draw(seed, *size)
    counted = np.zeros(size[:2])
    for probability, path in episodes(mdp, policy):
        for turn, state, *_ in path:
            counted[turn, state] += probability
    message = f"{seed=}"
    found = tabular.occupancy(mdp, policy)
    np.testing.assert_allclose(found, counted, rtol=0, atol=1e-12, err_msg=message)
    expected = _mean_return(episodes(mdp, policy))
    assert abs(tabular.performance(mdp, policy) - expected) < 1e-12, message


@pytest.mark.parametrize("seed", SEEDS)
def test_policy_gradient_is_the_score_function_sum_over_episodes(seed, draw, episodes):
    # dJ/dlogit = sum over episodes of p * return * sum_h (one-hot(a_h) - pi_h(. | s_h)).
    mdp, policy = draw(seed)
    expected = np.zeros_like(policy)
    for probability, path in episodes(mdp, policy):
        total = sum(reward for *_, reward in path)
        for turn, state, action, _ in path:
            score = np.eye(2)[action] - policy[turn, state]
            expected[turn, state] += probability * total * score
    found = tabular.policy_gradient(mdp, policy)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12, err_msg=f"{seed=}")


@pytest.mark.parametrize("seed", SEEDS)
def test_policy_gradient_is_the_derivative_of_performance(seed, draw):
    mdp, _ = draw(seed, 4, 5, 3)
    logits = jnp.asarray(np.random.default_rng(50 + seed).normal(size=mdp.rewards.shape))
    softmax = jax.nn.softmax(logits)
    derivative = jax.grad(lambda x: tabular.performance(mdp, jax.nn.softmax(x)))(logits)
    found = tabular.policy_gradient(mdp, softmax)
    np.testing.assert_allclose(found, derivative, rtol=0, atol=1e-13, err_msg=f"{seed=}")
    # A derivative that is 0 everywhere would agree with another one.
    assert abs(derivative).max() > 1e-3, f"{seed=}"
    step = 1e-6 * derivative
    rise = tabular.performance(mdp, jax.nn.softmax(logits + step)) - tabular.performance(
        mdp, jax.nn.softmax(logits - step)
    )
    assert rise == pytest.approx(2e-6 * float((derivative**2).sum()), rel=1e-5), f"{seed=}"


@pytest.mark.parametrize("size", [(2, 2, 2), (3, 2, 2), (2, 2, 3), (1, 3, 3)])
@pytest.mark.parametrize("seed", range(2))
def test_optimal_values_are_the_best_of_all_deterministic_policies(seed, size, draw, episodes):
    mdp, _ = draw(seed, *size)
    num_turns, num_states, num_actions = size
    best = np.full((num_turns, num_states), -np.inf)
    for choice in itertools.product(range(num_actions), repeat=num_turns * num_states):
        policy = np.eye(num_actions)[np.reshape(choice, size[:2])]
        for turn, state in np.ndindex(size[:2]):
            found = _mean_return(episodes(mdp, policy, turn, state))
            best[turn, state] = max(best[turn, state], found)
    optimal = tabular.optimal_values(mdp)
    assert optimal.shape == (num_turns + 1, num_states)
    np.testing.assert_array_equal(optimal[-1], 0.0)
    np.testing.assert_allclose(optimal[:-1], best, rtol=0, atol=1e-12, err_msg=f"{seed=}")
    greedy = tabular.optimal_policy(mdp)
    assert set(np.unique(greedy)) <= {0.0, 1.0}
    np.testing.assert_allclose(
        tabular.values(mdp, greedy).V[:-1], best, rtol=0, atol=1e-12, err_msg=f"{seed=}"
    )


def test_optimal_policy_breaks_ties_towards_the_lowest_action():
    rewards = np.array([[[1.0, 2.0, 2.0], [3.0, 3.0, 3.0], [0.0, 0.0, 1.0]]])
    mdp = TurnMDP(np.zeros((1, 3, 3, 3)), rewards, np.array([1.0, 0.0, 0.0]))
    expected = [[[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]]
    np.testing.assert_array_equal(tabular.optimal_policy(mdp), expected)


@pytest.mark.parametrize("seed", range(20))
def test_performance_difference_identity(seed, draw):
    # J(pi') - J(pi) = sum_h,s,a d'_h(s) pi'_h(a | s) A_h(s, a)  (Kakade and Langford, 2002).
    mdp, policy = draw(seed, 5, 6, 4)
    _, other = draw(1000 + seed, 5, 6, 4)
    weights = tabular.occupancy(mdp, other)[:, :, None] * other
    gain = tabular.performance(mdp, other) - tabular.performance(mdp, policy)
    predicted = (weights * tabular.advantages(mdp, policy)).sum()
    assert abs(gain - predicted) < 1e-12, f"{seed=}"
    assert abs(gain) > 1e-6, f"{seed=}"


def test_advantages_have_policy_mean_zero(draw):
    for seed in SEEDS:
        mdp, policy = draw(seed, 4, 5, 3)
        found = tabular.advantages(mdp, policy)
        np.testing.assert_allclose((policy * found).sum(-1), 0.0, atol=1e-14, err_msg=f"{seed=}")
        assert abs(found).max() > 0.1, f"{seed=}"


def test_termination_by_hand():
    # One state, one action, reward 1, the episode goes on with probability 1/2: turns 0, 1, 2 are
    # reached with probability 1, 1/2, 1/4, and J = 1 + 1/2 + 1/4. The last row of transitions is
    # left different: it must not matter.
    transitions = np.array([0.5, 0.5, 0.9]).reshape(3, 1, 1, 1)
    mdp = TurnMDP(transitions, np.ones((3, 1, 1)), np.ones(1))
    policy = np.ones((3, 1, 1))
    state_values, action_values = tabular.values(mdp, policy)
    np.testing.assert_allclose(state_values[:, 0], [1.75, 1.5, 1.0, 0.0], rtol=1e-15)
    np.testing.assert_allclose(action_values[:, 0, 0], [1.75, 1.5, 1.0], rtol=1e-15)
    np.testing.assert_allclose(tabular.occupancy(mdp, policy)[:, 0], [1, 0.5, 0.25], rtol=1e-15)
    assert tabular.performance(mdp, policy) == pytest.approx(1.75, rel=1e-15)
    assert tabular.optimal_values(mdp)[0, 0] == pytest.approx(1.75, rel=1e-15)


def test_direction_of_transitions_by_hand():
    # State 0 always leads to state 1, state 1 stays. Only state 1 pays, 1 at turn 0 and 10 at
    # turn 1. From state 0: 0 + 10; from state 1: 1 + 10.
    transitions = np.zeros((2, 2, 1, 2))
    transitions[:, :, 0, 1] = 1.0
    rewards = np.array([[[0.0], [1.0]], [[0.0], [10.0]]])
    mdp = TurnMDP(transitions, rewards, np.array([0.75, 0.25]))
    policy = np.ones((2, 2, 1))
    np.testing.assert_array_equal(tabular.values(mdp, policy).V, [[10, 11], [0, 10], [0, 0]])
    np.testing.assert_array_equal(tabular.occupancy(mdp, policy), [[0.75, 0.25], [0, 1]])
    assert tabular.performance(mdp, policy) == 10.25


FUNCTIONS = [
    tabular.values,
    tabular.occupancy,
    tabular.performance,
    tabular.advantages,
    tabular.policy_gradient,
    lambda mdp, _: tabular.optimal_values(mdp),
    lambda mdp, _: tabular.optimal_policy(mdp),
]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_jit_and_vmap_over_64_mdps_change_nothing(function, draw):
    mdps, policies = zip(*(draw(seed) for seed in range(64)), strict=True)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *mdps)
    mapped = jax.jit(jax.vmap(function))(stacked, jnp.stack(policies))
    for seed, (mdp, policy) in enumerate(zip(mdps, policies, strict=True)):
        alone = jax.tree.leaves(function(mdp, policy))
        for expected, found in zip(alone, jax.tree.leaves(mapped), strict=True):
            np.testing.assert_allclose(found[seed], expected, 0, 1e-14, err_msg=f"{seed=}")


def test_results_are_float64_and_derivatives_reach_the_mdp(draw):
    mdp, policy = draw(3)
    for function in FUNCTIONS:
        assert all(leaf.dtype == jnp.float64 for leaf in jax.tree.leaves(function(mdp, policy)))
    slopes = jax.grad(tabular.performance)(mdp, policy)
    # J is linear in the rewards with slope d_h(s) pi_h(a | s), and in the start with slope V_0.
    visits = tabular.occupancy(mdp, policy)[:, :, None] * policy
    np.testing.assert_allclose(slopes.rewards, visits, atol=1e-14)
    np.testing.assert_allclose(slopes.start, tabular.values(mdp, policy).V[0], atol=1e-14)
