"""Named instances: closed forms of the lock, numbers of both toys, promises of random draws."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tabular

# Turns, success probability, turn, Var V, E[A^2], E[Var(R | s, a)]; published to six decimals.
LOCK_VARIANCES = [
    (4, 0.6, 0, 0.0, 0.011197, 0.101606),
    (4, 0.6, 1, 0.011197, 0.018662, 0.082944),
    (4, 0.6, 2, 0.029860, 0.031104, 0.051840),
    (4, 0.6, 3, 0.060964, 0.051840, 0.0),
    (6, 0.7, 0, 0.0, 0.005932, 0.097876),
    (6, 0.7, 3, 0.026512, 0.017294, 0.060001),
    (6, 0.7, 5, 0.068513, 0.035295, 0.0),
    (2, 0.1, 1, 0.000900, 0.009000, 0.0),
]


def _variances(mdp, policy, turn):
    """Var V, E[A^2] and E[Var(R | s, a)] at a turn, for a return that is 0 or 1."""
    state_values, action_values = tabular.values(mdp, policy)
    here = tabular.occupancy(mdp, policy)[turn]
    pairs = here[:, None] * policy[turn]
    mean = (here * state_values[turn]).sum()
    # With a return R in {0, 1}, Var(R | s, a) = Q (1 - Q).
    noise = (pairs * action_values[turn] * (1.0 - action_values[turn])).sum()
    spread = (here * (state_values[turn] - mean) ** 2).sum()
    return spread, (pairs * tabular.advantages(mdp, policy)[turn] ** 2).sum(), noise


@pytest.mark.parametrize(("turns", "p", "turn", "var_v", "var_a", "noise"), LOCK_VARIANCES)
def test_lock_variances_match_the_published_table(turns, p, turn, var_v, var_a, noise):
    mdp = tabular.lock(turns)
    found = _variances(mdp, tabular.lock_policy(mdp, p), turn)
    np.testing.assert_allclose(found, [var_v, var_a, noise], rtol=0, atol=5.1e-7)


@pytest.mark.parametrize(("turns", "p", "num_actions"), [(4, 0.6, 2), (6, 0.7, 3), (2, 0.1, 5)])
def test_lock_matches_its_closed_forms_at_every_turn(turns, p, num_actions):
    mdp = tabular.lock(turns, num_actions)
    policy = tabular.lock_policy(mdp, p)
    state_values = tabular.values(mdp, policy).V
    np.testing.assert_allclose(state_values[:, 0], [*(p ** (turns - np.arange(turns))), 0.0])
    np.testing.assert_array_equal(state_values[:, 1], 0.0)
    assert tabular.optimal_values(mdp)[0, 0] == 1.0
    for h in range(turns):
        # Alive at turn h with probability p^h and V = p^(H-h) there; A(right) = p^(H-h-1) (1-p),
        # A(wrong) = -p^(H-h); Q(right) = p^(H-h-1).
        expected = [
            p ** (2 * turns - h) * (1 - p**h),
            p ** (2 * turns - h - 1) * (1 - p),
            p**turns * (1 - p ** (turns - h - 1)),
        ]
        found = _variances(mdp, policy, h)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-15)
        assert sum(found) == pytest.approx(p**turns * (1 - p**turns), abs=1e-15)


def test_lock_dynamics():
    mdp = tabular.lock(2, 3)
    policy = tabular.lock_policy(mdp, 0.5)
    np.testing.assert_array_equal(mdp.start, [1, 0])
    np.testing.assert_allclose(policy[1, 1], [0.5, 0.25, 0.25])
    np.testing.assert_allclose(tabular.occupancy(mdp, policy), [[1, 0], [0.5, 0.5]])
    wrong_then_right = np.zeros((2, 2, 3))
    wrong_then_right[0, :, 2] = wrong_then_right[1, :, 0] = 1.0
    assert tabular.performance(mdp, wrong_then_right) == 0.0


def _greedy(action_values):
    return jax.nn.one_hot(action_values.argmax(-1), 2, dtype=jnp.float64)


def test_reverse_order_toy_numbers():
    mdp, policy, contexts = tabular.toy_reverse_order()
    np.testing.assert_array_equal(contexts, [[0, 1], [0, 1]])
    state_values, action_values = tabular.values(mdp, policy)
    np.testing.assert_allclose(state_values[1], [0.5, 0.45], rtol=1e-15)
    np.testing.assert_allclose(tabular.performance(mdp, policy), 0.475, rtol=1e-15)
    # Forward: greedy first turn on today's values, then the second turn learns only where it goes.
    first = policy.at[0].set(_greedy(action_values[0]))
    visited = tabular.occupancy(mdp, first)[1] > 0
    np.testing.assert_array_equal(visited, [True, False])
    second = jnp.where(visited[:, None], _greedy(tabular.values(mdp, first).Q[1]), first[1])
    assert tabular.performance(mdp, first.at[1].set(second)) == 0.5
    # Reverse: greedy last turn, then greedy first turn on the new values.
    last = policy.at[1].set(_greedy(action_values[1]))
    both = last.at[0].set(_greedy(tabular.values(mdp, last).Q[0]))
    assert tabular.performance(mdp, both) == 0.9
    assert tabular.optimal_values(mdp)[0, 0] == 0.9


def test_hidden_action_toy_numbers():
    mdp, policy, contexts = tabular.toy_hidden_action()
    np.testing.assert_array_equal(contexts, [[0, 0], [0, 0]])
    np.testing.assert_array_equal(policy[1, 0], policy[1, 1])
    assert tabular.performance(mdp, policy) == pytest.approx(0.48, abs=1e-15)

    def blind(first, second):
        """Performance when action 0 has these probabilities, whatever the second turn's state."""
        rows = jnp.array([[first, 1.0 - first], [second, 1.0 - second]])
        return float(tabular.performance(mdp, jnp.stack([rows, rows], axis=1)))

    def best_first(policy):
        return int(tabular.values(mdp, policy).Q[0, 0].argmax())

    # What the second turn can tell apart is the action value averaged over the states it confuses.
    action_values = tabular.values(mdp, policy).Q
    seen = tabular.occupancy(mdp, policy)[1] @ action_values[1]
    np.testing.assert_allclose(seen, [0.6, 0.4], rtol=1e-15)
    assert (best_first(policy), int(seen.argmax())) == (0, 0)
    assert blind(1.0, 1.0) == 0.0
    # A step clipped at ratio 1.2 takes both to 0.48: 2 * 0.48 * 0.52.
    assert blind(0.4 * 1.2, 0.4 * 1.2) == pytest.approx(0.4992, abs=1e-15)
    # One after the other: the second turn goes to action 0, then the first turn sees that.
    updated = policy.at[1].set(jnp.array([[1.0, 0.0], [1.0, 0.0]]))
    assert best_first(updated) == 1
    assert blind(0.0, 1.0) == 1.0


def test_random_mdps_are_valid_reproducible_and_different():
    def draw(key):
        return tabular.random_mdp(key, 3, 4, 2, branching=2, termination=0.5)

    keys = jax.random.split(jax.random.key(11), 16)
    stacked = jax.jit(jax.vmap(draw))(keys)
    for key, *leaves in zip(keys, *jax.tree.leaves(stacked), strict=True):
        # Through the checked constructor, and against a draw without jit and vmap.
        checked, alone = tabular.TurnMDP(*leaves), draw(key)
        for mapped, direct in zip(jax.tree.leaves(checked), jax.tree.leaves(alone), strict=True):
            np.testing.assert_allclose(mapped, direct, rtol=1e-14)
    assert len(np.unique(stacked.start)) == 64
    assert len(np.unique(stacked.rewards)) == stacked.rewards.size
    assert (stacked.rewards >= 0).all() and (stacked.rewards < 1).all()
    assert stacked.rewards.dtype == jnp.float64


def test_branching_and_termination_of_random_mdps():
    mdp = tabular.random_mdp(jax.random.key(2), 20, 10, 5, branching=3, termination=0.5)
    np.testing.assert_array_equal((mdp.transitions > 0).sum(-1), 3)
    deficit = 1.0 - mdp.transitions.sum(-1)
    assert deficit.min() >= 0 and deficit.max() <= 0.5
    # Uniform on [0, 1/2], 1000 draws: mean 1/4, standard error 0.1443 / sqrt(1000) = 0.0046.
    assert deficit.mean() == pytest.approx(0.25, abs=5 * 0.0046)
    # Ends say nothing about rewards: a correlation of 1000 independent pairs has error 0.032.
    assert abs(np.corrcoef(deficit.ravel(), mdp.rewards.ravel())[0, 1]) < 5 * 0.032
    # Each state is a successor of 3/10 of the rows: standard error sqrt(.21 / 1000) = 0.0145.
    np.testing.assert_allclose((mdp.transitions > 0).mean((0, 1, 2)), 0.3, atol=5 * 0.0145)
    full = tabular.random_mdp(jax.random.key(2), 20, 10, 5)
    np.testing.assert_allclose(full.transitions.sum(-1), 1.0, atol=1e-14)
    assert (full.transitions > 0).all()
    # A component of a flat Dirichlet on 10 states has variance 9 / (100 * 11) = 0.00818.
    assert full.transitions.var() == pytest.approx(0.00818, rel=0.1)
    single = tabular.random_mdp(jax.random.key(2), 3, 1, 1)
    np.testing.assert_array_equal(single.transitions, 1.0)


def test_terminal_reward_only():
    mdp = tabular.random_mdp(jax.random.key(5), 3, 4, 2, terminal_reward_only=True)
    np.testing.assert_array_equal(mdp.rewards[:-1], 0.0)
    assert (mdp.rewards[-1] > 0).all()


def test_random_policies_follow_the_concentration():
    mdp = tabular.random_mdp(jax.random.key(0), 20, 10, 4)
    key = jax.random.key(1)
    for concentration in (0.1, 1.0, 100.0):
        policy = tabular.check_policy(mdp, tabular.random_policy(key, mdp, concentration))
        # Variance of a Dirichlet(c, c, c, c) component: (1/4)(3/4) / (4c + 1).
        assert policy.var() == pytest.approx(0.1875 / (4 * concentration + 1), rel=0.15)
        np.testing.assert_allclose(policy.mean((0, 1)), 0.25, atol=0.15)
    np.testing.assert_array_equal(tabular.uniform_policy(mdp), np.full((20, 10, 4), 0.25))


_MDP = (2, 3, 2)
REFUSED = [
    (lambda key, _: tabular.random_mdp(key, 0, 3, 2), "num_turns is 0: choose an integer from 1"),
    (lambda key, _: tabular.random_mdp(key, 2, 2.5, 2), "num_states is 2.5: "),
    (lambda key, _: tabular.random_mdp(key, 2, 3, -1), "num_actions is -1: "),
    (
        lambda key, _: tabular.random_mdp(key, *_MDP, branching=4),
        "branching is 4: choose an integer from 1 to 3",
    ),
    (lambda key, _: tabular.random_mdp(key, *_MDP, branching=0), "branching is 0: "),
    (
        lambda key, _: tabular.random_mdp(key, *_MDP, termination=1.5),
        "termination is 1.5: choose a probability from 0 to 1",
    ),
    (lambda key, _: tabular.random_mdp(key, *_MDP, termination=float("nan")), "termination is nan"),
    (
        lambda key, mdp: tabular.random_policy(key, mdp, 0.0),
        "concentration is 0.0: give a positive",
    ),
    (lambda *_: tabular.lock(0), "num_turns is 0: choose an integer from 1 upwards"),
    (lambda *_: tabular.lock(2, 1), "num_actions is 1: choose an integer from 2 upwards"),
    (lambda _, mdp: tabular.lock_policy(mdp, -0.1), "success_probability is -0.1: "),
    (
        lambda key, _: tabular.lock_policy(tabular.random_mdp(key, 2, 3, 1), 0.5),
        "mdp.num_actions is 1: ",
    ),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call(jax.random.key(0), tabular.lock(2))


def test_lock_policy_maps_over_probabilities():
    mdp = tabular.lock(3)
    chances = jnp.array([0.2, 0.5, 0.9])
    found = jax.vmap(lambda p: tabular.performance(mdp, tabular.lock_policy(mdp, p)))(chances)
    np.testing.assert_allclose(found, chances**3, rtol=1e-14)
