"""Measures: what they sum to, what they count, and that they agree with exact expectations.

Run: pytest tests/core/test_reductions.py
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rtpo_jax import core

turn_mean = jax.jit(core.turn_mean_weights, static_argnums=2)
trajectory_mean = jax.jit(core.trajectory_mean_weights, static_argnums=2)

# Rows 0 and 1 belong to trajectory 0, row 2 to trajectory 1, row 3 has no action token (all of it
# observation or truncated), row 4 is padding.
MASK = np.array([[1, 1, 1, 0], [1, 0, 0, 0], [0, 1, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0]], bool)
TURN_IDS = np.array([[0, 0, 1, -1], [2, -1, -1, -1], [-1, 0, 0, -1], [0, 0, -1, -1], [-1] * 4])
TRAJECTORY_IDS = np.array([0, 0, 1, 2, -1])
P = np.array([0.25, 0.25, 0.5, 0.75, 0.0], np.float32)
BUILDERS = {
    "token": core.token_mean_weights,
    "sequence": core.sequence_mean_weights,
    "turn": lambda mask, **kw: turn_mean(mask, TURN_IDS, 3, **kw),
    "trajectory": lambda mask, **kw: trajectory_mean(mask, TRAJECTORY_IDS, 4, **kw),
}
# tokens: 6. rows with tokens: 3. turns with tokens: 4. trajectories with tokens: 2 (4 and 2 tokens)
UNIFORM = {
    "token": [[1 / 6] * 3 + [0], [1 / 6, 0, 0, 0], [0, 1 / 6, 1 / 6, 0]],
    "sequence": [[1 / 9] * 3 + [0], [1 / 3, 0, 0, 0], [0, 1 / 6, 1 / 6, 0]],
    "turn": [[1 / 8, 1 / 8, 1 / 4, 0], [1 / 4, 0, 0, 0], [0, 1 / 8, 1 / 8, 0]],
    "trajectory": [[1 / 8] * 3 + [0], [1 / 8, 0, 0, 0], [0, 1 / 4, 1 / 4, 0]],
}
WEIGHTED = {
    "token": [[0.25] * 3 + [0], [0.25, 0, 0, 0], [0, 0.5, 0.5, 0]],
    "sequence": [[1 / 12] * 3 + [0], [0.25, 0, 0, 0], [0, 0.25, 0.25, 0]],
    "turn": [[0.125, 0.125, 0.25, 0], [0.25, 0, 0, 0], [0, 0.25, 0.25, 0]],
    "trajectory": [[1 / 16] * 3 + [0], [1 / 16, 0, 0, 0], [0, 0.25, 0.25, 0]],
}
# sum_n p_n T_n = .25*3 + .25*1 + .5*2; p over rows; p times turns 2, 1, 1; p over trajectories
TOTALS = {"token": 2.0, "sequence": 1.0, "turn": 1.25, "trajectory": 0.75}


@pytest.mark.parametrize("name", BUILDERS)
def test_uniform_measure_by_hand(name):
    weights = BUILDERS[name](MASK)
    np.testing.assert_allclose(weights, UNIFORM[name] + [[0] * 4] * 2, rtol=1e-6)
    np.testing.assert_allclose(weights.sum(), 1, rtol=1e-6)


@pytest.mark.parametrize("name", BUILDERS)
def test_row_weights_are_taken_as_they_are(name):
    """Their share on rows without action tokens (.75 here) is dropped, not redistributed."""
    weights = BUILDERS[name](MASK, row_weights=P)
    np.testing.assert_allclose(weights, WEIGHTED[name] + [[0] * 4] * 2, rtol=1e-6)
    np.testing.assert_allclose(weights.sum(), TOTALS[name], rtol=1e-6)
    tripled = BUILDERS[name](MASK, row_weights=3 * P)
    np.testing.assert_allclose(tripled, 3 * weights, rtol=1e-6)


@pytest.mark.parametrize("name", BUILDERS)
def test_a_batch_without_action_tokens_has_no_loss_and_no_gradient(name):
    with jax.debug_nans(True):
        for row_weights in (None, P):
            weights = BUILDERS[name](np.zeros_like(MASK), row_weights=row_weights)
            np.testing.assert_array_equal(weights, 0)
        value, gradient = jax.value_and_grad(core.weighted_sum)(jnp.ones(MASK.shape), weights)
    assert value == 0
    np.testing.assert_array_equal(gradient, 0)


@pytest.mark.parametrize("builder", [core.token_mean_weights, core.sequence_mean_weights])
def test_a_row_without_action_tokens_does_not_count(builder):
    """Loss and gradient are those of the normal row alone, also with NaN on the empty row."""
    values, mask = (
        jnp.array([[3.0, 5.0], [jnp.nan, jnp.nan]]),
        jnp.array([[True, True], [False] * 2]),
    )
    loss, gradient = jax.value_and_grad(core.weighted_sum)(values, builder(mask))
    alone = jax.value_and_grad(core.weighted_sum)(values[:1], builder(mask[:1]))
    assert loss == alone[0] == 4
    np.testing.assert_array_equal(gradient, jnp.concatenate([alone[1], jnp.zeros((1, 2))]))


def test_filtered_tokens_leave_the_divisor():
    """Two rows of four tokens, one row filtered, two tool tokens in the other: divisor 2, not 8."""
    mask = jnp.array([[False] * 4, [True, False, False, True]])
    weights = core.token_mean_weights(mask)
    np.testing.assert_array_equal(weights[mask], 0.5)
    np.testing.assert_array_equal(weights[~mask], 0)


def test_parts_of_a_batch_add_up_to_the_whole():
    """Token losses [2] and [1, 1, 1] on two devices or micro-batches: 5/4.

    The mean of the parts' means would be 1.5 and the sum of them 3. The same weights give metrics:
    one token of value 3 here and three of value 1 there are 1.5, not 2.
    """
    mask = jnp.array([[True, False, False], [True, True, True]])
    weights = core.token_mean_weights(mask)
    for first, expected in ((2.0, 1.25), (3.0, 1.5)):
        values = jnp.array([[first, 99, 99], [1, 1, 1]])
        parts = sum(core.weighted_sum(values[i : i + 1], weights[i : i + 1]) for i in (0, 1))
        assert parts == core.weighted_sum(values, weights) == expected


@pytest.mark.parametrize("junk", [0.0, 10.0, jnp.nan, jnp.inf])
def test_values_of_weight_zero_never_arrive(junk):
    weights = jnp.array([0.5, 0.5, 0, 0])
    value, gradients = jax.value_and_grad(core.weighted_sum, argnums=(0, 1))(
        jnp.array([1.0, 3.0, junk, junk]), weights
    )
    assert value == 2
    np.testing.assert_array_equal(gradients[0], weights)
    np.testing.assert_array_equal(gradients[1], [1, 3, 0, 0])


def test_nan_with_weight_stays_visible():
    assert jnp.isnan(core.weighted_sum(jnp.array([jnp.nan, 1.0]), jnp.array([1e-30, 1.0])))
    assert jnp.isnan(core.weighted_sum(jnp.array([1.0, 1.0]), jnp.array([jnp.nan, 1.0])))


def test_weighted_sum_is_a_dot_product():
    rng = np.random.default_rng(0)
    values, weights = rng.normal(size=(2, 3, 4, 5)).astype(np.float32)
    np.testing.assert_allclose(
        core.weighted_sum(values, weights), (values * weights).sum(), rtol=1e-4
    )


def test_spreading_a_trajectory_over_rows_changes_nothing():
    """One row with two turns, or one row a turn: same weight for every token."""
    whole = core.sequence_mean_weights(
        jnp.array([[True, True, True, True], [True, True, False, False]])
    )
    split = core.trajectory_mean_weights(
        jnp.array([[True, True, True], [True, False, False], [True, True, False]]),
        jnp.array([0, 0, 1]),
        2,
    )
    np.testing.assert_array_equal(whole[0], [split[0, 0]] * 3 + [split[1, 0]])
    np.testing.assert_array_equal(whole[1, :2], split[2, :2])


def enumerate_process(rng, num_turns=3, num_states=2, num_actions=2):
    """All state-action sequences of a small random process that may stop after any turn.

    Returns tables [H, S, A] (behaviour, ratio, advantage), exact occupancy [H, S], and per
    sequence its probability, visited (s, a) and length.
    """
    behavior = rng.dirichlet(np.ones(num_actions), (num_turns, num_states))
    moves = rng.dirichlet(np.ones(num_states), (num_turns, num_states, num_actions))
    stop = rng.uniform(0.1, 0.6, (num_turns, num_states, num_actions))
    stop[-1] = 1
    start = rng.dirichlet(np.ones(num_states))
    occupancy = np.zeros((num_turns, num_states))
    paths, finished = [(start[s], [s], []) for s in range(num_states)], []
    for h in range(num_turns):
        grown = []
        for p, states, actions in paths:
            s = states[-1]
            occupancy[h, s] += p
            for a in range(num_actions):
                q = p * behavior[h, s, a]
                finished.append((q * stop[h, s, a], states, [*actions, a]))
                for t in range(num_states):
                    step = q * (1 - stop[h, s, a]) * moves[h, s, a, t]
                    grown.append((step, [*states, t], [*actions, a]))
        paths = grown
    return behavior, occupancy, [f for f in finished if f[0] > 0]


def test_sampled_and_exact_objectives_are_one_sum():
    """occupancy x behaviour over tables equals trajectory probabilities over enumerated rows.

    The exact expectation of the clipped surrogate, summed over turns, comes out of `weighted_sum`
    in both worlds. A mean inside each trajectory is another objective, since lengths differ.
    """
    rng = np.random.default_rng(5)
    behavior, occupancy, sequences = enumerate_process(rng)
    ratio, advantage = rng.uniform(0.3, 2, behavior.shape), rng.normal(size=behavior.shape)
    with jax.enable_x64(True):
        table = core.clipped_surrogate(ratio, advantage, 0.2, 0.2)
        exact = core.weighted_sum(table, jnp.asarray(occupancy[:, :, None] * behavior))
        rows = np.zeros((len(sequences), 3))
        mask, turn_ids = np.zeros(rows.shape, bool), np.full(rows.shape, -1)
        for n, (_, states, actions) in enumerate(sequences):
            for h, (s, a) in enumerate(zip(states, actions, strict=True)):
                rows[n, h], mask[n, h], turn_ids[n, h] = table[h, s, a], True, h
        p = np.array([sequence[0] for sequence in sequences])
        by_turn = turn_mean(mask, turn_ids, 3, row_weights=p)
        np.testing.assert_allclose(core.weighted_sum(rows, by_turn), exact, rtol=1e-12)
        np.testing.assert_allclose(by_turn.sum(), occupancy.sum(), rtol=1e-12)
        # one token a turn here, so the token measure is the same one
        by_token = core.token_mean_weights(mask, row_weights=p)
        np.testing.assert_allclose(by_token, by_turn, rtol=1e-12)
        by_trajectory = core.sequence_mean_weights(mask, row_weights=p)
        np.testing.assert_allclose(by_trajectory.sum(), 1, rtol=1e-12)
        assert abs(core.weighted_sum(rows, by_trajectory) - exact) > 0.01


ONES = jnp.ones((2, 3), bool)


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda: core.weighted_sum(jnp.ones(2), jnp.ones((2, 1))), "weights"),
        (lambda: core.weighted_sum(jnp.ones(2), 1j * jnp.ones(2)), "weights has dtype complex64"),
        (lambda: core.token_mean_weights(jnp.ones((2, 3))), "action_mask has dtype float32"),
        (lambda: core.token_mean_weights(ONES[0]), "action_mask has shape"),
        (lambda: core.token_mean_weights(ONES, row_weights=jnp.ones(3)), "row_weights"),
        (lambda: core.turn_mean_weights(ONES, jnp.full((2, 3), 2), 2), "turn_ids spans 2..2"),
        (lambda: core.turn_mean_weights(ONES, jnp.zeros((2, 2), int), 2), "turn_ids"),
        (lambda: core.trajectory_mean_weights(ONES, jnp.zeros(3, int), 1), "trajectory_ids"),
        (lambda: core.trajectory_mean_weights(ONES, jnp.zeros(2, int), 0), "num_trajectories=0"),
    ],
)
def test_bad_input_is_named(call, names):
    with pytest.raises(ValueError, match=names):
        call()
