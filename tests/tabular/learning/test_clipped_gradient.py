"""The clipped ascent of RTPO against exact gradients, plain loops and sampling theory."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tabular
from tabular.learning.clipped_gradient import Ascent, ascent_sweep, sampled_sweep, slow_branch

SHAPE = (2, 2, 2)
TABLE = tabular.per_turn_table(SHAPE)
WIDE = Ascent(1.0, 1e6, 0.3)


@pytest.fixture
def case():
    return random_case(int(os.environ["FRESH_SEED"]))


def random_case(seed):
    keys = jax.random.split(jax.random.key(seed), 2)
    return seed, tabular.random_mdp(keys[0], *SHAPE, termination=0.4), TABLE.init(keys[1])


def softmax(logits):
    e = np.exp(logits - logits.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def plain_sweep(mdp, logits, order, ascent, epochs, fresh=True):
    """Stages in numpy with the gradient written out, the clip by its cases."""
    trunk, logits = softmax(logits), logits.copy()
    d = np.asarray(tabular.occupancy(mdp, trunk))
    for turn in order:
        behavior = softmax(logits) if fresh else trunk
        Q = np.asarray(tabular.values(mdp, behavior).Q)[turn]
        A = Q - (behavior[turn] * Q).sum(-1, keepdims=True)
        for _ in range(epochs):
            pi = softmax(logits)[turn]
            r = pi / behavior[turn]
            flat = ((A >= 0) & (r > 1 + ascent.clip_high)) | ((A < 0) & (r < 1 - ascent.clip_low))
            slope = d[turn][:, None] * np.where(flat, 0.0, A)  # d J / d pi
            gradient = pi * (slope - (pi * slope).sum(-1, keepdims=True))
            logits[turn] += ascent.learning_rate * gradient
    return logits


@pytest.mark.parametrize("fresh", [True, False])
def test_sweep_is_the_plain_one(case, fresh):
    seed, mdp, params = case
    ascent = Ascent(0.1, 0.05, 4.0)
    order = [1, 0, 1]  # a turn that comes again acts by the policy it has become
    found = ascent_sweep(mdp, TABLE, params, jnp.array(order), ascent, 5, fresh=fresh)
    expected = plain_sweep(mdp, np.asarray(params), order, ascent, 5, fresh)
    np.testing.assert_allclose(found, expected, atol=1e-12, err_msg=f"{seed=}")


def test_first_step_of_a_stage_is_the_policy_gradient(case):
    """With nothing updated before it a stage's first step is the gradient of J, at its turn only."""
    seed, mdp, params = case
    for turn in (0, 1):
        found = ascent_sweep(mdp, TABLE, params, jnp.array([turn]), WIDE, 1) - params
        expected = np.zeros(SHAPE)
        expected[turn] = 0.3 * np.asarray(tabular.policy_gradient(mdp, TABLE.policy(params)))[turn]
        np.testing.assert_allclose(found, expected, atol=1e-14, err_msg=f"{seed=}")


def test_natural_order_is_the_simultaneous_update_and_reverse_is_not(case):
    seed, mdp, params = case
    ascent = Ascent(0.2, 0.2, 5.0)
    natural = ascent_sweep(mdp, TABLE, params, jnp.array([0, 1]), ascent, 3)
    together = ascent_sweep(mdp, TABLE, params, jnp.array([1, 0]), ascent, 3, fresh=False)
    reverse = ascent_sweep(mdp, TABLE, params, jnp.array([1, 0]), ascent, 3)
    np.testing.assert_allclose(natural, together, atol=1e-13, err_msg=f"{seed=}")
    assert abs(reverse - together).max() > 1e-6, f"{seed=}"


@pytest.mark.parametrize("fixed", [None, 0])
@pytest.mark.parametrize("siblings", [2, 4])
def test_sampled_first_step_has_the_expectation_of_equation_64(case, siblings, fixed):
    """E over trunks and siblings is (n - 1) / n times the exact step, for the last turn."""
    seed, mdp, params = case if fixed is None else random_case(fixed)
    order, runs = jnp.array([1]), 2000

    @jax.jit
    @jax.vmap
    def steps(key):
        return sampled_sweep(
            key, mdp, TABLE, params, order, WIDE, 1, num_trunks=4, num_siblings=siblings
        )

    after = np.asarray(steps(jax.random.split(jax.random.key(seed + 3), runs)))
    found = after - np.asarray(params)
    exact = np.asarray(ascent_sweep(mdp, TABLE, params, order, WIDE, 1) - params)
    error = found.std(0, ddof=1) / runs**0.5
    expected = (siblings - 1) / siblings * exact
    assert (abs(found.mean(0) - expected) <= 5 * error + 1e-12).all(), f"{seed=}"
    assert not found[:, 0].any(), f"{seed=}"


def test_sampled_continuations_are_those_of_the_current_policy():
    """Turn 0 prefers state 1 only if its value is that of turn 1 as already learned, 0.9."""
    mdp = tabular.toy_reverse_order().mdp
    order, ascent = jnp.array([1, 0]), Ascent(1.0, 1e6, 40.0)

    @jax.jit
    @jax.vmap
    def sweep(key):
        start = jnp.zeros(SHAPE)
        return sampled_sweep(key, mdp, TABLE, start, order, ascent, 4, num_trunks=64,
                             num_siblings=8)  # fmt: skip

    found = sweep(jax.random.split(jax.random.key(7), 20))
    assert (found[:, 1, 1, 1] > found[:, 1, 1, 0]).all()
    assert (found[:, 0, 0, 1] > found[:, 0, 0, 0]).all()


def test_one_sibling_has_no_signal(case):
    _, mdp, params = case
    found = sampled_sweep(
        jax.random.key(0), mdp, TABLE, params, jnp.array([1, 0]), WIDE, 2,
        num_trunks=3, num_siblings=1,
    )  # fmt: skip
    np.testing.assert_array_equal(found, params)


def test_slow_branch_by_hand():
    """Turn 1: 1/3, 0.4667, 0.5733, 0.688; turn 0 has lost the branch after three sweeps."""
    instance = slow_branch()
    policy, values, shares = instance.policy, [], []
    sweep = jax.jit(lambda p: tabular.siblings(instance.mdp, p, tabular.reverse_order(2), 0.2, 0.2))
    for _ in range(4):
        values.append(float(tabular.values(instance.mdp, policy).V[1, 2]))
        shares.append(float(policy[0, 0, 2]))
        policy = sweep(policy)
    np.testing.assert_allclose(values, [1 / 3, 7 / 15, 1 - 0.8 * 8 / 15, 1.2 * 43 / 75], atol=1e-12)
    np.testing.assert_allclose(shares, [1 / 3, 0.2, 0.04, 0.0], atol=1e-12)
    assert abs(tabular.performance(instance.mdp, policy) - 0.7) < 1e-12
    assert float(instance.mdp.start @ tabular.optimal_values(instance.mdp)[0]) == 1.0


@pytest.mark.parametrize("name", ["num_trunks", "num_siblings"])
def test_bad_sizes_are_refused(case, name):
    _, mdp, params = case
    sizes = {"num_trunks": 2, "num_siblings": 2, name: 0}
    with pytest.raises(ValueError, match=f"{name} is 0"):
        sampled_sweep(jax.random.key(0), mdp, TABLE, params, jnp.array([1]), WIDE, 1, **sizes)
