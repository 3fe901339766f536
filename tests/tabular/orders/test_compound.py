"""Compound ratios against loops over episodes and tokens, and where they are exact."""

import dataclasses
import functools
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tabular
from tabular.orders.compound import Rule, compound_iteration

FRESH = int(os.environ["FRESH_SEED"])
TREE = tabular.token_tree(2, 2, 2, 2)
SHARED = dataclasses.replace(
    TREE, shape=TREE.shape[1:], logits=lambda p: jnp.broadcast_to(p, TREE.shape)
)
RATE, STEPS, CLIP = 8.0, 3, 0.2
INF = float("inf")


@pytest.fixture(scope="module")
def paths():
    return tabular.all_paths(2, 2, 4, early_end=True)


def instance(family, seed, draw):
    mdp, _ = draw(seed, 2, 2, 4)
    return mdp, family.init(jax.random.key(seed), 0.5)


@functools.partial(jax.jit, static_argnames="family")
def _iterate(mdp, params, rule, family):
    paths = tabular.all_paths(2, 2, 4, early_end=True)
    return compound_iteration(mdp, family, params, paths, rule, RATE, STEPS, CLIP, CLIP)


def iterate(mdp, family, params, rule):
    return jax.tree.map(np.asarray, _iterate(mdp, params, Rule(*rule), family))


@functools.partial(jax.jit, static_argnames=("family", "turn"))
def ratios(params, anchor, power, family, turn):
    paths = tabular.all_paths(2, 2, 4, early_end=True)
    change = (family.token_log_probs(params) - family.token_log_probs(anchor))[turn].sum(-1)
    taken = change[paths.states[:, turn], paths.actions[:, turn]]
    return jnp.where(paths.turn_mask[:, turn], jnp.exp(power * taken), 1.0)


@functools.partial(jax.jit, static_argnames=("family", "turn"))
def slope(params, anchor, power, weights, amount, family, turn):
    def objective(params):
        r = ratios(params, anchor, power, family, turn)
        up = jnp.where(r > 1 + CLIP, 1 + CLIP, r)
        down = jnp.where(r < 1 - CLIP, 1 - CLIP, r)
        return (weights * jnp.where(amount >= 0, up, down) * amount).sum()

    return jax.grad(objective)(params)


def by_loops(mdp, family, params, paths, rule):
    """One stage after the other with a gradient by autodiff of a surrogate written out here."""
    weights = np.asarray(tabular.path_probabilities(mdp, family.policy(params), paths))
    returns = np.asarray(tabular.path_rewards(mdp, paths)).sum(1)
    first = paths.states[:, 0]
    mean = np.array([np.average(returns[first == s], weights=weights[first == s]) for s in (0, 1)])
    credited, carried = returns - mean[first], np.ones(len(weights))
    power, low, high, refreshed = rule
    current = params
    for turn in (1, 0):
        anchor = current if refreshed else params
        for _ in range(STEPS):
            amount = credited * carried
            current = current + RATE * slope(current, anchor, power, weights, amount, family, turn)
        factor = np.clip(ratios(current, anchor, power, family, turn), 1 - low, 1 + high)
        carried = np.clip(carried * factor, 1 - low, 1 + high)
    return np.asarray(current), weights @ (credited * carried), carried, weights


RULES = [(1.0, 1.0, INF, False), (0.5, 1.0, INF, False), (0.5, 0.2, 0.1, True)]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("family", [TREE, SHARED], ids=["own", "shared"])
def test_iteration_by_loops(family, rule, draw, paths):
    mdp, params = instance(family, FRESH, draw)
    found = iterate(mdp, family, params, rule)
    current, estimate, carried, weights = by_loops(mdp, family, params, paths, rule)
    np.testing.assert_allclose(found.params, current, rtol=0, atol=1e-9, err_msg=f"{FRESH=}")
    assert abs(found.estimate - estimate) < 1e-9, f"{FRESH=}"
    new = np.asarray(tabular.path_probabilities(mdp, family.policy(jnp.asarray(current)), paths))
    assert (
        abs(found.deviation - weights @ abs(carried - new / np.where(weights > 0, weights, 1.0)))
        < 1e-9
    ), f"{FRESH=}"
    gain = tabular.performance(mdp, family.policy(jnp.asarray(current))) - tabular.performance(
        mdp, family.policy(params)
    )
    assert abs(found.gain - gain) < 1e-9, f"{FRESH=}"
    assert abs(found.params - params).max() > 0.01, f"{FRESH=}"


@pytest.mark.parametrize("refreshed", [False, True])
def test_product_is_exact_for_parameters_of_each_turn(refreshed, draw):
    mdp, params = instance(TREE, FRESH, draw)
    found = iterate(mdp, TREE, params, (1.0, 1.0, INF, refreshed))
    assert abs(found.estimate - found.gain) < 1e-12 and found.deviation < 1e-12, f"{FRESH=}"
    assert abs(found.gain) > 1e-4, f"{FRESH=}"


@pytest.mark.parametrize(
    ("family", "rule"),
    [(TREE, (0.5, 1.0, INF, False)), (TREE, (1.0, 0.05, 0.05, False)), (SHARED, RULES[0])],
)
def test_what_breaks_the_estimate(family, rule, draw):
    errors = []
    for seed in range(5):
        mdp, params = instance(family, seed, draw)
        found = iterate(mdp, family, params, rule)
        errors.append(abs(found.estimate - found.gain))
        assert found.deviation > 1e-3
    assert max(errors) > 0.01
