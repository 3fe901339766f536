"""Methods as values: schedules, advantages and weights on hand-made episodes."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rtpo_jax.algorithms import GRPO, RTPO, Batch, Policy, Rows, Scores, Stage
from rtpo_jax.models import SymbolTokenizer
from rtpo_jax.rollouts import Episode, EpisodeBatch, SymbolTemplate, Turn
from rtpo_jax.rollouts.packing import training_rows


def episode(lengths, reward, group=0, boundary=-1):
    """Turns of the given action lengths; the reward comes at the end."""
    turns = [
        Turn(None, (9,) * 2, (5,) * n, np.full(n, -1.0, np.float32), "", 0.0, 0) for n in lengths
    ]
    turns[-1] = dataclasses.replace(turns[-1], reward=reward)
    return Episode(None, group, "", None, tuple(turns), True, boundary)


class FixedEngine:
    """Returns prepared trunks and siblings; packing is the real one."""

    num_turns = 3

    def __init__(self, trunks, siblings=(), discount=1.0, scores=None):
        self.trunks = EpisodeBatch(tuple(trunks), self.num_turns)
        self.siblings = siblings
        self.discount, self.scores = discount, scores
        self.asked = []

    def rollout(self, policy, tasks, copies, key):
        del policy, tasks, key
        self.asked.append(("rollout", copies))
        return self.trunks

    def continue_from(self, policy, trunks, turn, copies, key, *, include_trunks=False):
        del trunks, key
        self.asked.append(("fork", turn, copies, policy.version))
        self.included = include_trunks
        return EpisodeBatch(tuple(self.siblings), self.num_turns, self.discount)

    def score(self, policy, rows):
        del policy
        scores = np.where(rows.action_mask, self.scores, 0).astype(np.float32)
        return Scores(scores, np.zeros_like(scores))

    def rows(self, trajectories, context="recorded", turns=None):
        template = SymbolTemplate(SymbolTokenizer("x"))
        return training_rows(
            trajectories, template, context, turns, length_buckets=(16,), action_buckets=(8,)
        )


def batch_of(method, engine, stage=None, version=0):
    policy = Policy(None, version)
    trunks = method.collect(engine, policy, (), jax.random.key(0))
    stage = method.stages(engine.num_turns, jax.random.key(0))[0] if stage is None else stage
    return method.batch(engine, policy, trunks, stage, None, None)


def test_grpo_gives_every_token_of_a_trajectory_its_normalised_advantage():
    """Returns 1, 0, 0, 1: mean 1/2, sample deviation 0.57735, so +-0.866025 (epsilon 1e-6)."""
    engine = FixedEngine([episode([2, 1], r) for r in (1, 0, 0, 1)])
    batch = batch_of(GRPO(group_size=4), engine)
    owners = np.asarray(batch.rows.trajectory_ids)
    signs = np.array([1, -1, -1, 1])[owners] * (owners >= 0)
    expected = 0.866025 * signs[:, None] * np.asarray(batch.rows.action_mask)
    np.testing.assert_allclose(batch.advantages, expected, atol=2e-6)
    plain = batch_of(GRPO(group_size=4, scale=None), engine)
    np.testing.assert_allclose(plain.advantages, np.sign(expected) * 0.5, atol=1e-6)


def test_grpo_weighs_trajectories_alike_however_long_or_many_turned():
    """Token mean inside each trajectory: 3 tokens in two rows, 1 token in one row."""
    batch = batch_of(GRPO(group_size=2), FixedEngine([episode([2, 1], 1), episode([1], 0)]))
    weights = np.asarray(batch.weights)
    np.testing.assert_allclose(weights[0, :2], 1 / 6)
    np.testing.assert_allclose(weights[1, :1], 1 / 6)
    np.testing.assert_allclose(weights[2, :1], 1 / 2)
    np.testing.assert_allclose(weights.sum(), 1.0)


def test_groups_are_compared_inside_a_task_only():
    episodes = [episode([1], r, group=g) for g, r in ((0, 1), (0, 1), (1, 0), (1, 1))]
    batch = batch_of(GRPO(group_size=2, scale=None), FixedEngine(episodes))
    np.testing.assert_allclose(np.asarray(batch.advantages)[:4, 0], [0, 0, -0.5, 0.5])


def test_rtpo_stages_run_from_the_last_turn_to_the_first():
    assert RTPO().stages(3, jax.random.key(0)) == (Stage((2,)), Stage((1,)), Stage((0,)))
    assert GRPO().stages(3, jax.random.key(0)) == (Stage(None),)


def test_rtpo_trains_turn_k_tokens_of_siblings_against_their_own_mean():
    """Boundary 0: returns 1, 0, 0 -> 2/3, -1/3, -1/3; boundary 1: equal returns -> exactly 0."""
    siblings = [
        episode([2, 3, 1], r, boundary=b) for b, r in zip("000111", (1, 0, 0, 1, 1, 1), strict=True)
    ]
    siblings = [dataclasses.replace(s, boundary=int(s.boundary)) for s in siblings]
    engine = FixedEngine([episode([2, 3, 1], 1), episode([2, 3, 1], 0)], siblings)
    method = RTPO(group_size=4)
    batch = batch_of(method, engine, Stage((1,)), version=5)
    assert engine.asked == [("rollout", 1), ("fork", 1, 3, 5)]
    rows = batch.rows
    assert np.sum(rows.trajectory_ids >= 0) == 6, "one row a sibling, no row of a trunk"
    assert set(rows.turn_ids[rows.action_mask]) == {1}
    expected = np.array([2 / 3, -1 / 3, -1 / 3, 0, 0, 0])
    np.testing.assert_allclose(np.asarray(batch.advantages)[:6, 0], expected, atol=1e-6)
    assert (np.asarray(batch.advantages)[3:] == 0).all()
    np.testing.assert_allclose(np.asarray(batch.weights)[:6, :3], 1 / 18)


def test_rtpo_skips_a_stage_that_no_trunk_reached():
    engine = FixedEngine([episode([2], 1)], siblings=())
    assert batch_of(RTPO(), engine, Stage((2,))) is None


def test_stale_continuations_are_sampled_once_with_the_first_policy():
    siblings = [episode([1, 1, 1], r, boundary=0) for r in (1, 0)]
    engine = FixedEngine([episode([1, 1, 1], 1)], siblings)
    method = dataclasses.replace(RTPO(), continuation="stale")
    collected = method.collect(engine, Policy(None, 3), (), jax.random.key(0))
    asked = list(engine.asked)
    assert asked == [("rollout", 1)] + [("fork", k, 2, 3) for k in range(3)]
    method.batch(engine, Policy(None, 9), collected, Stage((2,)), None, None)
    assert engine.asked == asked, "a stage sampled again"


def tiny_batch(ratios, advantages):
    """One row, one token a column, behaviour log-probability 0."""
    shape = (1, len(ratios))
    rows = Rows(
        tokens=np.zeros(shape, np.int32),
        action_positions=np.zeros(shape, np.int32),
        action_mask=np.ones(shape, bool),
        turn_ids=np.zeros(shape, np.int32),
        behavior_log_probs=np.zeros(shape, np.float32),
        policy_versions=np.zeros(shape, np.int32),
        rewards=np.zeros((1, 1), np.float32),
        discounts=np.zeros((1, 1), np.float32),
        group_ids=np.zeros(1, np.int32),
        sibling_ids=np.full(1, -1, np.int32),
        trajectory_ids=np.zeros(1, np.int32),
    )
    weights = np.full(shape, 1 / len(ratios), np.float32)
    return Batch(rows, np.array([advantages], np.float32), weights)


def test_objective_is_the_clipped_surrogate():
    """min(r A, clip(r) A) at (1.5, 1), (1.5, -1), (0.5, 1), (0.5, -1): 1.2, -1.5, 0.5, -0.8."""
    ratios = np.array([1.5, 1.5, 0.5, 0.5], np.float32)
    batch = tiny_batch(ratios, [1, -1, 1, -1])
    log_probs = jnp.log(ratios)[None, :]
    values, sums = GRPO().objective(Scores(log_probs, jnp.zeros_like(log_probs)), batch)
    value = values["objective"]
    np.testing.assert_allclose(value, (1.2 - 1.5 + 0.5 - 0.8) / 4, rtol=1e-6)
    np.testing.assert_allclose(sums["clip_fraction"], 0.5)
    kl = np.mean(ratios - 1 - np.log(ratios))  # k3 of KL(behaviour || policy)
    np.testing.assert_allclose(sums["kl_from_behavior"], kl, rtol=1e-5)


def test_log_ratio_limit_is_the_stated_clamp():
    log_probs = jnp.full((1, 1), 50.0)
    batch = tiny_batch([1.0], [-1.0])
    values, _ = GRPO(log_ratio_limit=10.0).objective(Scores(log_probs, jnp.zeros((1, 1))), batch)
    value = values["objective"]
    np.testing.assert_allclose(value, -np.exp(10.0), rtol=1e-5)


def test_one_turn_rtpo_is_grpo_without_deviation():
    """With one turn the boundary is the task: same rows, same advantages, same weights."""
    returns = (1, 0, 0)
    chains = [episode([2], r) for r in returns]
    siblings = [episode([2], r, boundary=0) for r in returns]
    flat = batch_of(GRPO(group_size=3, scale=None), FixedEngine(chains))
    forked = batch_of(RTPO(group_size=4), FixedEngine(chains[:1], siblings), Stage((0,)))
    np.testing.assert_array_equal(flat.advantages, forked.advantages)
    np.testing.assert_allclose(flat.weights, forked.weights)


@pytest.mark.parametrize(
    ("method", "fields", "message"),
    [
        (GRPO, {"group_size": 1}, "group_size=1"),
        (GRPO, {"clip_low": 0.0}, "clip_low=0.0"),
        (GRPO, {"clip_low": 1.5}, "clip_low=1.5"),
        (GRPO, {"epochs": 0}, "epochs=0"),
        (GRPO, {"num_minibatches": 0}, "num_minibatches=0"),
        (RTPO, {"group_size": 2}, "group_size=2"),
        (RTPO, {"num_trunks": 0}, "num_trunks=0"),
        (RTPO, {"stale_weight_range": (2.0, 1.0)}, "stale_weight_range"),
        (GRPO, {"epochs": 1.5}, "epochs=1.5"),
        (GRPO, {"clip_high": float("nan")}, "clip_high=nan"),
        (GRPO, {"context": "summary"}, "context='summary'"),
        (GRPO, {"scale": "std"}, "scale='std'"),
        (RTPO, {"continuation": "off"}, "continuation='off'"),
    ],
)
def test_impossible_fields_are_refused_by_name(method, fields, message):
    with pytest.raises(ValueError, match=message.replace("(", "\\(")):
        method(**fields)


def test_methods_are_hashable_values():
    assert RTPO() == RTPO() and hash(RTPO()) == hash(RTPO())
    assert dataclasses.replace(RTPO(), continuation="stale") != RTPO()
    assert hash(RTPO(stale_weight_range=[0.1, 10])) == hash(RTPO())
    assert jax.tree.leaves(GRPO()) == [GRPO()]


def with_rewards(trajectory, rewards):
    turns = [
        dataclasses.replace(turn, reward=reward)
        for turn, reward in zip(trajectory.turns, rewards, strict=True)
    ]
    return dataclasses.replace(trajectory, turns=tuple(turns))


@pytest.mark.parametrize(
    ("limits", "value"),
    [((0.0, 100.0), 0.25 + 0.5 * np.exp(5 * 0.5)), ((0.1, 2.0), 0.25 + 0.5 * 2.0)],
)
def test_stale_returns_reweigh_the_downstream_part_only(limits, value):
    """Eq. 109 by hand at k = 0, discount 1/2, behaviour log-probabilities -1, now -0.5.

    Sibling A: 0.25 at k, then turns of 3 and 2 tokens and 1 after turn 1: omega is the product over
    5 downstream tokens, exp(5 * 0.5) = 12.18. Sibling B ends at k with 0.5: nothing downstream.
    """
    first = with_rewards(episode([2, 3, 2], 0, boundary=0), [0.25, 1.0, 0.0])
    second = with_rewards(episode([2], 0, boundary=0), [0.5])
    engine = FixedEngine([episode([2], 1)], [first, second], discount=0.5, scores=-0.5)
    method = RTPO(continuation="stale", stale_weight_range=limits)
    batch = batch_of(method, engine, Stage((0,)))
    half = (value - 0.5) / 2
    np.testing.assert_allclose(np.asarray(batch.advantages)[:2, 0], [half, -half], rtol=1e-6)


def test_rtpo_compares_returns_from_the_stage_on():
    """At k = 1 and discount 1/2 the return is 0.5 + 1 / 2 = 1, whatever turn 0 paid."""
    siblings = [
        with_rewards(episode([1, 1, 1], 0, boundary=0), [9.0, 0.5, 1.0]),
        with_rewards(episode([1, 1, 1], 0, boundary=0), [9.0, 0.0, 0.0]),
    ]
    engine = FixedEngine([episode([1, 1, 1], 1)], siblings, discount=0.5)
    batch = batch_of(RTPO(), engine, Stage((1,)))
    np.testing.assert_allclose(np.asarray(batch.advantages)[:2, 0], [0.5, -0.5])


def test_rtpo_weighs_siblings_alike_however_long_their_turn():
    """Eq. 6: token mean inside a sibling's turn, then the mean over siblings."""
    siblings = [episode([1], 1, boundary=0), episode([4], 0, boundary=0)]
    batch = batch_of(RTPO(), FixedEngine([episode([1], 1)], siblings), Stage((0,)))
    np.testing.assert_allclose(np.asarray(batch.weights)[0, :1], 1 / 2)
    np.testing.assert_allclose(np.asarray(batch.weights)[1, :4], 1 / 8)


def test_rows_carry_rewards_and_discounts_of_their_episode():
    trunks = EpisodeBatch((with_rewards(episode([1, 1, 1], 0), [1.0, 2.0, 3.0]),), 3, discount=0.5)
    rows = FixedEngine([]).rows(trunks)
    np.testing.assert_array_equal(rows.rewards[:3], [[1.0, 2.0, 3.0]] * 3)
    np.testing.assert_array_equal(rows.discounts[:3], [[0.5, 0.5, 0.0]] * 3)


def test_rtpo_tails_train_every_later_turn_with_the_siblings_advantage():
    siblings = [episode([2, 1, 3], 1, boundary=0), episode([2, 2], 0, boundary=0)]
    engine = FixedEngine([episode([2, 1, 3], 1)], siblings)
    batch = batch_of(RTPO(tails=True), engine, Stage((1,)))
    rows = batch.rows
    kept = rows.action_mask.any(1)
    pairs = zip(rows.trajectory_ids[kept], rows.turn_ids[kept].max(1), strict=True)
    assert list(pairs) == [(0, 1), (0, 2), (1, 1)]
    np.testing.assert_allclose(batch.advantages[kept][:, 0], [0.5, 0.5, -0.5])
    # A sibling counts once: 4 tokens of the first weigh what 2 of the second do.
    np.testing.assert_allclose(batch.weights[kept].max(1), [1 / 8, 1 / 8, 1 / 4])


def test_rtpo_variants_in_the_schedule_and_the_group():
    key = jax.random.key(0)
    assert RTPO(last_turns=2).stages(3, key) == (Stage((2,)), Stage((1,)))
    assert RTPO(last_turns=9).stages(3, key) == RTPO().stages(3, key)
    siblings = [episode([1, 1, 1], r, boundary=0) for r in (1, 0, 0)]
    engine = FixedEngine([episode([1, 1, 1], 1)], siblings)
    batch = batch_of(RTPO(baseline="leave_one_out"), engine, Stage((2,)))
    np.testing.assert_allclose(np.asarray(batch.advantages)[:3, 0], [1, -0.5, -0.5])
    assert engine.included is False
    economical = RTPO.economical(group_size=4)
    assert economical.tails and economical.trunk_in_group and economical.group_size == 4
    batch_of(economical, engine, Stage((2,)))
    assert engine.included is True
    with pytest.raises(ValueError, match="trunk_in_group=True"):
        RTPO.economical(continuation="stale")
    with pytest.raises(ValueError, match="last_turns=0"):
        RTPO(last_turns=0)
