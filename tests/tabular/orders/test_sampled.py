"""Sampled episodes against occupancy, and the sampled RTPO iteration against loops."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tabular
from tabular.orders.breakage import Breakage, broken_instance
from tabular.orders.sampled import continue_from, sample_groups, sampled_siblings

FRESH = int(os.environ["FRESH_SEED"])


@pytest.fixture
def instance(draw):
    mdp, policy = draw(FRESH, 3, 3, 2, termination=0.0)
    rows = mdp.transitions / mdp.transitions.sum(-1, keepdims=True)
    return tabular.TurnMDP(rows, mdp.rewards, mdp.start), policy


def test_frequencies_are_the_occupancy(instance):
    mdp, policy = instance
    groups, size = 4000, 3
    run = jax.jit(lambda k: sample_groups(k, mdp, jnp.asarray(policy), groups, size)[0])
    paths = run(jax.random.key(FRESH))
    assert paths.states.shape == (groups * size, 3) and np.asarray(paths.turn_mask).all()
    first = np.asarray(paths.states[:, 0]).reshape(groups, size)
    np.testing.assert_array_equal(first, first[:, :1].repeat(size, 1))
    expected = np.asarray(tabular.occupancy(mdp, policy))[:, :, None] * policy
    for turn in range(3):
        counts = np.zeros((3, 2))
        np.add.at(
            counts, (np.asarray(paths.states[:, turn]), np.asarray(paths.actions[:, turn])), 1
        )
        share = counts / counts.sum()
        # First states come in groups: as if there were as many draws as groups.
        error = np.sqrt(expected[turn] * (1 - expected[turn]) / groups)
        assert (abs(share - expected[turn]) <= 5 * error + 1e-12).all(), f"{FRESH=} {turn=}"


def test_pairs_of_steps_follow_the_transitions(instance):
    mdp, policy = instance
    draws = jax.random.uniform(jax.random.key(FRESH), (20_000, 6), dtype=jnp.float64)
    start = jnp.full(20_000, 2)
    states, actions = jax.jit(continue_from)(draws, mdp, jnp.asarray(policy), start, 1)
    np.testing.assert_array_equal(states[:, :2], 2)
    np.testing.assert_array_equal(actions[:, 0], 0)
    for action in range(2):
        chosen = np.asarray(actions[:, 1]) == action
        assert abs(chosen.mean() - policy[1, 2, action]) < 5 * 0.5 / np.sqrt(20_000), f"{FRESH=}"
        for following in range(3):
            p = float(mdp.transitions[1, 2, action, following])
            share = (np.asarray(states[chosen, 2]) == following).mean()
            bound = 5 * np.sqrt(p * (1 - p) / chosen.sum()) + 1e-12
            assert abs(share - p) <= bound, f"{FRESH=} {action=} {following=}"


def test_impossible_choices_are_never_made():
    mdp, policy, _ = tabular.toy_reverse_order()
    certain = np.asarray(policy).copy()
    certain[0, 0] = [0.0, 1.0]
    edge = np.array([[0.0, 0.0, 0.0, 0.0], [np.nextafter(1, 0)] * 4])
    states, actions = continue_from(
        jnp.asarray(edge), mdp, jnp.asarray(certain), jnp.zeros(2, int), 0
    )
    np.testing.assert_array_equal(actions, [[1, 0], [1, 1]])
    np.testing.assert_array_equal(states, [[0, 1], [0, 1]])


@pytest.mark.parametrize("forks", [0.0, 0.5])
def test_iteration_by_loops(forks):
    trunks, n, turns = 30, 3, 3
    mdp, policy, contexts = jax.jit(
        lambda k: broken_instance(k, 3, 2, 3, Breakage(transitions=1.0, observation=0.4))
    )(jax.random.key(FRESH))
    key = jax.random.key(FRESH + 1)
    run = jax.jit(lambda k, f: sampled_siblings(k, mdp, policy, trunks, n, 0.6, 0.6, contexts, f))
    found = run(key, forks)
    size = trunks * (1 + turns * n)
    draws = np.asarray(jax.random.uniform(key, (size * 6,), dtype=jnp.float64)).reshape(size, 6)
    rewards, moves = np.asarray(mdp.rewards), np.asarray(mdp.transitions)

    def pick(p, u):
        return int(np.searchsorted(np.cumsum(p), u * p.sum(), side="right"))

    def play(row, current, state, turn):
        visited, first, total = [], None, 0.0
        for h in range(turn, turns):
            action = pick(current[h, state], row[2 * h])
            first = action if first is None else first
            total += rewards[h, state, action]
            visited.append(state)
            state = pick(moves[h, state, action], row[2 * h + 1])
        return visited, first, total

    current = np.asarray(policy).copy()
    starts = [pick(np.asarray(mdp.start), draws[t, -1]) for t in range(trunks)]
    trunk = [play(draws[t], current, starts[t], 0)[0] for t in range(trunks)]
    for turn in (2, 1, 0):
        rows = draws[trunks:].reshape(turns, trunks * n, 6)[turn]
        gain, loss = np.zeros((2, *policy.shape))
        for t in range(trunks):
            own, other = trunk[t][turn], trunk[t - 1][turn]
            real = other // 2 * 2 + own % 2 if rows[t, -1] < forks else own
            played = [play(rows[t * n + j], current, real, turn)[1:] for j in range(n)]
            mean = np.mean([total for _, total in played])
            for action, total in played:
                part = gain if total > mean else loss
                part[turn, own, action] += abs(total - mean) / (trunks * n)
        credit = tabular.merge_contexts(tabular.Credit(*map(jnp.asarray, (gain, loss))), contexts)
        improved = tabular.maximise_surrogate(policy, credit, 0.6, 0.6)
        current[turn] = np.asarray(improved)[turn]
    np.testing.assert_allclose(found, current, rtol=0, atol=1e-9, err_msg=f"{FRESH=}")
    assert abs(current - np.asarray(policy)).max() > 0.01, f"{FRESH=}"
