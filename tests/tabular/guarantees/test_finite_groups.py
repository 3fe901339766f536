"""Sampled batches: distribution of what is drawn, and updates by hand from few episodes."""

import os
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tabular
from tabular.guarantees import cells, finite_groups, toys
from tabular.guarantees.cells import Case, Estimator, Update

SHAPE = (2, 2, 2)
PATHS = tabular.all_paths(*SHAPE, early_end=True)


@pytest.fixture
def seed():
    return int(os.environ["FRESH_SEED"])


def random_case(rng):
    rows = rng.dirichlet(np.ones(3), size=SHAPE)[..., :-1]
    mdp = tabular.TurnMDP(rows, rng.normal(size=SHAPE), rng.dirichlet(np.ones(2)))
    contexts = np.tile([0, 1], (2, 1))
    policy = rng.dirichlet(np.ones(2), size=SHAPE[:2])
    return Case(mdp, policy, toys.table_features(contexts, 2), contexts, rng.normal(size=(2, 2)))


def an_update(stages=cells.all_at_once, *, fresh=False, gradient=False):
    return Update(stages(2), fresh, gradient, False, 0.2, np.array([0.7]))


@jax.jit
def draw(uniforms, case):
    return finite_groups.chains(uniforms, case.mdp, case.policy, PATHS)


@jax.jit
def from_siblings(trunks, drawn, case, update, how=None):
    how = how or Estimator()
    return finite_groups.update_from_siblings(trunks, drawn, PATHS, case, how, update)


def within_five_errors(found, mean):
    """Mean of a sample of K numbers in [0, 1]; three more for events too rare to be normal."""
    error = 5 * (mean * (1 - mean) / len(found)) ** 0.5 + 3 / len(found)
    return abs(found.mean() - mean) <= error


def test_chains_have_the_distribution_of_episodes_and_share_a_task(seed):
    rng = np.random.default_rng(seed)
    case = random_case(rng)
    rows = draw(rng.random((4000, 3)), case)
    states, actions, mask = (np.asarray(part).reshape(4000, 2, 2) for part in rows)
    assert (states[:, 0, 0] == states[:, 1, 0]).all()
    probabilities = np.asarray(tabular.path_probabilities(case.mdp, case.policy, PATHS))
    for expected, *path in zip(probabilities, *PATHS, strict=True):
        same = [(a == b).all(-1) for a, b in zip((states, actions, mask), path, strict=True)]
        hits = np.logical_and.reduce(same).mean(1)
        assert within_five_errors(hits, expected), f"{seed=}"


def test_siblings_have_the_distribution_of_continuations(seed):
    rng = np.random.default_rng(seed)
    case = random_case(rng)
    trunks = draw(rng.random((300, 2)), case)
    found = from_siblings(trunks, rng.random((2, 2, 300, 4)), case, an_update())
    states, actions, mask = (
        np.asarray(part)[0].reshape(2, 300, 4, 2) for part in found.rows
    )  # stage 0: boundary turn, trunk, sibling, turn
    trunk_states, trunk_mask = np.asarray(trunks.states), np.asarray(trunks.turn_mask)
    for turn in (0, 1):
        reached = trunk_mask[:, turn]
        here = states[turn][reached][:, :, turn]
        assert (here == trunk_states[reached, turn][:, None]).all(), f"{seed=}"
        for state in (0, 1):
            chosen = actions[turn][reached][:, :, turn][here == state]
            expected = case.policy[turn, state, 0]
            assert within_five_errors(1.0 * (chosen == 0), expected), f"{seed=}"
    # After the boundary at turn 0: the next state, or the end.
    first = (states[0, :, :, 0] == 0) & (actions[0, :, :, 0] == 1)
    goes_on = mask[0, :, :, 1][first]
    ends = case.mdp.transitions[0, 0, 1].sum()
    assert within_five_errors(1.0 * goes_on, float(ends)), f"{seed=}"


def gradient_by_hand(case, rows, weights, advantages):
    """sum over rows and turns of weight x advantage x gradient of log pi, in logits."""
    found = np.zeros(SHAPE)
    for states, actions, mask, weight, row in zip(*rows, weights, advantages, strict=True):
        for turn in np.flatnonzero(mask):
            state, action = states[turn], actions[turn]
            found[turn, state] -= weight * row[turn] * case.policy[turn, state]
            found[turn, state, action] += weight * row[turn]
    return found


def stepped(case, gradient, step=0.7):
    rows = case.policy * np.exp(step * gradient)
    return rows / rows.sum(-1, keepdims=True)


@pytest.mark.parametrize("scale", [False, True])
def test_reinforce_from_chains_by_hand(scale, seed):
    rng = np.random.default_rng(seed)
    case = random_case(rng)
    rows = [np.asarray(part) for part in draw(rng.random((3, 4)), case)]
    how = Estimator(group=True, scale=scale, discount=0.6)
    found = jax.jit(finite_groups.update_from_chains, static_argnums=1)(
        tabular.Paths(*rows), 3, case, jax.tree.map(jnp.asarray, how), an_update(gradient=True)
    )
    rewards = np.asarray(tabular.path_rewards(case.mdp, tabular.Paths(*rows)))
    returns = (rewards @ 0.6 ** np.arange(2)).reshape(3, 3)
    advantages = returns - returns.mean(1, keepdims=True)
    if scale:
        advantages /= returns.std(1, ddof=1, keepdims=True) + 1e-6
    by_turn = np.repeat(advantages.reshape(9, 1), 2, axis=1)
    gradient = gradient_by_hand(case, rows, np.full(9, 1 / 9), by_turn)
    np.testing.assert_allclose(found, stepped(case, gradient), atol=1e-10, err_msg=f"{seed=}")


@pytest.mark.parametrize(("fixed", "discount"), [(None, 1.0), (0, 0.6)])
def test_reinforce_from_siblings_by_hand(fixed, discount, seed):
    seed = seed if fixed is None else fixed
    rng = np.random.default_rng(seed)
    case = random_case(rng)
    trunks = draw(rng.random((3, 2)), case)
    drawn, how = rng.random((2, 2, 3, 4)), Estimator(discount=discount)
    found = from_siblings(trunks, drawn, case, an_update(gradient=True), how)
    rows = [np.asarray(part)[0] for part in found.rows]
    rewards = np.asarray(tabular.path_rewards(case.mdp, tabular.Paths(*rows))).reshape(2, 3, 4, 2)
    mask, advantages = np.zeros((2, 3, 4, 2), bool), np.zeros((2, 3, 4, 2))
    for turn in (0, 1):
        returns = rewards[turn, :, :, turn:] @ discount ** np.arange(2 - turn)
        advantages[turn, :, :, turn] = returns - returns.mean(-1, keepdims=True)
        mask[turn, :, :, turn] = np.asarray(trunks.turn_mask)[:, turn, None]
    flat = (rows[0], rows[1], mask.reshape(24, 2), np.full(24, 1 / 12), advantages.reshape(24, 2))
    gradient = gradient_by_hand(case, flat[:3], *flat[3:])
    np.testing.assert_allclose(
        found.policy, stepped(case, gradient), atol=1e-10, err_msg=f"{seed=}"
    )


def test_fresh_siblings_follow_the_policy_as_it_stands(seed):
    """After the last turn has moved, the siblings of turn 0 continue with its new rows."""
    rng = np.random.default_rng(seed)
    case = random_case(rng)
    full = case.mdp.transitions / case.mdp.transitions.sum(-1, keepdims=True)
    case = case._replace(mdp=tabular.TurnMDP(full, case.mdp.rewards, case.mdp.start))
    trunks = draw(rng.random((400, 2)), case)
    update = an_update(cells.last_first, fresh=True)
    found = from_siblings(trunks, rng.random((2, 2, 400, 4)), case, update)
    # The update of turn 1 is what the second stage sampled from; turn 0 had not moved yet.
    middle = np.asarray(found.policy)[1]
    states, actions, _ = (np.asarray(part)[1].reshape(2, 400, 4, 2) for part in found.rows)
    moved = 0.0
    for state in (0, 1):
        chosen = actions[0, :, :, 1][states[0, :, :, 1] == state]
        assert within_five_errors(1.0 * (chosen == 0), middle[state, 0]), f"{seed=}"
        moved = max(moved, abs(middle[state, 0] - case.policy[1, state, 0]))
    assert moved > 0.01, f"{seed=}"


@pytest.mark.parametrize("fresh", [False, True])
def test_episodes_that_come_back_reproduce_the_update(fresh, seed):
    rng = np.random.default_rng(seed)
    case = random_case(rng)
    trunks = draw(rng.random((3, 2)), case)
    update = an_update(cells.last_first, fresh=fresh)
    found = from_siblings(trunks, rng.random((2, 2, 3, 4)), case, update)
    again = from_siblings(trunks, found.rows, case, update)
    np.testing.assert_array_equal(found.policy, again.policy, err_msg=f"{seed=}")
    assert abs(found.policy - case.policy).max() > 1e-3, f"{seed=}"


@pytest.mark.slow
def test_many_chains_approach_the_exact_update(seed):
    rng = np.random.default_rng(seed)
    case = random_case(rng)
    how = jax.tree.map(jnp.asarray, Estimator(group=True))
    exact = jax.jit(partial(cells.maximise, PATHS))(case, how, an_update(gradient=True))
    rows = draw(rng.random((200, 101)), case)
    update = jax.jit(finite_groups.update_from_chains, static_argnums=1)
    found = update(rows, 200, case, how, an_update(gradient=True))
    assert abs(found - exact.policy).max() < 0.1 * abs(exact.policy - case.policy).max() + 0.02
