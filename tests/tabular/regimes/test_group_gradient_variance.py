"""Variances over boundary states, along a trunk and with a critic, against enumeration."""

import itertools
import os

import numpy as np
import pytest

import tabular
from tabular.regimes import families, group_gradient, group_variance

FRESH = int(os.environ["FRESH_SEED"])


def covariances(mdp, policy, episodes, boundary, turn):
    """Cov(R, z_turn | S_boundary = s) for every s, [S, A], by enumeration."""
    rows = []
    for state in range(mdp.num_states):
        terms = []
        for probability, path in episodes(mdp, policy, boundary, state):
            total = sum(reward for *_, reward in path)
            score = np.zeros(mdp.num_actions)
            for h, s, action, _ in path:
                if h == turn:
                    score = np.eye(mdp.num_actions)[action] - policy[turn, s]
            terms.append(probability * total * score)
        rows.append(sum(terms))
    return np.array(rows)


@pytest.mark.parametrize("seed", [1, FRESH])
def test_boundary_variance_is_the_law_of_total_variance(seed, draw, episodes):
    mdp, policy = draw(seed, 3, 3, 2)
    moments = group_gradient.group_moments(mdp, policy)
    inside = np.asarray(group_variance.sampling_variance(moments, 3))
    counted = group_variance.boundary_variance(moments, 3, reach="counted")
    known = group_variance.boundary_variance(moments, 3)
    weights = np.asarray(tabular.occupancy(mdp, policy))
    for boundary, turn in itertools.product(range(3), range(3)):
        message = f"{seed=} {boundary=} {turn=}"
        if turn < boundary:
            assert counted[boundary, turn] == known[boundary, turn] == np.inf, message
            continue
        # Outcomes of a trunk: no group with probability 1 - rho, else a group in state s.
        own, c = weights[boundary], covariances(mdp, policy, episodes, boundary, turn)
        mean = own @ c
        between = own @ ((c - mean) ** 2).sum(1) + (1 - own.sum()) * (mean @ mean)
        expected = own @ inside[boundary, :, turn] + between
        assert abs(counted[boundary, turn] - expected) < 1e-12, message
        # Given that it is reached; rho^2 Var / (number of groups), one trunk makes rho groups.
        reached, own = own.sum(), own / own.sum()
        mean = own @ c
        total = own @ (inside[boundary, :, turn] + ((c - mean) ** 2).sum(1))
        assert abs(known[boundary, turn] - reached * total) < 1e-12, message


@pytest.mark.parametrize("seed", [2, FRESH])
def test_covariance_along_a_trunk(seed, draw, episodes):
    """E[c(S_k) . c(S_k')] over whole trunks, 0 where one has ended; three turns, all pairs."""
    mdp, policy = draw(seed, 3, 3, 2)
    moments = group_gradient.group_moments(mdp, policy)
    found = np.asarray(group_variance.shared_trunk_covariance(moments))
    for early, late, turn in ((0, 1, 1), (0, 1, 2), (0, 2, 2), (1, 2, 2)):
        first = covariances(mdp, policy, episodes, early, turn)
        second = covariances(mdp, policy, episodes, late, turn)
        gradient = np.asarray(tabular.policy_gradient(mdp, policy))[turn].sum(0)
        product = 0.0
        for probability, path in episodes(mdp, policy):
            if len(path) > late:
                product += probability * first[path[early][1]] @ second[path[late][1]]
        expected = product - gradient @ gradient
        assert abs(found[early, turn] - expected) < 1e-12, f"{seed=} {early=} {late=} {turn=}"
    assert found[1, 0] == 0.0


@pytest.mark.parametrize("seed", [3, FRESH])
def test_exact_value_as_baseline(seed, draw, episodes):
    mdp, policy = draw(seed, 3, 3, 2)
    state_values = np.asarray(tabular.values(mdp, policy).V)
    moments = group_gradient.group_moments(mdp, policy, noise=0.0)
    found = group_variance.value_baseline_variance(moments)
    for turn in range(3):
        mean, square = np.zeros(2), 0.0
        for probability, path in episodes(mdp, policy):
            if len(path) > turn:
                _, state, action, _ = path[turn]
                later = sum(reward for h, *_, reward in path if h >= turn)
                term = later - state_values[turn, state]
                term = term * (np.eye(2)[action] - policy[turn, state])
                mean, square = mean + probability * term, square + probability * term @ term
        assert abs(found[turn] - (square - mean @ mean)) < 1e-12, f"{seed=} {turn=}"


@pytest.mark.parametrize(("num_turns", "success"), [(4, 0.6), (6, 0.7)])
def test_within_share_of_a_lock(num_turns, success):
    """1 - sigma_V^2(k) / Var R with sigma_V^2(k) = p^(2K-k) (1 - p^k), Var R = p^K (1 - p^K)."""
    moments = group_gradient.group_moments(*families.lock_case(num_turns, success))
    turns = np.arange(num_turns)
    upstream = success ** (2 * num_turns - turns) * (1 - success**turns)
    expected = 1 - upstream / (success**num_turns * (1 - success**num_turns))
    np.testing.assert_allclose(group_variance.within_share(moments), expected, rtol=1e-12)


def test_refusals(draw):
    moments = group_gradient.group_moments(*draw(0))
    with pytest.raises(ValueError, match="size is 1"):
        group_variance.sampling_variance(moments, 1)
    with pytest.raises(ValueError, match="size is 1"):
        group_variance.boundary_variance(moments, 1)
    with pytest.raises(ValueError, match="reach='maybe'"):
        group_variance.boundary_variance(moments, 2, reach="maybe")
