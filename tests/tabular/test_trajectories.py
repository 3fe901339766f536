"""The public enumeration against the tests' own recursion, and what it refuses."""

import re

import jax
import numpy as np
import pytest

import tabular
from tabular import TurnMDP


def _as_paths(found, mdp):
    """{((turn, state, action, reward), ...): probability}, reading only unmasked places."""
    paths = {}
    for row in range(len(found.probability)):
        path = tuple(
            (
                turn,
                int(found.states[row, turn]),
                int(found.actions[row, turn]),
                float(found.rewards[row, turn]),
            )
            for turn in np.flatnonzero(found.turn_mask[row])
        )
        # A path that ends early is a different row from the same path that goes on, which is
        # longer, so no two rows share a key.
        assert path not in paths
        paths[path] = found.probability[row]
    return paths


def _same(found, expected, mdp, message):
    mine = _as_paths(found, mdp)
    theirs = {tuple(path): probability for probability, path in expected}
    assert mine.keys() == theirs.keys(), message
    for path, probability in theirs.items():
        assert mine[path] == pytest.approx(probability, rel=1e-12), message


@pytest.mark.parametrize("size", [(3, 3, 2), (1, 2, 3), (4, 2, 2)])
@pytest.mark.parametrize("seed", range(4))
def test_whole_episodes(seed, size, draw, episodes):
    mdp, policy = draw(seed, *size)
    found = tabular.trajectories(mdp, policy)
    _same(found, episodes(mdp, policy), mdp, f"{seed=}")
    assert found.probability.sum() == pytest.approx(1.0, abs=1e-12), f"{seed=}"
    # At these sizes every kind of row occurs: ends early, and runs to the last turn.
    lengths = found.turn_mask.sum(1)
    assert lengths.max() == size[0] and (size[0] == 1 or lengths.min() < size[0]), f"{seed=}"


@pytest.mark.parametrize("seed", range(3))
def test_continuations_of_every_boundary(seed, draw, episodes):
    mdp, policy = draw(seed)
    for turn, state in np.ndindex(3, 3):
        found = tabular.trajectories(mdp, policy, turn=turn, state=state)
        message = f"{seed=} {turn=} {state=}"
        _same(found, episodes(mdp, policy, turn, state), mdp, message)
        assert found.states.shape[1] == 3 and not found.turn_mask[:, :turn].any(), message
        assert found.turn_mask[:, turn].all() and (found.states[:, turn] == state).all(), message
        mean = found.probability @ found.rewards.sum(1)
        assert mean == pytest.approx(float(tabular.values(mdp, policy).V[turn, state])), message


def test_masked_places_hold_fixed_values_and_rows_are_ordered(draw):
    mdp, policy = draw(0)
    found = tabular.trajectories(mdp, policy)
    assert (found.states[~found.turn_mask] == -1).all()
    assert (found.actions[~found.turn_mask] == -1).all()
    assert (found.rewards[~found.turn_mask] == 0.0).all()
    # True turns come first in every row.
    assert (np.diff(found.turn_mask.astype(int), axis=1) <= 0).all()
    rows = [
        (length, *np.stack([states, actions], 1).ravel())
        for length, states, actions in zip(
            found.turn_mask.sum(1), found.states, found.actions, strict=True
        )
    ]
    assert rows == sorted(rows)


def test_zero_probabilities_make_no_rows():
    # Start in state 0 for certain, action 1 for certain, and then state 1 or the end: two rows.
    transitions = np.zeros((2, 2, 2, 2))
    transitions[0, 0, 1, 1] = 0.25
    rewards = np.arange(8.0).reshape(2, 2, 2)
    mdp = TurnMDP(transitions, rewards, np.array([1.0, 0.0]))
    found = tabular.trajectories(mdp, np.tile([0.0, 1.0], (2, 2, 1)))
    np.testing.assert_array_equal(found.states, [[0, -1], [0, 1]])
    np.testing.assert_array_equal(found.actions, [[1, -1], [1, 1]])
    np.testing.assert_array_equal(found.turn_mask, [[True, False], [True, True]])
    np.testing.assert_array_equal(found.rewards, [[1.0, 0.0], [1.0, 7.0]])
    np.testing.assert_array_equal(found.probability, [0.75, 0.25])


def test_rounding_of_a_row_sum_is_not_an_ending():
    # Ten times 0.1 adds up to just below 1 in float64.
    row = np.full(10, 0.1)
    assert 0.0 < 1.0 - sum(row) < 1e-15
    mdp = TurnMDP(np.tile(row, (2, 10, 1, 1)), np.zeros((2, 10, 1)), np.eye(10)[0])
    found = tabular.trajectories(mdp, np.ones((2, 10, 1)))
    assert found.turn_mask.shape == (10, 2) and found.turn_mask.all()


def test_the_limit_counts_without_building():
    mdp = tabular.lock(3)  # alive or dead follows from the actions: 2^3 trajectories
    policy = tabular.uniform_policy(mdp)
    assert len(tabular.trajectories(mdp, policy, limit=8).probability) == 8
    with pytest.raises(ValueError, match="limit is 7 but there are 8 trajectories"):
        tabular.trajectories(mdp, policy, limit=7)
    # 2^200 does not fit any machine integer, and would never be built.
    long = tabular.lock(200)
    with pytest.raises(ValueError, match=f"limit is 1000000 but there are {2**200} "):
        tabular.trajectories(long, tabular.uniform_policy(long))
    tail = tabular.trajectories(long, tabular.uniform_policy(long), turn=197, state=0)
    assert tail.states.shape == (8, 200)


BOUNDARIES = [
    ({"turn": 1}, "state is None: give turn and state together"),
    ({"state": 0}, "turn is None: give turn and state together"),
    ({"turn": 3, "state": 0}, "turn is 3: choose an integer from 0 to 2"),
    ({"turn": -1, "state": 0}, "turn is -1: "),
    ({"turn": 0, "state": 2}, "state is 2: choose an integer from 0 to 1"),
    ({"turn": 0, "state": 0.5}, "state is 0.5: "),
]


@pytest.mark.parametrize(("boundary", "message"), BOUNDARIES)
def test_bad_boundaries_are_refused(boundary, message):
    mdp = tabular.lock(3)
    with pytest.raises(ValueError, match=re.escape(message)):
        tabular.trajectories(mdp, tabular.uniform_policy(mdp), **boundary)


def test_traced_arguments_are_refused():
    mdp = tabular.lock(2)
    policy = tabular.uniform_policy(mdp)

    def mean_length(policy):
        return tabular.trajectories(mdp, policy).turn_mask.sum()

    with pytest.raises(ValueError, match="call trajectories outside jit"):
        jax.jit(mean_length)(policy)
