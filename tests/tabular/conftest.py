"""An enumeration of episodes written for the tests alone, and MDPs drawn with numpy."""

import jax
import numpy as np
import pytest

from tabular import TurnMDP

# The import above switched float64 on for the process. Every test gets its precision from a
# fixture; without this line, arrays that other test files build while they are collected would
# depend on which files are collected first.
jax.config.update("jax_enable_x64", False)


def _walk(mdp, policy, turn, state, probability, path):
    transitions, rewards = np.asarray(mdp.transitions), np.asarray(mdp.rewards)
    num_turns, num_states, num_actions = rewards.shape
    for action in range(num_actions):
        taken = probability * policy[turn, state, action]
        if taken == 0.0:
            continue
        longer = [*path, (turn, state, action, rewards[turn, state, action])]
        if turn == num_turns - 1:
            yield taken, longer
            continue
        stays = 0.0
        for following in range(num_states):
            step = transitions[turn, state, action, following]
            stays += step
            if step > 0.0:
                yield from _walk(mdp, policy, turn + 1, following, taken * step, longer)
        if 1.0 - stays > 1e-12:
            yield taken * (1.0 - stays), longer


def _episodes(mdp, policy, turn=0, state=None):
    """(probability, [(turn, state, action, reward), ...]) of every episode, depth first."""
    policy = np.asarray(policy)
    if state is not None:
        return list(_walk(mdp, policy, turn, state, 1.0, []))
    starts = [(s, p) for s, p in enumerate(np.asarray(mdp.start)) if p > 0.0]
    return [e for s, p in starts for e in _walk(mdp, policy, 0, s, p, [])]


def _draw(seed, num_turns=3, num_states=3, num_actions=2, termination=0.4):
    """A random MDP with asymmetric rows, some impossible transitions, and a random policy."""
    rng = np.random.default_rng(seed)
    shape = (num_turns, num_states, num_actions)
    rows = rng.exponential(size=(*shape, num_states)) * (rng.random((*shape, num_states)) < 0.7)
    rows[..., 0] += 0.1
    rows /= rows.sum(-1, keepdims=True)
    rows *= (1.0 - termination * rng.random(shape) * (rng.random(shape) < 0.6))[..., None]
    mdp = TurnMDP(rows, rng.normal(size=shape), rng.dirichlet(np.ones(num_states)))
    return mdp, rng.dirichlet(np.ones(num_actions), size=shape[:2])


@pytest.fixture
def episodes():
    return _episodes


@pytest.fixture
def draw():
    return _draw
