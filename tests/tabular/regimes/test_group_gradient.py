"""Moments of group gradients against every group of tiny MDPs, and against plain simulation."""

import itertools
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tabular
from rtpo_jax import core
from tabular.regimes import families, group_gradient, group_variance

FRESH = int(os.environ["FRESH_SEED"])
NOISE = 0.6
leave_one_out = jax.jit(core.leave_one_out, static_argnums=2)


def scores_of(policy, path, turn, block):
    """Score of one turn of an episode given as [(turn, state, action, reward), ...]."""
    num_states, num_actions = policy.shape[1:]
    score = np.zeros((num_states, num_actions))
    for h, state, action, _ in path:
        if h == turn:
            score[state] = np.eye(num_actions)[action] - policy[turn, state]
    return score.sum(0) if block == "turn" else score.ravel()


def chains(episodes, mdp, policy, boundary, state, turn, block="turn", to_go=False):
    """Probability, return and score of all chains; a coin of size sqrt(NOISE) is one coordinate."""
    rows = []
    for probability, path in episodes(mdp, policy, boundary, state):
        total = sum(reward for h, _, _, reward in path if h >= (turn if to_go else boundary))
        score = scores_of(policy, path, turn, block)
        here = any(h == turn for h, *_ in path)
        for sign in (1.0, -1.0):
            rows.append((probability / 2, total, np.append(score, sign * here * NOISE**0.5)))
    return [np.array(column) for column in zip(*rows, strict=True)]


def group_statistics(probability, returns, scores, size):
    """Mean vector and trace of the covariance of the leave-one-out gradient over all groups."""
    members = np.array(list(itertools.product(range(len(returns)), repeat=size)))
    weight = probability[members].prod(1)
    # Filled up to one length, so that one shape is compiled per group size.
    padded = -(-len(members) // 8192) * 8192
    filled = np.zeros((padded, size))
    filled[: len(members)] = returns[members]
    advantages = leave_one_out(filled.ravel(), np.repeat(np.arange(padded), size), padded)
    advantages = np.asarray(advantages).reshape(padded, size)[: len(members)]
    estimates = (advantages[:, :, None] * scores[members]).mean(1)
    mean = weight @ estimates
    return mean, weight @ (estimates**2).sum(1) - mean @ mean


@pytest.mark.parametrize(
    ("block", "returns"), [("turn", "total"), ("state", "total"), ("turn", "to_go")]
)
def test_every_group_of_a_tiny_mdp(block, returns, draw, episodes, seed=FRESH):
    mdp, policy = draw(seed, 3, 2, 2)
    moments = group_gradient.group_moments(mdp, policy, noise=NOISE, block=block, returns=returns)
    for boundary, size in ((0, 2), (1, 2), (1, 3), (2, 4)):
        exact = group_variance.sampling_variance(moments, size)
        for state, turn in itertools.product(range(2), range(boundary, 3)):
            rows = chains(episodes, mdp, policy, boundary, state, turn, block, returns == "to_go")
            mean, variance = group_statistics(*rows, size)
            message = f"{seed=} {boundary=} {state=} {turn=} {size=}"
            assert abs(exact[boundary, state, turn] - variance) < 1e-12, message
            assert abs(moments.covariances[boundary, state, turn] - mean @ mean) < 1e-12, message
    assert exact[2, :, 2].max() > 1e-3


@pytest.mark.parametrize("seed", [2, FRESH])
def test_moments_are_the_sums_they_are_named_after(seed, draw, episodes):
    mdp, policy = draw(seed, 3, 3, 2)
    moments = group_gradient.group_moments(mdp, policy, noise=NOISE)
    for boundary, state in itertools.product(range(3), range(3)):
        length = sum(p * len(path) for p, path in episodes(mdp, policy, boundary, state))
        assert abs(moments.turns_left[boundary, state] - length) < 1e-12, f"{seed=}"
        for turn in range(3):
            place = boundary, state, turn
            if turn < boundary:
                assert moments.products[place] == moments.scores[place] == 0.0
                assert moments.returns[place] == moments.covariances[place] == 0.0
                continue
            p, total, score = chains(episodes, mdp, policy, boundary, state, turn)
            x, norms = total - p @ total, (score**2).sum(1)
            expected = (p @ (x**2 * norms), p @ norms, p @ x**2)
            found = (moments.products[place], moments.scores[place], moments.returns[place])
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12, err_msg=f"{seed=}")


@pytest.mark.parametrize("seed", [3, FRESH])
def test_signals_are_the_policy_gradient(seed, draw):
    mdp, policy = draw(seed, 3, 2, 2)
    gradient = np.asarray(tabular.policy_gradient(mdp, policy))
    own = group_gradient.group_moments(mdp, policy, block="state").signals
    np.testing.assert_allclose(own, (gradient**2).sum((1, 2)), rtol=1e-10, err_msg=f"{seed=}")
    shared = group_gradient.group_moments(mdp, policy).signals
    expected = (gradient.sum(1) ** 2).sum(1)
    np.testing.assert_allclose(shared, expected, rtol=1e-10, atol=1e-15, err_msg=f"{seed=}")


@pytest.mark.parametrize("seed", [FRESH])
def test_noisy_rewards_are_coins_in_the_enumeration(seed, draw, episodes):
    # A reward r with variance v is r + or - sqrt(v) with probability 1/2.
    mdp, policy = draw(seed, 2, 2, 2)
    variances = np.random.default_rng(seed).random(mdp.rewards.shape)
    moments = group_gradient.group_moments(mdp, policy, noise=0.0, reward_variances=variances)
    for state, turn in itertools.product(range(2), range(2)):
        rows = []
        for probability, path in episodes(mdp, policy, 0, state):
            score = scores_of(policy, path, turn, "turn")
            for signs in itertools.product((1.0, -1.0), repeat=len(path)):
                noisy = zip(path, signs, strict=True)
                total = sum(r + sign * variances[h, s, a] ** 0.5 for (h, s, a, r), sign in noisy)
                rows.append((probability / 2 ** len(path), total, score))
        columns = [np.array(column) for column in zip(*rows, strict=True)]
        mean, variance = group_statistics(*columns, 2)
        exact = group_variance.sampling_variance(moments, 2)[0, state, turn]
        assert abs(exact - variance) < 1e-12, f"{seed=} {state=} {turn=}"
        assert abs(moments.covariances[0, state, turn] - mean @ mean) < 1e-12, f"{seed=}"


def test_simulated_groups_on_a_longer_task():
    """Lock of 6 turns, siblings at turn 2, n = 4: E|C_l|^2 within 5 standard errors."""
    rng = np.random.default_rng(FRESH)
    num_turns, success, boundary, size, groups = 6, 0.7, 2, 4, 60_000
    moments = group_gradient.group_moments(*families.lock_case(num_turns, success), noise=0.0)
    alive = (rng.random((groups, boundary)) < success).all(1)
    right = rng.random((groups, size, num_turns)) < success
    outcome = (alive[:, None] & right[:, :, boundary:].all(2)).astype(float)
    advantages = size / (size - 1) * (outcome - outcome.mean(1, keepdims=True))
    squares = group_variance.sampling_variance(moments, size) + moments.covariances
    exact = np.asarray(moments.occupancy[boundary] @ squares[boundary])
    for turn in range(boundary, num_turns):
        # Two actions: the score is (1, -1) times (right - success), squared norm doubled.
        estimate = (advantages * (right[:, :, turn] - success)).mean(1)
        sampled = 2.0 * estimate**2
        error = sampled.std() / groups**0.5
        assert abs(sampled.mean() - exact[turn]) < 5 * error, f"seed={FRESH} {turn=}"


def test_a_stack_of_mdps_under_vmap(draw):
    pairs = [draw(FRESH + number, 3, 3, 2) for number in range(3)]
    mdps = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(mdp for mdp, _ in pairs))
    policies = jnp.stack([policy for _, policy in pairs])
    stacked = jax.vmap(group_gradient.group_moments)(mdps, policies)
    for number, pair in enumerate(pairs):
        one = group_gradient.group_moments(*pair)
        for found, expected in zip(stacked, one, strict=True):
            np.testing.assert_allclose(found[number], expected, rtol=0, atol=1e-13)


def test_refusals(draw):
    mdp, policy = draw(0)
    with pytest.raises(ValueError, match="block='row'"):
        group_gradient.group_moments(mdp, policy, block="row")
    with pytest.raises(ValueError, match="returns='some'"):
        group_gradient.group_moments(mdp, policy, returns="some")
    with pytest.raises(ValueError, match="noise=-1"):
        group_gradient.group_moments(mdp, policy, noise=-1.0)
    with pytest.raises(ValueError, match="reward_variances"):
        group_gradient.group_moments(mdp, policy, reward_variances=np.zeros(3))
