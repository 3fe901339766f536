"""Exact surrogates against sums over episodes, and their maximiser against linear programmes."""

import functools
import itertools
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

import tabular

FRESH = int(os.environ["FRESH_SEED"])
SEEDS = [0, 1, FRESH]
CLIPS = [(0.2, 0.2), (0.2, 0.28), (0.0, 0.5), (1.0, np.inf)]
maximise = jax.jit(tabular.maximise_surrogate)
value_of = jax.jit(tabular.expected_surrogate)


@functools.cache
def listed(num_turns=3, num_states=3, num_actions=2):
    return tabular.all_paths(num_turns, num_states, num_actions, early_end=True)


def best_row(gain, loss, behavior, low, high):
    """Value of the best row by linear programming: probabilities p, u <= min(r, top), v >= max."""
    alive = np.flatnonzero(behavior > 0)
    n = alive.size
    b, eye, none = behavior[alive], np.eye(n), np.zeros((n, n))
    objective = np.concatenate([np.zeros(n), -gain[alive], loss[alive]])
    limits = np.block([[-eye / b[:, None], eye, none], [eye / b[:, None], none, -eye]])
    found = optimize.linprog(
        objective,
        A_ub=limits,
        b_ub=np.zeros(2 * n),
        A_eq=np.concatenate([np.ones(n), np.zeros(2 * n)])[None],
        b_eq=[1.0],
        bounds=[(0, 1)] * n + [(None, 1 + high)] * n + [(1 - low, None)] * n,
    )
    assert found.status == 0
    return -found.fun


def random_credit(rng, shape, zeros=0.3):
    """Gain, loss and behaviour with zeros in all of them."""
    behavior = rng.dirichlet(np.ones(shape[2]), size=shape[:2]) * (rng.random(shape) > 0.2)
    behavior[..., 0] += 0.05
    behavior /= behavior.sum(-1, keepdims=True)
    parts = rng.exponential(size=(2, *shape)) * (rng.random((2, *shape)) > zeros) * behavior
    return behavior, tabular.Credit(*map(jnp.asarray, parts))


@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("seed", SEEDS)
def test_maximiser_reaches_the_linear_programme(seed, clip):
    rng = np.random.default_rng(seed)
    behavior, found = random_credit(rng, (2, 4, 4))
    policy = np.asarray(maximise(behavior, found, *clip))
    np.testing.assert_allclose(policy.sum(-1), 1.0, atol=1e-14)
    assert (policy >= 0).all() and (policy[behavior == 0] == 0).all()
    high = 1e6 if np.isinf(clip[1]) else clip[1]
    for h, s in np.ndindex(2, 4):
        best = best_row(found.gain[h, s], found.loss[h, s], behavior[h, s], clip[0], high)
        ratios = np.divide(policy[h, s], behavior[h, s], where=behavior[h, s] > 0,
                           out=np.ones(4))  # fmt: skip
        up = (np.minimum(ratios, 1 + high) * found.gain[h, s])[behavior[h, s] > 0].sum()
        down = (np.maximum(ratios, 1 - clip[0]) * found.loss[h, s])[behavior[h, s] > 0].sum()
        assert abs(up - down - best) < 1e-9, f"{seed=} {clip=} {h=} {s=}"


def test_ties_go_to_the_smallest_divergence():
    # Equal slopes on purpose: among all rows of a fine grid with the best value, none is closer.
    rng = np.random.default_rng(FRESH)
    grid = np.array([(i, j, 40 - i - j) for i, j in itertools.product(range(41), repeat=2)
                     if i + j <= 40]) / 40  # fmt: skip
    for trial in range(30):
        behavior = rng.integers(1, 6, size=3).astype(float)
        behavior /= behavior.sum()
        slopes = rng.integers(0, 2, size=(2, 3)).astype(float)
        low, high = rng.choice([0.0, 0.25, 0.5], size=2)
        found = tabular.Credit(*(jnp.asarray(part * behavior)[None, None] for part in slopes))
        row = np.asarray(maximise(behavior[None, None], found, low, high))[0, 0]
        ratios = grid / behavior
        values = (np.minimum(ratios, 1 + high) * slopes[0] * behavior).sum(-1)
        values -= (np.maximum(ratios, 1 - low) * slopes[1] * behavior).sum(-1)
        with np.errstate(divide="ignore", invalid="ignore"):
            distance = np.nansum(grid * np.log(ratios), -1)
        own = float(value_of(row[None, None], behavior[None, None], found, low, high))
        message = f"{FRESH=} {trial=}"
        assert own >= values.max() - 1e-12, message
        tied = values >= own - 1e-12
        if tied.any():
            assert (row * np.log(np.where(row > 0, row / behavior, 1))).sum() <= (
                distance[tied].min() + 1e-12
            ), message


def test_two_actions_by_hand():
    behavior = np.array([[[0.4, 0.6]]])
    good = tabular.Credit(jnp.array([[[0.4, 0.0]]]), jnp.array([[[0.0, 0.6]]]))
    # Action 0 has slope 1 up to ratio 1.2, action 1 slope -1 down to ratio 0.8: 0.48 and then the
    # second action is still above its bound of 0.48.
    np.testing.assert_allclose(maximise(behavior, good, 0.2, 0.2), [[[0.52, 0.48]]], atol=1e-15)
    np.testing.assert_allclose(maximise(behavior, good, 1.0, np.inf), [[[1.0, 0.0]]], atol=1e-15)
    only_gain = good._replace(loss=jnp.zeros((1, 1, 2)))
    expected = [[[0.48, 0.52]]]
    np.testing.assert_allclose(maximise(behavior, only_gain, 0.2, 0.2), expected, atol=1e-15)
    nothing = tabular.Credit(jnp.zeros((1, 1, 2)), jnp.zeros((1, 1, 2)))
    np.testing.assert_allclose(maximise(behavior, nothing, 0.2, 0.2), behavior, atol=1e-15)


@pytest.mark.parametrize("clip", CLIPS[:3])
@pytest.mark.parametrize("seed", SEEDS)
def test_surrogate_is_the_sum_over_episodes(seed, clip, draw):
    mdp, behavior = draw(seed)
    _, policy = draw(100 + seed)
    rng = np.random.default_rng(seed)
    paths = listed()
    weights = np.asarray(tabular.path_probabilities(mdp, behavior, paths))
    advantages = rng.normal(size=paths.states.shape)
    found = tabular.credit(paths, jnp.asarray(weights), jnp.asarray(advantages), mdp.rewards.shape)
    expected = 0.0
    for row in np.flatnonzero(weights):
        for turn in np.flatnonzero(paths.turn_mask[row]):
            place = (turn, paths.states[row, turn], paths.actions[row, turn])
            ratio, advantage = policy[place] / behavior[place], advantages[row, turn]
            clipped = np.clip(ratio, 1 - clip[0], 1 + clip[1])
            expected += weights[row] * min(ratio * advantage, clipped * advantage)
    value = value_of(policy, behavior, found, *clip)
    assert abs(value - expected) < 1e-12, f"{seed=}"


@pytest.mark.parametrize("seed", SEEDS)
def test_credit_of_a_table_is_the_credit_of_its_entries_along_paths(seed, draw):
    mdp, behavior = draw(seed)
    table = jnp.asarray(np.random.default_rng(seed).normal(size=mdp.rewards.shape))
    weights = tabular.path_probabilities(mdp, behavior, listed())
    along = tabular.along(table, listed())
    one = tabular.credit(listed(), weights, along, mdp.rewards.shape)
    other = tabular.mean_credit(mdp, behavior, table)
    for a, b in zip(one, other, strict=True):
        assert (np.asarray(a) >= 0).all() and abs(a).max() > 1e-3, f"{seed=}"
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-14, err_msg=f"{seed=}")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_policy_that_sees_contexts_maximises_their_sum(seed):
    rng = np.random.default_rng(seed)
    shape = (2, 4, 3)
    contexts = np.array([[0, 0, 1, 2], [5, 3, 3, 3]])
    rows = rng.dirichlet(np.ones(3), size=(2, 6))
    behavior = rows[np.arange(2)[:, None], contexts]
    parts = rng.exponential(size=(2, *shape)) * behavior
    found = tabular.Credit(*map(jnp.asarray, parts))
    policy = np.asarray(maximise(behavior, tabular.merge_contexts(found, contexts), 0.2, 0.2))
    for h, s in np.ndindex(2, 4):
        members = contexts[h] == contexts[h, s]
        gain, loss = (part[h, members].sum(0) for part in parts)
        np.testing.assert_allclose(policy[h, members], policy[h, s][None].repeat(members.sum(), 0))
        best = best_row(gain, loss, behavior[h, s], 0.2, 0.2)
        ratios = policy[h, s] / behavior[h, s]
        own = np.minimum(ratios, 1.2) @ gain - np.maximum(ratios, 0.8) @ loss
        assert abs(own - best) < 1e-9, f"{seed=} {h=} {s=}"


def test_unvisited_states_keep_their_row(draw):
    mdp, behavior = draw(1)
    start = np.zeros(3)
    start[0] = 1.0
    mdp = tabular.TurnMDP(mdp.transitions, mdp.rewards, start)
    found = tabular.mean_credit(mdp, behavior, tabular.advantages(mdp, behavior))
    policy = maximise(behavior, found, 0.2, 0.2)
    np.testing.assert_allclose(policy[0, 1:], behavior[0, 1:], atol=1e-15)
    assert abs(policy[0, 0] - behavior[0, 0]).max() > 1e-3


def test_gradient_of_the_surrogate_at_the_behavior_is_the_policy_gradient(draw):
    mdp, behavior = draw(FRESH)
    logits = jnp.log(behavior)
    found = tabular.mean_credit(mdp, behavior, tabular.advantages(mdp, behavior))

    def surrogate(logits):
        return tabular.expected_surrogate(jax.nn.softmax(logits), behavior, found, 0.2, 0.2)

    expected = tabular.policy_gradient(mdp, behavior)
    np.testing.assert_allclose(jax.grad(surrogate)(logits), expected, rtol=0, atol=1e-13)


def test_vmap_changes_nothing():
    rng = np.random.default_rng(FRESH)
    drawn = [random_credit(rng, (2, 4, 4)) for _ in range(20)]
    behaviors = jnp.stack([behavior for behavior, _ in drawn])
    found = tabular.Credit(*(jnp.stack(part) for part in zip(*(c for _, c in drawn), strict=True)))
    mapped = jax.vmap(lambda b, c: tabular.maximise_surrogate(b, c, 0.2, 0.3))(behaviors, found)
    for row, (behavior, one) in enumerate(drawn):
        alone = maximise(behavior, one, 0.2, 0.3)
        np.testing.assert_allclose(mapped[row], alone, rtol=0, atol=1e-14, err_msg=f"{FRESH=}")


@pytest.mark.parametrize("scale", [1e-100, 1e-12, 1e12, 1e100])
def test_units_of_reward_change_no_maximiser(scale):
    behavior, found = random_credit(np.random.default_rng(FRESH), (2, 4, 4))
    scaled = tabular.Credit(*(part * scale for part in found))
    for clip in CLIPS:
        expected = maximise(behavior, found, *clip)
        np.testing.assert_allclose(maximise(behavior, scaled, *clip), expected, atol=1e-9)


@pytest.mark.parametrize("clip", [(-0.1, 0.2), (1.5, 0.2), (0.2, -0.1)])
def test_bounds_that_no_probability_can_meet_are_refused(clip):
    behavior, found = random_credit(np.random.default_rng(FRESH), (2, 4, 4))
    with pytest.raises(ValueError, match="clip_(low|high) is"):
        tabular.maximise_surrogate(behavior, found, *clip)
