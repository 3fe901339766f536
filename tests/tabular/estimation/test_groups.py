"""Enumeration of groups through the core against groups multiplied out and simulated in numpy."""

import itertools
import os
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tabular
from rtpo_jax import core
from tabular.estimation.groups import (
    GroupStatistics,
    group_statistics,
    path_estimate,
    path_generalised_advantages,
    return_laws,
    sign_rates,
)
from tabular.paths import all_paths

FRESH = int(os.environ["FRESH_SEED"])
scaled = partial(core.group_relative, scale="group")


def by_hand(kind, returns):
    """Advantage of the first of the returns, written out."""
    first, rest = returns[0], returns[1:]
    if kind == "left out":
        return first - rest.mean()
    if kind == "mean":
        return first - returns.mean()
    deviation = np.sqrt(((returns - returns.mean()) ** 2).sum() / (len(returns) - 1))
    return 0.0 if deviation == 0 else (first - returns.mean()) / (deviation + 1e-6)


FUNCTIONS = {"mean": core.group_relative, "left out": core.leave_one_out, "scaled": scaled}


@pytest.mark.parametrize("kind", FUNCTIONS)
@pytest.mark.parametrize("trunk", [False, True])
@pytest.mark.parametrize("seed", [0, FRESH])
def test_statistics_are_sums_over_all_ordered_groups(kind, trunk, seed):
    rng = np.random.default_rng(seed)
    values = np.array([-1.0, 0.25, 0.5, 2.0])
    own, others, last = rng.dirichlet(np.ones(4), (2, 3)), *rng.dirichlet(np.ones(4), (2, 2, 1))
    found = group_statistics(FUNCTIONS[kind], values, own, others, 4, trunk=last if trunk else None)
    for i, j in np.ndindex(2, 3):
        numbers, chances, flat = [], [], []
        for group in itertools.product(range(4), repeat=4):
            companions = others[i, 0][list(group[1:3])].prod()
            third = last[i, 0] if trunk else others[i, 0]
            chances.append(own[i, j, group[0]] * companions * third[group[3]])
            numbers.append(by_hand(kind, values[list(group)]))
            flat.append(len(set(group)) == 1)
        numbers, chances, flat = map(np.array, (numbers, chances, flat))
        mean = (chances * numbers).sum()
        message = f"{seed=}"
        assert found.mean[i, j] == pytest.approx(mean, abs=1e-12), message
        variance = (chances * (numbers - mean) ** 2).sum()
        assert found.variance[i, j] == pytest.approx(variance, abs=1e-12), message
        assert found.positive[i, j] == pytest.approx(chances[numbers > 1e-12].sum()), message
        assert found.negative[i, j] == pytest.approx(chances[numbers < -1e-12].sum()), message
        assert found.no_signal[i, j] == pytest.approx(chances[flat].sum()), message


def test_large_groups_agree_with_the_binomial():
    """Outcomes 0 and 1, 16 members: E = p_own - p over 16/15, no signal p^15 q + (1-p)^15 (1-q)."""
    values, p, q = np.array([0.0, 1.0]), 0.2, 0.7
    found = group_statistics(
        core.group_relative, values, np.array([1 - q, q]), np.array([1 - p, p]), 16
    )
    assert found.mean == pytest.approx(15 / 16 * (q - p), abs=1e-13)
    expected = (15 / 16) ** 2 * (q * (1 - q) + p * (1 - p) / 15)
    assert found.variance == pytest.approx(expected, abs=1e-13)
    assert found.no_signal == pytest.approx(p**15 * q + (1 - p) ** 15 * (1 - q), abs=1e-13)


@pytest.mark.parametrize("to_go", [False, True])
def test_return_laws_count_episodes(to_go, draw, episodes):
    mdp, policy = draw(FRESH, 3, 2, 2)
    laws = return_laws(mdp, policy, to_go=to_go)
    assert (np.diff(laws.values) > 0).all()
    for turn in range(3):
        visits = np.zeros((2, 2))
        means = np.zeros((2, 2))
        contributed = 0.0
        for probability, path in episodes(mdp, policy):
            kept = sum(r for h, *_, r in path if h >= turn or not to_go)
            contributed += probability * kept
            for h, state, action, _ in path:
                if h == turn:
                    visits[state, action] += probability
                    means[state, action] += probability * kept
        np.testing.assert_allclose(laws.episode[turn].sum(), 1.0)
        np.testing.assert_allclose(laws.episode[turn] @ laws.values, contributed, atol=1e-9)
        reached = visits > 0
        np.testing.assert_allclose(laws.action[turn].sum(-1), reached, atol=1e-12)
        expected = np.where(reached, means, 0.0) / np.where(reached, visits, 1.0)
        np.testing.assert_allclose(
            laws.action[turn] @ laws.values, expected, atol=1e-9, err_msg=f"{FRESH=}"
        )
        at_state = means.sum(1) / np.where(reached.any(1), visits.sum(1), 1.0)
        np.testing.assert_allclose(laws.state[turn] @ laws.values, at_state, atol=1e-9)


def test_laws_on_given_values():
    mdp = tabular.lock(3)
    policy = tabular.lock_policy(mdp, 0.5)
    laws = return_laws(mdp, policy, to_go=True, values=np.array([-1.0, 0.0, 0.5, 1.0]))
    np.testing.assert_allclose(laws.state[1, 0], [0, 0.75, 0, 0.25])
    np.testing.assert_allclose(laws.state[0, 1], 0.0)  # dead before the first turn: never
    with pytest.raises(ValueError, match="values lack the return 1.0"):
        return_laws(mdp, policy, to_go=True, values=np.array([0.0, 0.5]))


def test_zero_advantage_rates_of_the_lock():
    """p^n + (1-p)^n for the chance of success p of each boundary, dead ones included."""
    mdp = tabular.lock(4)
    policy = tabular.lock_policy(mdp, 0.6)
    truth = np.asarray(tabular.advantages(mdp, policy))
    weights = np.asarray(tabular.occupancy(mdp, policy)[:, :, None] * policy)
    laws = return_laws(mdp, policy, to_go=True)
    printed = {
        2: (0.7744, 0.7968, 0.8341, 0.8963),
        3: (0.6616, 0.6952, 0.7512, 0.8445),
        15: (0.1247, 0.4156, 0.6404, 0.7841),
    }
    for n, expected in printed.items():
        found = group_statistics(
            core.sibling_relative, laws.values, laws.action, laws.state[:, :, None], n
        )
        rates = sign_rates(found, truth, weights)
        np.testing.assert_allclose(rates.no_signal, expected, atol=6e-5)
        np.testing.assert_allclose(rates.zero, rates.no_signal, atol=1e-12)
        np.testing.assert_array_equal(rates.spurious, 0.0)
        assert rates.wrong[-1] == 0.0 and (rates.wrong[:-1] > 0.1).all()


def test_signs_against_simulated_groups():
    """The flat group of 3 on the lock: 200,000 groups, agreement within 5 standard errors."""
    mdp = tabular.lock(3)
    policy = tabular.lock_policy(mdp, 0.6)
    laws = return_laws(mdp, policy, to_go=False)
    found = group_statistics(
        core.group_relative, laws.values, laws.action, laws.episode[:, None, None], 3
    )
    truth = np.asarray(tabular.advantages(mdp, policy))
    weights = np.asarray(tabular.occupancy(mdp, policy)[:, :, None] * policy)
    rates = sign_rates(found, truth, weights)
    rng = np.random.default_rng(FRESH)
    right = rng.random((200_000, 3, 3)) < 0.6
    outcomes = right.all(-1).astype(float)
    estimates = outcomes[:, 0] - outcomes.mean(1)
    turn = 1
    alive = right[:, 0, :turn].all(-1)
    sign = np.where(right[:, 0, turn], 1.0, -1.0)
    nonzero = abs(estimates) > 1e-9
    for share, of, expected in (
        (alive & (estimates * sign < 0), alive & nonzero, rates.wrong[turn]),
        (~alive & nonzero, nonzero, rates.spurious[turn]),
        (~nonzero, np.ones_like(alive), rates.zero[turn]),
    ):
        count = of.sum()
        error = np.sqrt(expected * (1 - expected) / count)
        assert abs(share.sum() / count - expected) < 5 * error, f"{FRESH=}"


def test_sign_rates_by_hand():
    """Two actions with advantage +1 and -1 in state 0, none in state 1; weights .3 .3 .4 0."""
    positive = np.array([[[0.5, 0.2], [0.25, 0.9]]])
    negative = np.array([[[0.1, 0.3], [0.25, 0.1]]])
    blank = np.zeros_like(positive)
    found = sign_rates(
        GroupStatistics(blank, blank, positive, negative, blank + 0.125),
        np.array([[[1.0, -1.0], [0.0, 0.0]]]),
        np.array([[[0.3, 0.3], [0.4, 0.0]]]),
    )
    assert found.wrong[0] == pytest.approx((0.03 + 0.06) / (0.18 + 0.15))
    assert found.spurious[0] == pytest.approx(0.2 / (0.33 + 0.2))
    assert found.zero[0] == pytest.approx(1 - 0.53)
    assert found.no_signal[0] == pytest.approx(0.125)


def test_path_estimates_are_conditional_moments(draw, episodes):
    mdp, policy = draw(FRESH, 2, 2, 2)
    paths = all_paths(2, 2, 2, early_end=True)
    values = np.random.default_rng(FRESH).normal(size=(3, 2))
    on_paths = path_generalised_advantages(mdp, paths, jnp.asarray(values), 0.7)
    found = path_estimate(mdp, jnp.asarray(policy), paths, on_paths)
    for turn, state, action in np.ndindex(2, 2, 2):
        weights, numbers = [], []
        for probability, path in episodes(mdp, policy):
            if (turn, state, action) not in {step[:3] for step in path}:
                continue
            number = path[turn][3] - values[turn, state]
            if turn == 0 and len(path) == 2:
                after = values[1, path[1][1]]
                number += after + 0.7 * (path[1][3] - after)
            weights.append(probability)
            numbers.append(number)
        if not weights:
            continue
        weights, numbers = np.array(weights) / sum(weights), np.array(numbers)
        mean = (weights * numbers).sum()
        place = turn, state, action
        assert found.mean[place] == pytest.approx(mean, abs=1e-12), f"{FRESH=}"
        variance = (weights * (numbers - mean) ** 2).sum()
        assert found.variance[place] == pytest.approx(variance, abs=1e-12), f"{FRESH=}"


def test_group_of_one_is_refused():
    with pytest.raises(ValueError, match="group_size is 1"):
        group_statistics(core.group_relative, np.ones(1), np.ones(1), np.ones(1), 1)


def test_enumeration_and_closed_form_agree_for_larger_groups(draw):
    mdp, policy = draw(FRESH, 2, 2, 2)
    laws = return_laws(mdp, policy, to_go=False)
    closed = jax.tree.map(
        np.asarray, tabular.estimation.estimators.trajectory_group(mdp, policy, 5)
    )
    found = group_statistics(
        core.group_relative, laws.values, laws.action, laws.episode[:, None, None], 5
    )
    reached = laws.action.sum(-1) > 0
    np.testing.assert_allclose(found.mean[reached], closed.mean[reached], atol=1e-9)
    np.testing.assert_allclose(found.variance[reached], closed.variance[reached], atol=1e-9)
