"""Closed-form moments of advantage estimators against groups of episodes multiplied out in numpy."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tabular
from tabular.estimation.accuracy import (
    accuracy,
    boundary_variances,
    sibling_error,
    trajectory_error,
)
from tabular.estimation.estimators import generalised_advantage, sibling_group, trajectory_group
from tabular.moments import variance_decomposition

FRESH = int(os.environ["FRESH_SEED"])
SEEDS = [0, 1, FRESH]
SIZE = (2, 2, 2)


def returns_of(listed, *, first_turn=0):
    """Probabilities and returns from a turn on; 0 for an episode that ended before it."""
    probabilities = np.array([p for p, _ in listed])
    sums = [sum(r for turn, *_, r in path if turn >= first_turn) for _, path in listed]
    return probabilities, np.array(sums)


def moments(own, others, factor):
    """Mean and variance of factor * (own - mean of the others), all groups multiplied out."""
    chances, numbers = own
    for weights, values in others:
        chances = np.multiply.outer(chances, weights)
        numbers = np.subtract.outer(numbers, values / len(others))
    numbers = factor * numbers
    mean = (chances * numbers).sum()
    return mean, (chances * (numbers - mean) ** 2).sum()


def through(listed, turn, state, action):
    """The episodes that take `action` in `state` at `turn`, probabilities normalised."""
    kept = [(p, path) for p, path in listed if (turn, state, action) in {x[:3] for x in path}]
    total = sum(p for p, _ in kept)
    return [(p / total, path) for p, path in kept]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("to_go", [False, True])
@pytest.mark.parametrize("include_self", [False, True])
def test_trajectory_group_is_all_groups_multiplied_out(seed, to_go, include_self, draw, episodes):
    mdp, policy = draw(seed, *SIZE)
    listed, size = episodes(mdp, policy), 3
    found = trajectory_group(mdp, policy, size, include_self=include_self, to_go=to_go)
    factor = (size - 1) / size if include_self else 1.0
    for turn, state, action in np.ndindex(SIZE):
        passing = through(listed, turn, state, action)
        if not passing:
            continue
        first = turn if to_go else 0
        other = returns_of(listed, first_turn=first)
        own = returns_of(passing, first_turn=first)
        expected = moments(own, [other] * (size - 1), factor)
        place = turn, state, action
        np.testing.assert_allclose(found.mean[place], expected[0], atol=1e-11, err_msg=f"{seed=}")
        np.testing.assert_allclose(
            found.variance[place], expected[1], atol=1e-11, err_msg=f"{seed=} {place}"
        )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("include_self", [False, True])
@pytest.mark.parametrize("trunk", [False, True])
def test_sibling_group_is_all_groups_multiplied_out(seed, include_self, trunk, draw, episodes):
    mdp, policy = draw(seed, *SIZE)
    _, old = draw(seed + 7, *SIZE)
    size = 3  # members, the trunk included
    found = sibling_group(
        mdp,
        policy,
        size - 1 if trunk else size,
        include_self=include_self,
        trunk_policy=old if trunk else None,
    )
    factor = (size - 1) / size if include_self else 1.0
    for turn, state, action in np.ndindex(SIZE):
        forced = policy.copy()
        forced[turn, state] = np.eye(SIZE[2])[action]
        own = returns_of(episodes(mdp, forced, turn, state))
        sibling = returns_of(episodes(mdp, policy, turn, state))
        last = returns_of(episodes(mdp, old, turn, state)) if trunk else sibling
        expected = moments(own, [sibling, last], factor)
        place = turn, state, action
        np.testing.assert_allclose(found.mean[place], expected[0], atol=1e-11, err_msg=f"{seed=}")
        np.testing.assert_allclose(
            found.variance[place], expected[1], atol=1e-11, err_msg=f"{seed=} {place}"
        )


def gae_by_hand(path, values, decay, turn):
    """Sum of decayed one-step errors from `turn` on."""
    path = [step for step in path if step[0] >= turn]
    total = 0.0
    for index, (h, state, _, reward) in enumerate(path):
        after = values[h + 1, path[index + 1][1]] if index + 1 < len(path) else 0.0
        total += decay**index * (reward + after - values[h, state])
    return total


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("decay", [0.0, 0.6, 1.0])
def test_generalised_advantage_is_the_mean_over_episodes_and_noise(seed, decay, draw, episodes):
    mdp, policy = draw(seed, *SIZE)
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(3, 2))
    spread = rng.random((3, 2))
    found = generalised_advantage(mdp, policy, jnp.array(values), decay, jnp.array(spread**2))
    listed = episodes(mdp, policy)
    signs = np.array(np.meshgrid(*[[-1, 1]] * 4)).reshape(4, -1).T.reshape(-1, 2, 2)
    for turn, state, action in np.ndindex(SIZE):
        passing = through(listed, turn, state, action)
        if not passing:
            continue
        numbers, chances = [], []
        for sign in signs:
            # Row 2 holds nonsense: no estimate may read the value after the last turn.
            noisy = np.concatenate([values[:2] + sign * spread[:2], [[1e3, -1e3]]])
            numbers += [gae_by_hand(path, noisy, decay, turn) for _, path in passing]
            chances += [p / len(signs) for p, _ in passing]
        numbers, chances = np.array(numbers), np.array(chances)
        mean = (chances * numbers).sum()
        place = turn, state, action
        np.testing.assert_allclose(found.mean[place], mean, atol=1e-11, err_msg=f"{seed=}")
        variance = (chances * (numbers - mean) ** 2).sum()
        np.testing.assert_allclose(
            found.variance[place], variance, atol=1e-11, err_msg=f"{seed=} {place}"
        )


def test_exact_values_are_unbiased_and_wrong_ones_only_shift_at_decay_one(draw):
    mdp, policy = draw(FRESH, 4, 3, 3)
    exact, truth = tabular.values(mdp, policy).V, tabular.advantages(mdp, policy)
    shift = jnp.asarray(np.random.default_rng(FRESH).normal(size=exact.shape))
    for decay in (0.0, 0.3, 1.0):
        found = generalised_advantage(mdp, policy, exact, decay).mean
        np.testing.assert_allclose(found, truth, atol=1e-12, err_msg=f"{FRESH=}")
    found = generalised_advantage(mdp, policy, exact + shift, 1.0).mean
    np.testing.assert_allclose(found, truth - shift[:-1, :, None], atol=1e-12, err_msg=f"{FRESH=}")
    biased = generalised_advantage(mdp, policy, exact + shift, 0.5).mean
    assert abs(biased - (truth - shift[:-1, :, None])).max() > 1e-2, f"{FRESH=}"


# MSE_sib n=2, MSE_traj G=3, MSE_sib n=15, MSE_traj G=16, then the squared correlations.
LOCK_NUMBERS = {
    (4, 0.6, 0): (0.056402, 0.071470, 0.095579, 0.095956, 0.0496, 0.0662, 0.0926, 0.0931),
    (4, 0.6, 1): (0.050803, 0.068982, 0.078659, 0.089424, 0.0918, 0.1103, 0.1714, 0.1551),
    (4, 0.6, 2): (0.041472, 0.064835, 0.050458, 0.078538, 0.1875, 0.1838, 0.3500, 0.2585),
    (4, 0.6, 3): (0.025920, 0.057923, 0.003456, 0.060394, 0.5000, 0.3064, 0.9333, 0.4308),
    (6, 0.7, 0): (0.051904, 0.067228, 0.091746, 0.092129, 0.0286, 0.0381, 0.0533, 0.0536),
    (6, 0.7, 3): (0.038648, 0.063440, 0.057154, 0.082187, 0.1119, 0.1111, 0.2088, 0.1562),
    (6, 0.7, 5): (0.017647, 0.057440, 0.002353, 0.066437, 0.5000, 0.2267, 0.9333, 0.3188),
    (2, 0.1, 1): (0.004500, 0.003600, 0.000600, 0.001406, 0.5000, 0.6061, 0.9333, 0.8523),
}


@pytest.mark.parametrize("case", LOCK_NUMBERS, ids=str)
def test_lock_in_closed_form(case):
    """sV = p^(2K-k)(1-p^k), sA = p^(2K-k-1)(1-p), sQ = p^K(1-p^(K-k-1)), and what follows."""
    num_turns, p, turn = case
    mdp = tabular.lock(num_turns)
    policy = tabular.lock_policy(mdp, p)
    parts = boundary_variances(mdp, policy)
    left = 2 * num_turns - turn
    expected = (
        p**left * (1 - p**turn),
        p ** (left - 1) * (1 - p),
        p**num_turns * (1 - p ** (num_turns - turn - 1)),
        p**num_turns * (1 - p**num_turns),
    )
    found = [part[turn] for part in parts[1:]]
    np.testing.assert_allclose(found, expected, atol=1e-15)
    errors, correlations = [], []
    for n in (2, 15):
        for estimate in (sibling_group(mdp, policy, n), trajectory_group(mdp, policy, n + 1)):
            measured = accuracy(mdp, policy, estimate)
            errors.append(measured.mse[turn])
            correlations.append(measured.correlation_squared[turn])
            assert measured.signal[turn] == pytest.approx(expected[1], abs=1e-15)
    np.testing.assert_allclose(errors, LOCK_NUMBERS[case][:4], atol=6e-7)
    np.testing.assert_allclose(correlations, LOCK_NUMBERS[case][4:], atol=6e-5)


@pytest.mark.parametrize("seed", SEEDS)
def test_accuracy_is_an_average_over_episodes_that_get_there(seed, draw, episodes):
    mdp, policy = draw(seed, 3, 2, 2)
    truth = np.asarray(tabular.advantages(mdp, policy))
    estimate = trajectory_group(mdp, policy, 4)
    found = accuracy(mdp, policy, estimate)
    mean, variance = map(np.asarray, estimate)
    for turn in range(3):
        visits = [(p, x[:3]) for p, path in episodes(mdp, policy) for x in path if x[0] == turn]
        weights = np.array([p for p, _ in visits]) / sum(p for p, _ in visits)
        at = [place for _, place in visits]
        m, v, a = (np.array([table[x] for x in at]) for table in (mean, variance, truth))
        np.testing.assert_allclose(found.squared_bias[turn], (weights * (m - a) ** 2).sum())
        np.testing.assert_allclose(found.variance[turn], (weights * v).sum())
        np.testing.assert_allclose(found.mse[turn], (weights * ((m - a) ** 2 + v)).sum())
        np.testing.assert_allclose(found.signal[turn], (weights * a**2).sum())
        centred_m, centred_a = m - (weights * m).sum(), a - (weights * a).sum()
        covariance = (weights * centred_m * centred_a).sum()
        spread = (weights * (centred_m**2 + v)).sum() * (weights * centred_a**2).sum()
        expected = covariance**2 / spread
        np.testing.assert_allclose(
            found.correlation_squared[turn], expected, atol=1e-12, err_msg=f"{seed=}"
        )


@pytest.mark.parametrize("seed", SEEDS)
def test_errors_follow_from_the_parts_of_the_variance_also_with_early_ends(seed, draw):
    mdp, policy = draw(seed, 4, 3, 2)
    parts = boundary_variances(mdp, policy)
    assert parts.reach[-1] < 0.999, f"{seed=}: no episode ends early, the test shows nothing"
    for n in (2, 5):
        siblings = accuracy(mdp, policy, sibling_group(mdp, policy, n))
        np.testing.assert_allclose(siblings.mse, sibling_error(parts, n), err_msg=f"{seed=}")
        flat = accuracy(mdp, policy, trajectory_group(mdp, policy, n))
        np.testing.assert_allclose(flat.mse, trajectory_error(parts, n), err_msg=f"{seed=}")


@pytest.mark.parametrize("seed", SEEDS)
def test_parts_add_up_where_episodes_have_full_length(seed, draw):
    mdp, policy = draw(seed, 4, 3, 3)
    rows = mdp.transitions / mdp.transitions.sum(-1, keepdims=True)
    mdp = tabular.TurnMDP(rows, mdp.rewards, mdp.start)
    parts = boundary_variances(mdp, policy)
    total = parts.upstream + parts.turn + parts.downstream
    np.testing.assert_allclose(total, parts.total, rtol=1e-11, err_msg=f"{seed=}")
    split = variance_decomposition(mdp, policy)
    np.testing.assert_allclose(parts.upstream, split.upstream, atol=1e-12, err_msg=f"{seed=}")
    np.testing.assert_allclose(parts.downstream, split.downstream, atol=1e-12, err_msg=f"{seed=}")


def test_everything_maps_over_a_stack(draw):
    pairs = [draw(seed, 3, 2, 2) for seed in (FRESH, FRESH + 1)]
    mdps, policies = jax.tree.map(lambda *leaves: jnp.stack(leaves), *pairs)

    def measure(mdp, policy):
        estimates = trajectory_group(mdp, policy, 3), sibling_group(mdp, policy, 2)
        return [accuracy(mdp, policy, estimate).mse for estimate in estimates]

    mapped = jax.jit(jax.vmap(measure))(mdps, policies)
    for index, pair in enumerate(pairs):
        for one, many in zip(measure(*pair), mapped, strict=True):
            np.testing.assert_allclose(one, many[index], rtol=1e-12)


def test_impossible_arguments_are_refused(draw):
    mdp, policy = draw(0, *SIZE)
    with pytest.raises(ValueError, match="group_size is 1"):
        trajectory_group(mdp, policy, 1)
    with pytest.raises(ValueError, match="num_siblings is 1"):
        sibling_group(mdp, policy, 1)
    with pytest.raises(ValueError, match=r"values has shape \(2, 2\)"):
        generalised_advantage(mdp, policy, jnp.zeros((2, 2)), 0.5)
    with pytest.raises(ValueError, match="value_variances has shape"):
        generalised_advantage(mdp, policy, jnp.zeros((3, 2)), 0.5, jnp.zeros((3, 3)))
    with pytest.raises(ValueError, match="trace_decay is 1.5"):
        generalised_advantage(mdp, policy, jnp.zeros((3, 2)), 1.5)
