"""Returns and GAE against hand-derived numbers, explicit double sums and each other.

Run: pytest tests/core/test_returns.py
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rtpo_jax import core


def compiled(function):
    """One program per shape instead of one per operation; results as numpy arrays."""
    program = jax.jit(function)
    return lambda *args, **kwargs: np.asarray(program(*args, **kwargs))


discounted_returns, gae = compiled(core.discounted_returns), compiled(core.gae)


def random_episodes(seed, rows=4, turns=6):
    rng = np.random.default_rng(seed)
    rewards = rng.normal(size=(rows, turns)).astype(np.float32)
    discounts = rng.uniform(0.5, 1, (rows, turns)) * (rng.uniform(size=(rows, turns)) > 0.2)
    values = rng.normal(size=(rows, turns + 1)).astype(np.float32)
    return rewards, discounts.astype(np.float32), values


def returns_by_definition(rewards, discounts):
    """sum_{k >= h} (prod_{h <= j < k} d_j) r_k, written out without a recursion."""
    out = np.zeros(rewards.shape)
    for n, h in np.ndindex(rewards.shape):
        for k in range(h, rewards.shape[1]):
            out[n, h] += np.prod(discounts[n, h:k]) * rewards[n, k]
    return out


def gae_by_definition(rewards, discounts, values, trace_decay):
    """sum_{k >= h} (prod_{h <= j < k} d_j lambda) delta_k, written out without a recursion."""
    errors = rewards + discounts * values[:, 1:] - values[:, :-1]
    return returns_by_definition(errors, discounts * trace_decay)


def insert_dropped(rewards, discounts, values, before, junk):
    """Insert dropped positions with junk in discounts and values before the given columns."""
    rewards, mask = np.asarray(rewards), np.ones(np.shape(rewards), bool)
    rewards, mask = np.insert(rewards, before, 0, axis=1), np.insert(mask, before, False, axis=1)
    discounts = np.insert(discounts, before, junk, axis=1)
    last = values[:, -1:]
    values = np.insert(values[:, :-1], before, junk, axis=1)
    return rewards, discounts, np.concatenate([values, last], 1), mask


@pytest.mark.parametrize("seed", range(3))
def test_match_their_definitions(seed):
    rewards, discounts, values = random_episodes(seed)
    expected = returns_by_definition(rewards, discounts)
    np.testing.assert_allclose(discounted_returns(rewards, discounts), expected, atol=1e-5)
    for trace_decay in (0.0, 0.7, 1.0):
        expected = gae_by_definition(rewards, discounts, values, trace_decay)
        np.testing.assert_allclose(
            gae(rewards, discounts, values, trace_decay), expected, atol=1e-5
        )


def test_gae_by_hand():
    rewards, values = [[0.0, 0.0, 1.0]], [[0.3, 0.5, 0.8, 7.0]]
    # errors: .99*.5 - .3 = .195, .99*.8 - .5 = .292, 1 - .8 = .2; decay .891
    # A_1 = .292 + .891*.2 = .4702, A_0 = .195 + .891*.4702 = .613948
    advantages = gae(rewards, [[0.99, 0.99, 0.0]], values, 0.9)
    np.testing.assert_allclose(advantages, [[0.613948, 0.4702, 0.2]], atol=1e-6)
    advantages = gae(rewards, [[1.0, 1.0, 0.0]], values, 1.0)
    np.testing.assert_allclose(advantages, [[0.7, 0.5, 0.2]], atol=1e-6)


def test_trace_decay_one_gives_returns_minus_values():
    rewards, discounts, values = random_episodes(11)
    discounts[:, -1] = 0  # no bootstrap: the return stops at the horizon
    expected = discounted_returns(rewards, discounts) - values[:, :-1]
    np.testing.assert_allclose(gae(rewards, discounts, values, 1.0), expected, atol=1e-5)


def test_trace_decay_one_with_mask_gives_returns_minus_values():
    rewards, discounts, values = random_episodes(12)
    discounts[:, -1] = 0
    mask = np.random.default_rng(1).uniform(size=rewards.shape) > 0.4
    mask[:, -1] |= True  # the last position ends the episode
    expected = discounted_returns(rewards, discounts, mask=mask) - values[:, :-1]
    actual = gae(rewards, discounts, values, 1.0, mask=mask)
    np.testing.assert_allclose(actual, np.where(mask, expected, 0), atol=1e-5)


def test_reward_reaches_actions_before_a_tool_result():
    """Actions, two tool tokens, actions, reward at the end: nothing may stop at the tool tokens."""
    mask = [[True, True, False, False, True, True]]
    rewards = [[0.0, 0, 0, 0, 0, 1]]
    undiscounted = discounted_returns(rewards, [[1.0] * 6], mask=mask)
    np.testing.assert_array_equal(undiscounted, [[1, 1, 0, 0, 1, 1]])
    # only action tokens are discounted: .9 ** 3, .9 ** 2, -, -, .9, 1
    discounted = discounted_returns(rewards, [[0.9] * 6], mask=mask)
    np.testing.assert_allclose(discounted, [[0.729, 0.81, 0, 0, 0.9, 1]], rtol=1e-6)


@pytest.mark.parametrize("before", [[0], [2, 2, 5], [0, 3, 3, 3, 6, 6]])
@pytest.mark.parametrize("junk", [0.0, 10.0, np.nan, np.inf])
def test_dropped_positions_change_nothing_at_kept_ones(before, junk):
    rewards, discounts, values = random_episodes(3)
    longer = insert_dropped(rewards, discounts, values, before, junk)
    kept = longer[-1]
    returns = discounted_returns(*longer[:2], mask=kept)
    expected = returns_by_definition(rewards, discounts)
    np.testing.assert_allclose(returns[kept], expected.ravel(), atol=1e-5)
    advantages = gae(*longer[:3], 0.8, mask=kept)
    expected = gae_by_definition(rewards, discounts, values, 0.8)
    np.testing.assert_allclose(advantages[kept], expected.ravel(), atol=1e-5)
    assert (returns[~kept] == 0).all()
    assert (advantages[~kept] == 0).all()


@pytest.mark.parametrize("trace_decay", [0.0, 0.5, 1.0])
def test_reward_on_a_tool_token_belongs_to_the_action_before_it(trace_decay):
    """Moving an action's reward onto the tool token after it is the same at discount 1."""
    mask = jnp.array([[True, False, False, True]])
    discounts, values = jnp.array([[1.0, 9, 9, 0]]), jnp.array([[0.3, 9, 9, 0.6, 9]])
    on_action = gae(jnp.array([[2.0, 0, 0, 1]]), discounts, values, trace_decay, mask=mask)
    on_tool = gae(jnp.array([[0.0, 0, 2, 1]]), discounts, values, trace_decay, mask=mask)
    # errors 2 + .6 - .3 = 2.3 and 1 - .6 = .4
    expected = [[2.3 + trace_decay * 0.4, 0, 0, 0.4]]
    np.testing.assert_allclose(on_action, expected, rtol=1e-6)
    np.testing.assert_allclose(on_tool, expected, rtol=1e-6)
    moved = discounted_returns(jnp.array([[0.0, 0, 2, 1]]), discounts, mask=mask)
    np.testing.assert_allclose(moved, [[3, 0, 0, 1]])


def test_full_mask_is_no_mask():
    rewards, discounts, values = random_episodes(5)
    mask = np.ones(rewards.shape, bool)
    np.testing.assert_array_equal(
        discounted_returns(rewards, discounts, mask=mask),
        discounted_returns(rewards, discounts),
    )
    np.testing.assert_array_equal(
        gae(rewards, discounts, values, 0.9, mask=mask),
        gae(rewards, discounts, values, 0.9),
    )


def test_bootstraps_from_the_last_value_of_an_unfinished_episode():
    # H = 1, discount 1: error = r + V_1 - V_0
    np.testing.assert_allclose(gae([[1.0]], [[0.5]], [[2.0, 8.0]], 0.3), [[3.0]])
    # the same action followed by a dropped position
    advantages = gae([[1.0, 0]], [[0.5, 7]], [[2.0, jnp.nan, 8]], 0.3, mask=[[True, False]])
    np.testing.assert_allclose(advantages, [[3.0, 0]])


def test_nothing_beyond_the_end_of_an_episode_is_read():
    """After a discount of 0 the padding may hold anything; value and gradient stay finite."""
    rewards, discounts = jnp.array([[1.0, 2, jnp.nan]]), jnp.array([[0.5, 0, 0]])
    values = jnp.array([[0.25, 0.5, jnp.nan, jnp.inf]])
    returns = discounted_returns(rewards, discounts)
    np.testing.assert_allclose(returns[:, :2], [[2.0, 2.0]])
    # errors 1 + .5*.5 - .25 = 1, 2 - .5 = 1.5; A_0 = 1 + .5*1.5
    np.testing.assert_allclose(gae(rewards, discounts, values, 1.0)[:, :2], [[1.75, 1.5]])
    gradient = jax.jit(jax.grad(lambda v: core.gae(rewards, discounts, v, 1.0)[0, 0]))(values)
    np.testing.assert_allclose(gradient, [[-1, 0, 0, 0]], atol=1e-7)


def test_gradient_ignores_dropped_positions():
    mask = jnp.array([[True, False, True]])
    discounts = jnp.array([[0.5, jnp.nan, 0]])
    values = jnp.array([[1.0, jnp.nan, 2, jnp.nan]])
    ones = jnp.ones((1, 3))
    total = jax.jit(jax.grad(lambda v: core.gae(ones, discounts, v, 0.5, mask=mask).sum()))
    # A_0 = 2 + .5 V_2 - V_0 + .25 (1 - V_2) (tool reward 1 discounted), A_2 = 1 - V_2
    np.testing.assert_allclose(total(values), [[-1, 0, 0.5 - 0.25 - 1, 0]])


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (([[1.0]], [[1.0]], [[1.0]], 0.5), "values"),
        (([[1j]], [[1.0]], [[1.0, 1.0]], 0.5), "rewards"),
        (([[1.0]], [[1.0, 1.0]], [[1.0, 1.0]], 0.5), "discounts"),
        (([1.0], [1.0], [1.0, 1.0], 0.5), "rewards"),
        (([[1.0]], [[1.0]], [[1.0, 1.0]], 1.5), "trace_decay"),
        (([[1.0]], [[1.0]], [[1.0, 1.0]], float("nan")), "trace_decay"),
    ],
)
def test_bad_input_is_named(arguments, names):
    with pytest.raises(ValueError, match=names):
        core.gae(*arguments)


def test_mask_must_be_boolean_and_of_the_same_shape():
    with pytest.raises(ValueError, match="mask"):
        core.discounted_returns([[1.0]], [[1.0]], mask=[[1]])
    with pytest.raises(ValueError, match="mask"):
        core.discounted_returns([[1.0]], [[1.0]], mask=[[True, False]])
