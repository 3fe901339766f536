"""Exact batches of tokens against listed episodes and brute force."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tabular
from rtpo_jax import core
from tabular.paths import all_paths
from tabular.policy_classes import token_tree
from tabular.ratios.clipping import clipped_objective
from tabular.ratios.token_rows import (
    episode_rows,
    episode_tokens,
    prefix_advantages,
    prefix_values,
    spread_prefixes,
    turn_rows,
)

FRESH = int(os.environ["FRESH_SEED"])
SEEDS = [0, FRESH]
TURNS, STATES, TOKENS, LENGTH = 2, 2, 3, 2
ACTIONS = TOKENS**LENGTH
OBJECTIVE = jax.jit(clipped_objective, static_argnums=(2, 3, 4))


def built_rows(mdp, log_probs, advantages, paths):
    return jax.jit(lambda *args: episode_rows(*args, paths))(mdp, log_probs, advantages)


def world(seed, draw, *, early_end):
    mdp, _ = draw(seed, TURNS, STATES, ACTIONS, 0.8)
    if not early_end:
        rows = np.asarray(mdp.transitions)
        mdp = tabular.TurnMDP(rows / rows.sum(-1, keepdims=True), mdp.rewards, mdp.start)
    family = token_tree(TURNS, STATES, TOKENS, LENGTH)
    rng = np.random.default_rng(seed)
    params, moved = (jnp.asarray(rng.normal(size=family.shape)) for _ in range(2))
    return mdp, family.token_log_probs(params), family.token_log_probs(params + 0.5 * moved)


def brute_prefix_value(table, log_probs, turn, state, prefix):
    """Mean of table over actions that start with the prefix, by the policy given the prefix."""
    total = mass = 0.0
    for action in range(ACTIONS):
        tokens = [(action // TOKENS ** (LENGTH - 1 - j)) % TOKENS for j in range(LENGTH)]
        if tokens[: len(prefix)] == list(prefix):
            probability = np.exp(np.asarray(log_probs)[turn, state, action].sum())
            mass += probability
            total += probability * float(table[turn, state, action])
    return total / mass


@pytest.mark.parametrize("seed", SEEDS)
def test_prefix_values_by_brute_force(seed, draw):
    mdp, log_probs, _ = world(seed, draw, early_end=True)
    values = tabular.values(mdp, jnp.exp(log_probs.sum(-1)))
    found = jax.jit(prefix_values)(values.Q, log_probs)
    assert [table.shape[-1] for table in found] == [TOKENS**j for j in range(LENGTH + 1)]
    for turn, state in np.ndindex(TURNS, STATES):
        for j, table in enumerate(found):
            for index, prefix in enumerate(np.ndindex((TOKENS,) * j)):
                expected = brute_prefix_value(values.Q, log_probs, turn, state, prefix)
                assert abs(table[turn, state, index] - expected) < 1e-12, f"{seed=} {prefix=}"
    np.testing.assert_allclose(found[0][..., 0], values.V[:-1], atol=1e-13)
    # Advantages of the tokens add up to the action's and have mean 0 after every prefix.
    tokens = prefix_advantages(found)
    advantages = values.Q - values.V[:-1, :, None]
    np.testing.assert_allclose(tokens.sum(-1), advantages, atol=1e-13)
    weights = jnp.exp(log_probs.sum(-1))
    np.testing.assert_allclose((weights[..., None] * tokens).sum(2), 0.0, atol=1e-13)
    np.testing.assert_array_equal(
        spread_prefixes(found[1], ACTIONS)[0, 0], np.repeat(found[1][0, 0], 3)
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_episode_rows_give_the_mean_over_listed_episodes(seed, draw, episodes):
    # E[(1 / |y|) sum_t x_t] for a token table x, with episodes of different lengths.
    mdp, log_probs, _ = world(seed, draw, early_end=True)
    table = np.random.default_rng(seed).normal(size=log_probs.shape)
    paths = all_paths(TURNS, STATES, ACTIONS, early_end=True)
    values = episode_tokens(jnp.asarray(table), paths)
    rows = built_rows(mdp, log_probs, values, paths)
    behavior = np.exp(np.asarray(log_probs).sum(-1))
    listed = episodes(mdp, behavior)
    assert {len(path) for _, path in listed} == {1, 2}, f"{seed=}"
    expected = sum(
        p * np.mean([x for t, s, a, _ in path for x in table[t, s, a]]) for p, path in listed
    )
    assert abs(core.weighted_sum(values, rows.weights) - expected) < 1e-12, f"{seed=}"
    assert abs(rows.weights.sum() - 1.0) < 1e-12
    assert (np.asarray(rows.weights)[~rows.action_mask] == 0).all()


@pytest.mark.parametrize("level", ["token", "turn_mean", "turn_product"])
def test_turn_rows_are_episode_rows_added_up(level, draw):
    mdp, old, new = world(FRESH, draw, early_end=False)
    table = jnp.asarray(np.random.default_rng(FRESH).normal(size=old.shape))
    paths = all_paths(TURNS, STATES, ACTIONS, early_end=False)
    rows = built_rows(mdp, old, episode_tokens(table, paths), paths)
    whole = OBJECTIVE(episode_tokens(new, paths), rows, TURNS, level, 0.2)
    by_turn = turn_rows(mdp, old, table)
    found = OBJECTIVE(new.reshape(-1, LENGTH), by_turn, 1, level, 0.2)
    assert abs(found - whole) < 1e-12, f"{FRESH=}"
    assert abs(found) > 1e-4


@pytest.mark.parametrize("seed", SEEDS)
def test_turn_rows_are_a_mean_over_tokens_where_episodes_end_early(seed, draw, episodes):
    mdp, log_probs, _ = world(seed, draw, early_end=True)
    table = np.random.default_rng(seed).normal(size=log_probs.shape)
    rows = turn_rows(mdp, log_probs, jnp.asarray(table))
    listed = episodes(mdp, np.exp(np.asarray(log_probs).sum(-1)))
    tokens = [(p, x) for p, path in listed for t, s, a, _ in path for x in table[t, s, a]]
    expected = sum(p * x for p, x in tokens) / sum(p for p, _ in tokens)
    assert abs(core.weighted_sum(rows.advantages, rows.weights) - expected) < 1e-12, f"{seed=}"


def test_unclipped_gradient_of_the_current_policy_is_the_policy_gradient(draw):
    # At ratio 1 with true token advantages: dJ/dtheta over H L, for episodes of full length.
    mdp, _, _ = world(FRESH, draw, early_end=False)
    family = token_tree(TURNS, STATES, TOKENS, LENGTH)
    params = jnp.asarray(np.random.default_rng(FRESH).normal(size=family.shape))
    log_probs = family.token_log_probs(params)
    found = prefix_values(tabular.values(mdp, jnp.exp(log_probs.sum(-1))).Q, log_probs)
    rows = turn_rows(mdp, log_probs, prefix_advantages(found))

    def surrogate(candidate):
        log_probs = family.token_log_probs(candidate).reshape(-1, LENGTH)
        return clipped_objective(log_probs, rows, 1, "token", 0.2)

    performance = jax.jit(jax.grad(lambda p: tabular.performance(mdp, family.policy(p))))
    expected = performance(params)
    found = jax.jit(jax.grad(surrogate))(params) * TURNS * LENGTH
    np.testing.assert_allclose(found, expected, atol=1e-13, err_msg=f"{FRESH=}")
    assert abs(expected).max() > 1e-3
