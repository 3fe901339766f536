"""Sweeps by order against hand-written loops, the toys and policy iteration."""

import functools
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tabular
from tabular.orders import sweeps

FRESH = int(os.environ["FRESH_SEED"])
CLIP = sweeps.Clip(0.2, 0.2)
REVERSE, NATURAL = np.array([2, 1, 0]), np.array([0, 1, 2])


@functools.cache
def listed():
    return tabular.all_paths(3, 3, 2, early_end=True)


@pytest.fixture
def instance(draw):
    return draw(FRESH)


def value_of(mdp, policy):
    return float(tabular.performance(mdp, jnp.asarray(policy)))


@jax.jit
def group_update(mdp, policy, baseline):
    """All turns at once from new data, with the group means given by hand."""
    weights = tabular.path_probabilities(mdp, policy, listed())
    returns = tabular.path_rewards(mdp, listed()).sum(1)
    centred = jnp.where(listed().turn_mask, (returns - baseline[listed().states[:, 0]])[:, None], 0)
    return tabular.simultaneous(policy, listed(), weights, centred, *CLIP)


def test_new_data_before_each_turn_by_a_loop(instance):
    mdp, policy = instance
    current = jnp.asarray(policy)
    for turn in (1, 2, 0):
        improved = group_update(mdp, current, tabular.values(mdp, current).V[0])
        current = current.at[turn].set(improved[turn])
    run = jax.jit(lambda m, p: sweeps.regrouped_sweep(m, p, listed(), np.array([1, 2, 0]), CLIP))
    np.testing.assert_allclose(run(mdp, policy), current, rtol=0, atol=1e-12, err_msg=f"{FRESH=}")


def test_last_turns_one_by_one_lies_between_both_updates(instance):
    mdp, policy = instance
    weights = tabular.path_probabilities(mdp, policy, listed())
    found = tabular.group_advantages(mdp, policy, listed())
    partial = jax.jit(lambda count: sweeps.partial_sweep(mdp, policy, listed(), count, CLIP))
    update = jax.jit(lambda a: tabular.simultaneous(policy, listed(), weights, a, *CLIP))
    at_once = update(found)
    full = jax.jit(lambda p: sweeps.group_sweep(mdp, p, listed(), REVERSE, CLIP))(policy)
    np.testing.assert_allclose(partial(0), at_once, rtol=0, atol=1e-12, err_msg=f"{FRESH=}")
    for count in (2, 3):
        np.testing.assert_allclose(partial(count), full, rtol=0, atol=1e-12, err_msg=f"{FRESH=}")
    # One turn: the last as in both; the others judged with its ratio and nothing else.
    one = partial(1)
    np.testing.assert_allclose(one[2], full[2], rtol=0, atol=1e-12)
    mask, states, actions = listed().turn_mask, listed().states, listed().actions
    ratio = np.asarray(one[2]) / policy[2]
    ratio = np.where(mask[:, 2], ratio[states[:, 2], actions[:, 2]], 1.0)
    rest = update(found * ratio[:, None])
    np.testing.assert_allclose(one[:2], rest[:2], rtol=0, atol=1e-12, err_msg=f"{FRESH=}")


@pytest.mark.parametrize("seed", [0, 1, FRESH])
def test_policy_iteration_needs_one_sweep_backward_and_at_most_one_a_turn_forward(seed, draw):
    mdp, policy = draw(seed)
    best = np.asarray(tabular.optimal_values(mdp))[:-1]
    sweep = jax.jit(lambda p, order: sweeps.exploring_sweep(mdp, p, order))
    once = sweep(jnp.asarray(policy), REVERSE)
    found = tabular.values(mdp, once).V[:-1]
    np.testing.assert_allclose(found, best, rtol=0, atol=1e-12, err_msg=f"{seed=}")
    current = jnp.asarray(policy)
    for number in range(1, 4):
        current = sweep(current, NATURAL)
        late = tabular.values(mdp, current).V[3 - number : -1]
        np.testing.assert_allclose(late, best[3 - number :], rtol=0, atol=1e-12)


def test_policy_iteration_in_natural_order_is_all_turns_at_once(instance):
    mdp, policy = instance
    found = jax.jit(lambda p: sweeps.exploring_sweep(mdp, p, NATURAL))(jnp.asarray(policy))
    expected = np.eye(2)[np.asarray(tabular.values(mdp, policy).Q).argmax(-1)]
    np.testing.assert_array_equal(found, expected)
    # The same for siblings, whose continuations no earlier turn has touched.
    fresh, stale = (
        jax.jit(lambda p, f=flag: tabular.siblings(mdp, p, NATURAL, *CLIP, fresh=f))(policy)
        for flag in (True, False)
    )
    np.testing.assert_allclose(fresh, stale, rtol=0, atol=1e-14, err_msg=f"{FRESH=}")


def test_gradient_steps_follow_finite_differences(instance):
    mdp, policy = instance
    start = np.log(policy)
    logits = start.copy()
    for turn in (0, 2, 1):
        slope = np.zeros_like(logits[turn])
        for place in np.ndindex(slope.shape):
            ends = []
            for shift in (1e-5, -1e-5):
                moved = logits.copy()
                moved[(turn, *place)] += shift
                ends.append(value_of(mdp, jax.nn.softmax(moved)))
            slope[place] = (ends[0] - ends[1]) / 2e-5
        logits[turn] = logits[turn] + 0.7 * slope
    found = sweeps.gradient_sweep(mdp, jnp.asarray(start), np.array([0, 2, 1]), 0.7)
    np.testing.assert_allclose(found, logits, rtol=0, atol=1e-8, err_msg=f"{FRESH=}")
    assert abs(logits - start).max() > 1e-3, f"{FRESH=}"


def test_performances_of_repeated_sweeps():
    mdp, policy, _ = tabular.toy_reverse_order()
    paths = tabular.all_paths(2, 2, 2, early_end=False)

    @functools.partial(jax.jit, static_argnames="compound")
    def reached(order, compound=True):
        def sweep(current, entry):
            return sweeps.group_sweep(mdp, current, paths, entry, sweeps.GREEDY, compound=compound)

        return sweeps.performances(mdp, policy, sweep, jnp.tile(order, (3, 1)))

    np.testing.assert_allclose(reached(jnp.array([1, 0])), [0.475, 0.9, 0.9, 0.9], atol=1e-12)
    np.testing.assert_allclose(reached(jnp.array([0, 1])), [0.475, 0.5, 0.5, 0.5], atol=1e-12)
    at_once = reached(jnp.array([1, 0]), compound=False)
    np.testing.assert_allclose(at_once, [0.475, 0.5, 0.5, 0.5], atol=1e-12)


def test_new_data_show_later_turns_what_earlier_ones_did():
    # Greedy on the toy: backward the first turn sees branch 1 improved; forward, data sampled after
    # the first turn has left branch 1 no longer reach it, and its row stays.
    mdp, policy, _ = tabular.toy_reverse_order()
    paths = tabular.all_paths(2, 2, 2, early_end=False)
    run = jax.jit(lambda order: sweeps.regrouped_sweep(mdp, policy, paths, order, sweeps.GREEDY))
    backward, forward = run(np.array([1, 0])), run(np.array([0, 1]))
    assert value_of(mdp, backward) == pytest.approx(0.9, abs=1e-12)
    assert value_of(mdp, forward) == pytest.approx(0.5, abs=1e-12)
    np.testing.assert_allclose(forward[1, 1], [0.5, 0.5], atol=1e-12)


def test_turns_updated_at_once_see_the_ratios_of_those_before_them():
    mdp, policy, _ = tabular.toy_reverse_order()
    paths = tabular.all_paths(2, 2, 2, early_end=False)
    reached = [value_of(mdp, sweeps.partial_sweep(mdp, policy, paths, count, sweeps.GREEDY))
               for count in range(3)]  # fmt: skip
    np.testing.assert_allclose(reached, [0.5, 0.9, 0.9], atol=1e-12)
