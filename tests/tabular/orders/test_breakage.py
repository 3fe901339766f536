"""Broken MDPs: what each number changes and what it leaves alone."""

import functools
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tabular
from tabular.orders.breakage import Breakage, broken_instance, misplaced_siblings, wrong_values

FRESH = int(os.environ["FRESH_SEED"])
SIZE = (3, 2, 3)
ORDER = np.array([2, 1, 0])


@jax.jit
def _make(key, breakage):
    return broken_instance(key, *SIZE, breakage)


def make(**breakage):
    numbers = {name: float(number) for name, number in breakage.items()}
    return _make(jax.random.key(FRESH), Breakage(**numbers))


@functools.cache
def policy_of_observations():
    """[H, 4, A]: a row for each turn and observation, whatever the true state."""
    rows = np.random.default_rng(FRESH).dirichlet(np.ones(3), size=(3, 2))
    return rows[:, [0, 1, 0, 1]]


def true_values(mdp, policy):
    return np.asarray(tabular.values(mdp, policy).V)


def test_states_are_pairs_of_true_and_seen():
    mdp, policy, contexts = make(observation=0.3, transitions=0.6)
    np.testing.assert_array_equal(contexts, np.tile([0, 1, 0, 1], (3, 1)))
    np.testing.assert_allclose(policy, 1 / 3)
    clear = make(transitions=0.6).mdp
    # True state to true state, from the MDP without noise: it lives on pairs 0 and 3.
    plain = np.asarray(clear.transitions)[:, [0, 3]][..., [0, 3]]
    seen = np.array([[0.85, 0.15], [0.15, 0.85]])
    for h, pair, a, other in np.ndindex(3, 4, 3, 4):
        expected = plain[h, pair // 2, a, other // 2] * seen[other // 2, other % 2]
        assert abs(mdp.transitions[h, pair, a, other] - expected) < 1e-14, f"{FRESH=}"
    np.testing.assert_allclose(mdp.rewards[:, 0], mdp.rewards[:, 1])
    np.testing.assert_allclose(mdp.start, np.kron(clear.start[jnp.array([0, 3])], [1, 1])
                               * seen.ravel(), atol=1e-14)  # fmt: skip
    visits = tabular.occupancy(clear, make(transitions=0.6).policy)
    np.testing.assert_allclose(visits[:, 1:3], 0.0, atol=1e-15)


def test_transitions_go_from_deterministic_to_random():
    for weight in (0.0, 0.5, 1.0):
        rows = np.asarray(make(transitions=weight).mdp.transitions)[:, [0, 3]][..., [0, 3]]
        fixed = np.asarray(make(transitions=0.0).mdp.transitions)[:, [0, 3]][..., [0, 3]]
        loose = np.asarray(make(transitions=1.0).mdp.transitions)[:, [0, 3]][..., [0, 3]]
        np.testing.assert_allclose(rows, (1 - weight) * fixed + weight * loose, atol=1e-14)
    assert set(np.unique(fixed)) == {0.0, 1.0} and ((loose > 0) & (loose < 1)).all()


@pytest.mark.parametrize("observation", [0.0, 0.4])
def test_rewards_on_the_way_change_no_performance(observation):
    policy = policy_of_observations()
    before = make(transitions=1.0, observation=observation).mdp
    after = make(transitions=1.0, observation=observation, rewards=3.0).mdp
    assert abs(np.asarray(after.rewards)[:-1]).max() > 0.1 and (before.rewards[:-1] == 0).all()
    for tried in (policy, tabular.uniform_policy(before), tabular.optimal_policy(before)):
        change = tabular.performance(after, tried) - tabular.performance(before, tried)
        assert abs(change) < 1e-13, f"{FRESH=}"
    # What they do change: the spread of the return around its mean.
    spread = [tabular.variance_decomposition(m, policy).total for m in (before, after)]
    assert spread[1] > 2 * spread[0], f"{FRESH=}"


def test_a_critic_errs_by_what_is_asked():
    mdp, policy, _ = make(transitions=1.0)
    bias = jnp.asarray(np.random.default_rng(FRESH).normal(size=(3, 4)))
    exact = true_values(mdp, policy)
    run = jax.jit(jax.vmap(wrong_values, (0, None, None, None, None)))
    keys = jax.random.split(jax.random.key(FRESH), 4000)
    right = run(keys[:1], mdp, policy, bias, Breakage())[0]
    np.testing.assert_allclose(right, exact, atol=1e-15)
    lasting = run(keys[:2], mdp, policy, bias, Breakage(value_bias=0.5))
    np.testing.assert_allclose(lasting[0], lasting[1])
    np.testing.assert_allclose(lasting[0, :-1] - exact[:-1], 0.5 * np.asarray(bias), atol=1e-14)
    noisy = np.asarray(run(keys, mdp, policy, bias, Breakage(value_noise=0.2)))
    np.testing.assert_array_equal(noisy[:, -1], 0.0)
    errors = (noisy - exact)[:, :-1]
    assert abs(errors.mean()) < 5 * 0.2 / np.sqrt(errors.size), f"{FRESH=}"
    assert abs(errors.std() - 0.2) < 5 * 0.2 / np.sqrt(2 * errors.size), f"{FRESH=}"


@functools.partial(jax.jit, static_argnames="clip")
def misplaced(mdp, policy, contexts, forks, clip=(0.2, 0.2)):
    return misplaced_siblings(mdp, policy, ORDER, *clip, contexts, forks)


def test_siblings_in_their_place_are_those_of_rtpo():
    mdp, _, contexts = make(transitions=1.0, observation=0.3)
    policy = policy_of_observations()
    found = misplaced(mdp, policy, contexts, 0.0)
    expected = tabular.siblings(mdp, policy, ORDER, 0.2, 0.2, contexts)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13, err_msg=f"{FRESH=}")


@pytest.mark.parametrize("forks", [0.4, 1.0])
def test_greedy_siblings_out_of_place_by_loops(forks):
    mdp, policy, contexts = make(transitions=1.0)
    policy = np.asarray(policy)
    visits = np.asarray(tabular.occupancy(mdp, policy))
    expected = policy.copy()
    for turn in ORDER:
        own = np.asarray(tabular.values(mdp, expected).Q)[turn]
        anywhere = sum(visits[turn, s] * own[s] for s in range(4)) / visits[turn].sum()
        for state in (0, 3):
            mixed = (1 - forks) * own[state] + forks * anywhere
            # A context holds both pairs with this observation; the other one never occurs.
            expected[turn, [state, 2 if state == 0 else 1]] = np.eye(3)[mixed.argmax()]
    found = misplaced(mdp, policy, contexts, forks, clip=(1.0, float("inf")))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12, err_msg=f"{FRESH=}")
    if forks == 1.0:
        np.testing.assert_array_equal(np.asarray(found)[:, 0], np.asarray(found)[:, 3])


def test_turns_that_nobody_reaches_stay_as_they_are():
    mdp, policy, contexts = make()
    # Episodes of one turn that pays what the last one did.
    mdp = tabular.TurnMDP(0.0 * mdp.transitions, mdp.rewards[::-1], mdp.start)
    found = np.asarray(misplaced(mdp, policy, contexts, 0.5))
    np.testing.assert_allclose(found[1:], policy[1:], rtol=0, atol=1e-15)
    assert abs(found[0] - policy[0]).max() > 0.05, f"{FRESH=}"


def test_siblings_go_on_with_what_later_turns_have_learnt():
    mdp, policy, _ = tabular.toy_reverse_order()
    order, seen = np.array([1, 0]), np.array([[0, 1], [0, 1]])
    found = misplaced_siblings(mdp, policy, order, 1.0, np.inf, seen, 0.0)
    assert float(tabular.performance(mdp, found)) == pytest.approx(0.9, abs=1e-12)
