"""The batch of all episodes against the two enumerations that were written apart from it."""

import itertools
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tabular
from tabular.paths import group_by_step

FRESH = int(os.environ["FRESH_SEED"])
SEEDS = [0, 1, 2, FRESH]


def impoverished(policy):
    """The policy with one action of every second state removed."""
    policy = policy.copy()
    policy[:, ::2, 0] = 0.0
    return policy / policy.sum(-1, keepdims=True)


def keyed(states, actions, mask, numbers):
    """Numbers by episode; an episode is its (state, action) pairs."""
    found = {}
    for row, number in enumerate(np.asarray(numbers)):
        steps = zip(states[row][mask[row]], actions[row][mask[row]], strict=True)
        key = tuple((int(s), int(a)) for s, a in steps)
        assert key not in found
        found[key] = number
    return found


@pytest.mark.parametrize("early_end", [False, True])
def test_every_sequence_is_listed_once(early_end):
    paths = tabular.all_paths(3, 2, 3, early_end=early_end)
    found = keyed(*paths, np.zeros(len(paths.states)))
    pairs = list(itertools.product(range(2), range(3)))
    lengths = (1, 2, 3) if early_end else (3,)
    assert set(found) == {p for n in lengths for p in itertools.product(pairs, repeat=n)}
    np.testing.assert_array_equal(paths.states[~paths.turn_mask], 0)
    np.testing.assert_array_equal(paths.actions[~paths.turn_mask], 0)


@pytest.mark.parametrize("seed", SEEDS)
def test_probabilities_and_rewards_are_those_of_the_enumeration(seed, draw):
    mdp, policy = draw(seed)
    policy = impoverished(policy)
    paths = tabular.all_paths(*mdp.rewards.shape, early_end=True)
    probability = keyed(*paths, tabular.path_probabilities(mdp, policy, paths))
    rewards = keyed(*paths, np.asarray(tabular.path_rewards(mdp, paths)).sum(-1))
    listed = tabular.trajectories(mdp, policy)
    expected = keyed(listed.states, listed.actions, listed.turn_mask, listed.probability)
    returns = keyed(listed.states, listed.actions, listed.turn_mask, listed.rewards.sum(-1))
    assert 0 < len(expected) < len(probability), f"{seed=}"
    for path, found in probability.items():
        assert abs(found - expected.get(path, 0.0)) < 1e-14, f"{seed=} {path=}"
    for path, total in returns.items():
        assert abs(total - rewards[path]) < 1e-14, f"{seed=} {path=}"


@pytest.mark.parametrize("seed", SEEDS)
def test_visits_add_up_to_occupancy(seed, draw):
    mdp, policy = draw(seed)
    paths = tabular.all_paths(*mdp.rewards.shape, early_end=True)
    weights = tabular.path_probabilities(mdp, policy, paths)
    spread = jnp.broadcast_to(weights[:, None], paths.states.shape)
    visits = group_by_step(spread, paths, mdp.rewards.shape)
    expected = tabular.occupancy(mdp, policy)[:, :, None] * policy
    np.testing.assert_allclose(visits, expected, rtol=0, atol=1e-14, err_msg=f"{seed=}")


def test_table_entries_along_paths():
    paths = tabular.all_paths(2, 2, 2, early_end=True)
    table = jnp.arange(8.0).reshape(2, 2, 2)
    by_action = tabular.along(table, paths, fill=-1.0)
    by_state = tabular.at_states(table[:, :, 1], paths, fill=-1.0)
    longer = tabular.at_states(jnp.concatenate([table[:, :, 1], table[:1, :, 1]]), paths, -1.0)
    for row, turn in np.ndindex(paths.states.shape):
        state, action = paths.states[row, turn], paths.actions[row, turn]
        there = paths.turn_mask[row, turn]
        assert by_action[row, turn] == (table[turn, state, action] if there else -1.0)
        assert by_state[row, turn] == (table[turn, state, 1] if there else -1.0)
    np.testing.assert_array_equal(longer, by_state)


@pytest.mark.parametrize("seed", SEEDS[:2])
def test_derivative_of_the_mean_return_is_the_policy_gradient(seed, draw):
    mdp, _ = draw(seed)
    paths = tabular.all_paths(*mdp.rewards.shape, early_end=True)
    logits = jnp.asarray(np.random.default_rng(seed).normal(size=mdp.rewards.shape))

    def mean_return(logits):
        weights = tabular.path_probabilities(mdp, jax.nn.softmax(logits), paths)
        return weights @ tabular.path_rewards(mdp, paths).sum(-1)

    expected = tabular.policy_gradient(mdp, jax.nn.softmax(logits))
    np.testing.assert_allclose(jax.grad(mean_return)(logits), expected, rtol=0, atol=1e-13)


def test_jit_and_vmap_change_nothing(draw):
    mdps, policies = zip(*(draw(seed) for seed in range(8)), strict=True)
    paths = tabular.all_paths(3, 3, 2, early_end=True)
    stack = jax.tree.map(lambda *leaves: jnp.stack(leaves), *mdps)
    mapped = jax.jit(jax.vmap(lambda m, p: tabular.path_probabilities(m, p, paths)))
    found = mapped(stack, jnp.stack(policies))
    for seed, (mdp, policy) in enumerate(zip(mdps, policies, strict=True)):
        alone = tabular.path_probabilities(mdp, policy, paths)
        np.testing.assert_allclose(found[seed], alone, rtol=0, atol=1e-15)


def test_wrong_lists_and_sizes_are_refused(draw):
    mdp, policy = draw(0)
    full = tabular.all_paths(3, 3, 2, early_end=False)
    with pytest.raises(ValueError, match="early_end=True"):
        tabular.path_probabilities(mdp, policy, full)
    with pytest.raises(ValueError, match="limit is 100 but there are 216"):
        tabular.all_paths(3, 3, 2, early_end=False, limit=100)
    with pytest.raises(ValueError, match="num_states"):
        tabular.all_paths(3, 0, 2, early_end=False)
    with pytest.raises(ValueError, match="policy"):
        tabular.path_probabilities(mdp, policy[:, :, :1], full)


def test_a_deficit_within_the_tolerance_never_ends_an_episode(draw):
    mdp, policy = draw(0, termination=0.0)
    rows = mdp.transitions / mdp.transitions.sum(-1, keepdims=True)
    mdp = tabular.TurnMDP((1.0 - 5e-11) * rows, mdp.rewards, mdp.start)
    paths = tabular.all_paths(*mdp.rewards.shape, early_end=True)
    short = ~paths.turn_mask[:, -1]
    assert (np.asarray(tabular.path_probabilities(mdp, policy, paths))[short] == 0.0).all()
