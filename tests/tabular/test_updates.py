"""One iteration of each update against loops in numpy over episodes, turns and states."""

import functools
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tabular

FRESH = int(os.environ["FRESH_SEED"])
SEEDS = [0, 1, FRESH]
EPSILON = (0.2, 0.3)


@functools.cache
def listed():
    return tabular.all_paths(3, 3, 2, early_end=True)


sequential = jax.jit(
    lambda policy, weights, advantages, order, compound=True, clip=EPSILON: tabular.sequential(
        policy, listed(), weights, advantages, order, *clip, compound=compound
    ),
    static_argnames=("compound", "clip"),
)
siblings = jax.jit(
    lambda mdp, policy, order, fresh=True: tabular.siblings(
        mdp, policy, order, *EPSILON, fresh=fresh
    ),
    static_argnames="fresh",
)


def best_row(gain, loss, behavior, clip=EPSILON):
    """Best of two probabilities on the breakpoints of a concave function; nearest of ties."""
    low, high = clip
    if behavior.min() == 0:
        return behavior
    points = [0.0, 1.0, behavior[0]]
    points += [behavior[0] * r for r in (1 - low, 1 + high)]
    points += [1 - behavior[1] * r for r in (1 - low, 1 + high)]
    rows = [np.array([p, 1 - p]) for p in points if 0 <= p <= 1]

    def value(row):
        r = row / behavior
        return np.minimum(r, 1 + high) @ gain - np.maximum(r, 1 - low) @ loss

    best = max(map(value, rows))
    tied = [row for row in rows if value(row) >= best - 1e-12]
    return min(tied, key=lambda row: abs(row[0] - behavior[0]))


def row_credit(weights, advantages, turn):
    """Gain and loss [S, A] at a turn, summed over episodes."""
    parts = np.zeros((2, 3, 2))
    for row in np.flatnonzero(listed().turn_mask[:, turn]):
        place = (listed().states[row, turn], listed().actions[row, turn])
        amount = weights[row] * advantages[row, turn]
        parts[(0 if amount > 0 else 1, *place)] += abs(amount)
    return parts


def ratio_of(new, old, turn):
    """Ratio [M] of the actions of a turn; 1 where the episode has ended."""
    paths = listed()
    with np.errstate(invalid="ignore", divide="ignore"):
        ratios = np.nan_to_num(new / old, nan=1.0)
    return np.where(paths.turn_mask[:, turn],
                    ratios[turn, paths.states[:, turn], paths.actions[:, turn]], 1.0)  # fmt: skip


@pytest.fixture
def instance(draw):
    def make(seed):
        mdp, policy = draw(seed)
        weights = np.asarray(tabular.path_probabilities(mdp, policy, listed()))
        returns = np.asarray(tabular.path_rewards(mdp, listed())).sum(-1)
        return mdp, policy, weights, returns

    return make


@pytest.mark.parametrize("trace_decay", [0.0, 0.7, 1.0])
def test_value_advantages_by_loops(trace_decay, instance):
    mdp, _, _, _ = instance(FRESH)
    paths = listed()
    table = np.random.default_rng(FRESH).normal(size=(4, 3))
    found = tabular.value_advantages(mdp, paths, jnp.asarray(table), trace_decay)
    rewards = np.asarray(tabular.path_rewards(mdp, paths))
    for row in range(0, len(paths.states), 7):
        advantage = 0.0
        for turn in reversed(range(3)):
            if not paths.turn_mask[row, turn]:
                assert found[row, turn] == 0.0
                continue
            goes_on = turn < 2 and paths.turn_mask[row, turn + 1]
            following = table[turn + 1, paths.states[row, turn + 1]] if goes_on else 0.0
            error = rewards[row, turn] + following - table[turn, paths.states[row, turn]]
            advantage = error + trace_decay * advantage
            assert abs(found[row, turn] - advantage) < 1e-12, f"{FRESH=} {row=} {turn=}"


def test_value_advantages_average_to_the_advantages(instance):
    # With exact values their mean given (h, s, a) is A_h(s, a), whatever the trace decay.
    mdp, policy, weights, _ = instance(FRESH)
    state_values = tabular.values(mdp, policy).V
    for trace_decay in (0.0, 0.6, 1.0):
        found = tabular.value_advantages(mdp, listed(), state_values, trace_decay)
        credit = tabular.credit(listed(), jnp.asarray(weights), found, mdp.rewards.shape)
        exact = tabular.policy_gradient(mdp, policy)
        np.testing.assert_allclose(credit.gain - credit.loss, exact, rtol=0, atol=1e-13)


@pytest.mark.parametrize("seed", SEEDS)
def test_group_advantages_by_loops(seed, instance):
    mdp, policy, weights, returns = instance(seed)
    first = listed().states[:, 0]
    plain = tabular.group_advantages(mdp, policy, listed())
    scaled = tabular.group_advantages(mdp, policy, listed(), scale=True, epsilon=0.1)
    for state in range(3):
        here = first == state
        share = weights[here] / weights[here].sum()
        mean = share @ returns[here]
        deviation = np.sqrt(share @ (returns[here] - mean) ** 2)
        mask = listed().turn_mask[here]
        expected = np.where(mask, (returns[here] - mean)[:, None], 0.0)
        np.testing.assert_allclose(plain[here], expected, rtol=0, atol=1e-12, err_msg=f"{seed=}")
        np.testing.assert_allclose(scaled[here], expected / (deviation + 0.1), rtol=0, atol=1e-12)


def test_tasks_without_variance_get_nothing():
    mdp = tabular.TurnMDP(np.zeros((1, 2, 2, 2)), [[[0.7, 0.7], [0.0, 1.0]]], np.array([0.5, 0.5]))
    paths = tabular.all_paths(1, 2, 2, early_end=False)
    policy = np.full((1, 2, 2), 0.5)
    found = tabular.group_advantages(mdp, policy, paths, scale=True)
    np.testing.assert_allclose(found[:, 0], [0.0, 0.0, -1.0, 1.0], atol=1e-15)


@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e6])
def test_what_counts_as_no_variance_follows_the_unit_of_reward(unit, instance):
    # Task 0 always gets 0.3; what the others get differs, if little.
    mdp, policy, weights, _ = instance(FRESH)
    rewards = np.zeros(mdp.rewards.shape)
    rewards[0], rewards[0, 1:, 0] = 0.3, 0.3 + 1e-6
    mdp = tabular.TurnMDP(mdp.transitions, unit * rewards, mdp.start)
    found = np.asarray(tabular.group_advantages(mdp, policy, listed(), scale=True))[:, 0]
    first = listed().states[:, 0]
    squares = np.bincount(first, weights * found**2) / np.bincount(first, weights)
    np.testing.assert_allclose(squares, [0.0, 1.0, 1.0], atol=1e-5, err_msg=f"{FRESH=}")


@pytest.mark.parametrize("compound", [True, False])
@pytest.mark.parametrize("order", [(2, 1, 0), (0, 1, 2), (1, 2, 0)])
@pytest.mark.parametrize("seed", SEEDS)
def test_sequential_by_loops(seed, order, compound, instance):
    mdp, policy, weights, _ = instance(seed)
    advantages = np.asarray(tabular.group_advantages(mdp, policy, listed()))
    expected, carried = policy.copy(), np.ones(len(weights))
    for turn in order:
        parts = row_credit(weights, advantages * carried[:, None], turn)
        for state in range(3):
            expected[turn, state] = best_row(*parts[:, state], policy[turn, state])
        if compound:
            carried = carried * ratio_of(expected, policy, turn)
    found = sequential(policy, weights, advantages, np.array(order), compound=compound)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-11, err_msg=f"{seed=}")
    if not compound:
        at_once = tabular.simultaneous(policy, listed(), weights, advantages, *EPSILON)
        np.testing.assert_allclose(found, at_once, rtol=0, atol=1e-14)
    assert abs(found - policy).max() > 0.01, f"{seed=}"


def numpy_values(mdp, policy):
    following, rows = np.zeros(3), []
    for turn in reversed(range(3)):
        action_values = (
            np.asarray(mdp.rewards[turn]) + np.asarray(mdp.transitions[turn]) @ following
        )
        following = (policy[turn] * action_values).sum(-1)
        rows.append(action_values)
    return np.array(rows[::-1])


@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("order", [(2, 1, 0), (1, 0, 2)])
@pytest.mark.parametrize("seed", SEEDS)
def test_siblings_by_loops(seed, order, fresh, instance):
    mdp, policy, weights, _ = instance(seed)
    expected = policy.copy()
    for turn in order:
        action_values = numpy_values(mdp, expected if fresh else policy)[turn]
        for state in range(3):
            at = (listed().states[:, turn] == state) & listed().turn_mask[:, turn]
            here = weights[at].sum() * policy[turn, state]
            advantage = action_values[state] - policy[turn, state] @ action_values[state]
            gain, loss = here * np.maximum(advantage, 0), here * np.maximum(-advantage, 0)
            expected[turn, state] = best_row(gain, loss, policy[turn, state])
    found = siblings(mdp, policy, np.array(order), fresh=fresh)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-11, err_msg=f"{seed=}")


def test_siblings_see_what_later_turns_have_learnt():
    # Uniform continuations make branch 0 look better (0.5 against 0.45), improved ones branch 1.
    mdp, policy, _ = tabular.toy_reverse_order()
    order = np.array([1, 0])
    for fresh, expected in ((True, 0.9), (False, 0.5)):
        new = tabular.siblings(mdp, policy, order, 1.0, np.inf, fresh=fresh)
        assert float(tabular.performance(mdp, new)) == pytest.approx(expected, abs=1e-12)
    forward = tabular.siblings(mdp, policy, order[::-1], 1.0, np.inf)
    assert float(tabular.performance(mdp, forward)) == pytest.approx(0.5, abs=1e-12)


def test_siblings_of_hidden_states_are_weighed_as_the_trunks_meet_them():
    # Toy: the second turn's row is shared by both states, and the first turn has moved already. The
    # trunks met them at 0.4 and 0.6, so action 0 is right; where the first turn goes now, action 1.
    mdp, policy, contexts = tabular.toy_hidden_action()
    order = np.array([0, 1])
    found = tabular.siblings(mdp, policy, order, 1.0, np.inf, contexts)
    np.testing.assert_array_equal(found[1], [[1.0, 0.0], [1.0, 0.0]])


@pytest.mark.parametrize("seed", SEEDS)
def test_sequential_compound_is_monotone_in_every_order(seed, instance):
    # E_old[r M] of a turn is performance up to a constant (SeeUPO, Theorem 1), clipped or not.
    mdp, policy, weights, _ = instance(seed)
    advantages = tabular.group_advantages(mdp, policy, listed())
    for order in ([2, 1, 0], [0, 1, 2], [1, 0, 2]):
        found = sequential(policy, weights, advantages, np.array(order))
        rise = tabular.performance(mdp, found) - tabular.performance(mdp, policy)
        assert rise > 1e-6, f"{seed=} {order=}"


@functools.partial(jax.jit, static_argnames="compound")
def toy_update(policy, weights, advantages, order, low, high, contexts, *, compound=True):
    paths = tabular.all_paths(2, 2, 2, early_end=False)
    if not compound:  # all turns at once, which sequential updates without ratios equal
        return tabular.simultaneous(policy, paths, weights, advantages, low, high, contexts)
    return tabular.sequential(policy, paths, weights, advantages, order, low, high, contexts)


def test_toys():
    mdp, policy, contexts = tabular.toy_hidden_action()
    paths = tabular.all_paths(2, 2, 2, early_end=False)
    weights = tabular.path_probabilities(mdp, policy, paths)
    advantages = tabular.group_advantages(mdp, policy, paths)

    def performance(clip, order=None, compound=True):
        turns = np.array([1, 0] if order is None else order)
        new = toy_update(policy, weights, advantages, turns, *clip, contexts, compound=compound)
        return float(tabular.performance(mdp, new))

    greedy = (1.0, np.inf)
    assert performance(greedy, compound=False) == pytest.approx(0.0, abs=1e-14)
    assert performance((0.2, 0.2), compound=False) == pytest.approx(0.4992, abs=1e-12)
    for order in ([1, 0], [0, 1]):
        assert performance(greedy, order) == pytest.approx(1.0, abs=1e-12)
        assert performance(greedy, order, compound=False) == pytest.approx(0.0, abs=1e-14)
    mdp, policy, _ = tabular.toy_reverse_order()
    weights = tabular.path_probabilities(mdp, policy, paths)
    advantages = tabular.group_advantages(mdp, policy, paths)
    for order, expected in (([1, 0], 0.9), ([0, 1], 0.5)):
        seen = np.array([[0, 1], [0, 1]])
        new = toy_update(policy, weights, advantages, np.array(order), *greedy, seen)
        assert float(tabular.performance(mdp, new)) == pytest.approx(expected, abs=1e-12)


def test_actions_that_never_happen_stay_that_way(instance):
    mdp, policy, _, _ = instance(0)
    policy = policy.copy()
    policy[:, 0] = [0.0, 1.0]
    weights = tabular.path_probabilities(mdp, policy, listed())
    advantages = tabular.group_advantages(mdp, policy, listed())
    for order in ([2, 1, 0], [0, 1, 2]):
        found = np.asarray(sequential(policy, weights, advantages, np.array(order)))
        assert np.isfinite(found).all()
        np.testing.assert_array_equal(found[:, 0], policy[:, 0])
    np.testing.assert_array_equal(siblings(mdp, policy, np.array([2, 1, 0]))[:, 0], policy[:, 0])


def test_vmap_over_mdps(instance):
    drawn = [instance(seed) for seed in range(6)]
    stack = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(mdp for mdp, *_ in drawn))
    policies = jnp.stack([jnp.asarray(policy) for _, policy, *_ in drawn])
    order = tabular.reverse_order(3)
    found = jax.vmap(lambda m, p: siblings(m, p, order))(stack, policies)
    for row, (mdp, policy, *_) in enumerate(drawn):
        alone = siblings(mdp, policy, order)
        np.testing.assert_allclose(found[row], alone, rtol=0, atol=1e-14)


def test_ascent_follows_the_gradient():
    # f = -x^2 / 2: each step multiplies x by 1 - rate.
    found = tabular.ascend(lambda x: -0.5 * (x**2).sum(), jnp.array([1.0, -2.0]), 0.1, 3)
    np.testing.assert_allclose(found, 0.9**3 * np.array([1.0, -2.0]), atol=1e-15)
    np.testing.assert_array_equal(tabular.reverse_order(4), [3, 2, 1, 0])
