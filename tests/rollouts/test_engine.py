"""The turn loop, sibling forks and training rows, on a small random-weight agent."""

import dataclasses

import jax
import numpy as np
import pytest

from rtpo_jax.algorithms import Policy
from rtpo_jax.envs import Chance, Lookup
from rtpo_jax.models import SymbolTokenizer, TransformerConfig, init
from rtpo_jax.rollouts import (
    LanguageModelLogProbs,
    LastTurns,
    RolloutEngine,
    Sampler,
    Scorer,
    SymbolTemplate,
    demonstrate,
)

ENVIRONMENT = Lookup(num_hops=2)
TOKENIZER = SymbolTokenizer(ENVIRONMENT.symbols)
CONFIG = TransformerConfig.tiny(TOKENIZER.vocab_size)
TASKS = [ENVIRONMENT.make_task(i) for i in range(5)]


def make_engine(environment=ENVIRONMENT, temperature=1.0):
    log_prob_fn = LanguageModelLogProbs(CONFIG, temperature)
    return RolloutEngine(
        environment,
        SymbolTemplate(TOKENIZER),
        LastTurns(1),
        Sampler(CONFIG, TOKENIZER.end_id, TOKENIZER.pad_id, 6, (24,)),
        Scorer(log_prob_fn, 32),
        temperature=temperature,
        length_buckets=(32, 64),
        action_buckets=(6, 24),
    )


@pytest.fixture(scope="module")
def policy():
    """Random weights whose start of an action is nudged towards well-formed queries."""
    return Policy(init(CONFIG, jax.random.key(0)), version=7)


@pytest.fixture(scope="module")
def trunks(policy):
    return make_engine().rollout(policy, TASKS, 3, jax.random.key(1))


def played(batch):
    return [[(t.context, t.action, t.observation) for t in e.turns] for e in batch.episodes]


def test_contexts_are_what_the_manager_makes_of_the_recorded_turns(trunks):
    engine = make_engine()
    for episode in trunks.episodes:
        for index, turn in enumerate(episode.turns):
            before = dataclasses.replace(episode, turns=episode.turns[:index])
            assert turn.context == engine.context_of(before)
            assert turn.policy_version == 7


def test_replaying_the_actions_gives_the_same_states_and_replies(trunks):
    for episode in trunks.episodes:
        state = episode.turns[0].state
        for turn in episode.turns:
            assert turn.state == state
            step = ENVIRONMENT.step(state, TOKENIZER.decode(turn.action))
            assert (step.observation, step.reward) == (turn.observation, turn.reward)
            state = step.state
        assert state == episode.state and episode.ended


def test_the_same_key_repeats_a_rollout_and_another_changes_it(policy, trunks):
    again = make_engine().rollout(policy, TASKS, 3, jax.random.key(1))
    other = make_engine().rollout(policy, TASKS, 3, jax.random.key(2))
    assert played(again) == played(trunks)
    assert played(other) != played(trunks)


def test_a_sibling_shares_the_prefix_token_for_token_and_acts_afresh(policy, trunks):
    before = played(trunks)
    siblings = make_engine().continue_from(policy, trunks, 1, 4, jax.random.key(3))
    realised = [trunk for trunk in trunks.episodes if len(trunk.turns) > 1]
    assert len(siblings.episodes) == 4 * len(realised) > 0
    for index, sibling in enumerate(siblings.episodes):
        trunk = realised[index // 4]
        assert sibling.boundary == index // 4 and sibling.group == trunk.group
        assert sibling.turns[0] is trunk.turns[0]
        assert sibling.turns[1].context == trunk.turns[1].context
        fork = ENVIRONMENT.fork(trunk.turns[1].state, sibling.turns[1].state.episode.stream)
        assert sibling.turns[1].state == fork
    actions = {sibling.turns[1].action for sibling in siblings.episodes}
    assert len(actions) > len(realised)
    assert played(trunks) == before, "forking changed a trunk"


def test_trunks_may_be_members_of_the_groups_at_their_boundaries(policy, trunks):
    engine = make_engine()
    alone = engine.continue_from(policy, trunks, 1, 2, jax.random.key(4))
    joined = engine.continue_from(policy, trunks, 1, 2, jax.random.key(4), include_trunks=True)
    count = len(alone.episodes)
    assert played(joined)[:count] == played(alone), "siblings do not change"
    realised = [trunk for trunk in trunks.episodes if trunk.realised(1)]
    members = joined.episodes[count:]
    assert all(m.turns is t.turns for m, t in zip(members, realised, strict=True))
    for member in joined.episodes[count:]:
        siblings = [e for e in alone.episodes if e.boundary == member.boundary]
        assert len(siblings) == 2
        assert all(e.turns[0] is member.turns[0] for e in siblings)


def test_siblings_at_turn_0_are_fresh_episodes_of_the_same_task(policy, trunks):
    siblings = make_engine().continue_from(policy, trunks, 0, 2, jax.random.key(3))
    assert len(siblings.episodes) == 2 * len(trunks.episodes)
    first = siblings.episodes[0]
    assert first.task == trunks.episodes[0].task
    assert first.turns[0].context == trunks.episodes[0].turns[0].context


def test_no_siblings_beyond_the_end_of_a_trunk(policy, trunks):
    short = dataclasses.replace(
        trunks,
        episodes=tuple(dataclasses.replace(e, turns=e.turns[:1]) for e in trunks.episodes),
    )
    siblings = make_engine().continue_from(policy, short, 2, 2, jax.random.key(3))
    assert siblings.episodes == () and siblings.num_boundaries == 0
    with pytest.raises(ValueError, match="turn=2"):
        short.episodes[0].at_boundary(2)


def test_branches_at_any_point_share_the_decisions_before_it(policy, trunks):
    points = [(0, 1), (2, 0), (0, 1), (1, len(trunks.episodes[1].turns) - 1)]
    branches = make_engine().branch(policy, trunks, points, jax.random.key(9))
    assert branches.sibling_ids[:4].tolist() == [0, 1, 0, 2]
    grown = trunks.grown(branches)
    first = len(trunks.episodes)
    for place, (trunk, turn) in enumerate(points):
        old, new = grown.node_ids[trunk], grown.node_ids[first + place]
        assert (new[:turn] == old[:turn]).all()
        assert not np.isin(new[turn:][new[turn:] >= 0], grown.node_ids[:first]).any()
        assert grown.tree_ids[first + place] == grown.tree_ids[trunk]
        assert grown.state_ids[first + place, turn] == grown.state_ids[trunk, turn]
    assert np.unique(trunks.tree_ids[:first]).size == first
    with pytest.raises(ValueError, match="turn=9"):
        make_engine().branch(policy, trunks, [(0, 9)], jax.random.key(9))


def test_luck_drawn_before_the_fork_is_shared_and_after_it_redrawn():
    """Luck is decided when turn 0 ends: siblings at turn 1 share it, siblings at turn 0 do not."""
    environment = Lookup(num_hops=1, chance=Chance(luck=0.5))
    engine = make_engine(environment)
    tasks = [environment.make_task(i) for i in range(3)]
    policy = Policy(init(CONFIG, jax.random.key(0)))
    trunks = engine.rollout(policy, tasks, 1, jax.random.key(1))

    def luck_by_boundary(turn):
        siblings = engine.continue_from(policy, trunks, turn, 16, jax.random.key(2))
        found = {}
        for episode in siblings.episodes:
            success = environment.outcome(episode.state).success
            luck = sum(t.reward for t in episode.turns) - success
            found.setdefault(episode.boundary, set()).add(round(luck, 6))
        return found.values()

    assert all(len(values) == 1 for values in luck_by_boundary(1))
    assert all(values == {-0.5, 0.5} for values in luck_by_boundary(0))


def test_rows_hold_exactly_what_was_sampled(trunks):
    rows = make_engine().rows(trunks)
    turns = [(i, h, t) for i, e in enumerate(trunks.episodes) for h, t in enumerate(e.turns)]
    assert np.sum(rows.trajectory_ids >= 0) == len(turns)
    for row, (trajectory, index, turn) in enumerate(turns):
        count, start = len(turn.action), len(turn.context)
        assert tuple(rows.tokens[row, : start + count]) == turn.context + turn.action
        assert rows.trajectory_ids[row] == trajectory
        assert rows.group_ids[row] == trunks.episodes[trajectory].group
        np.testing.assert_array_equal(rows.action_positions[row, :count], start + np.arange(count))
        np.testing.assert_array_equal(rows.action_mask[row], np.arange(6) < count)
        np.testing.assert_array_equal(rows.turn_ids[row, :count], index)
        np.testing.assert_array_equal(rows.behavior_log_probs[row, :count], turn.log_probs)
        np.testing.assert_array_equal(rows.policy_versions[row, :count], 7)
    padding = rows.trajectory_ids < 0
    assert not rows.action_mask[padding].any() and (rows.group_ids[padding] == -1).all()


def test_full_history_rows_lay_all_turns_behind_one_question(trunks):
    rows = make_engine().rows(trunks, "full_history")
    recorded = make_engine().rows(trunks)
    assert rows.action_mask.sum() == recorded.action_mask.sum()
    episode = trunks.episodes[0]
    expected = list(TOKENIZER.encode(episode.question))
    for turn in episode.turns:
        expected += turn.action
        if turn.observation:
            closed = turn.action[-1] == TOKENIZER.end_id
            expected += [] if closed else [TOKENIZER.end_id]
            expected += TOKENIZER.encode(turn.observation)
    assert rows.tokens[0, : len(expected)].tolist() == expected
    chosen = rows.tokens[0, rows.action_positions[0]][rows.action_mask[0]]
    assert chosen.tolist() == [token for turn in episode.turns for token in turn.action]


def test_only_the_chosen_turns_become_rows(trunks):
    rows = make_engine().rows(trunks, turns=(1,))
    assert set(rows.turn_ids[rows.action_mask]) == {1}
    history = make_engine().rows(trunks, "full_history", turns=(1,))
    assert set(history.turn_ids[history.action_mask]) == {1}


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_ratio_before_the_update_is_zero_on_recorded_contexts_only(policy, temperature):
    """RTPO, Fig. 3 in miniature: the same parameters, two conditionals."""
    engine = make_engine(temperature=temperature)
    # Sharper logits, so that the context matters.
    sharp = dict(policy.params)
    sharp["ends"] = {**policy.params["ends"], "head": policy.params["ends"]["head"] * 30}
    policy = Policy(sharp)
    trunks = engine.rollout(policy, TASKS, 3, jax.random.key(1))
    gaps = {}
    for context in ("recorded", "full_history"):
        rows = engine.rows(trunks, context)
        log_probs, entropies, _ = engine.score(policy, rows)
        gaps[context] = np.abs(log_probs - rows.behavior_log_probs)[rows.action_mask].max()
        assert (entropies[rows.action_mask] >= 0).all()
        assert (log_probs[~rows.action_mask] == 0).all()
    assert gaps["recorded"] < 1e-4
    assert gaps["full_history"] > 1e-2


def test_rewards_and_discounts_by_turn(trunks):
    for row, episode in enumerate(trunks.episodes):
        count = len(episode.turns)
        assert trunks.rewards[row, :count].tolist() == [t.reward for t in episode.turns]
        assert trunks.discounts[row].tolist() == [1.0] * (count - 1) + [0.0] * (4 - 1 - count + 1)
    assert (trunks.group_ids[len(trunks.episodes) :] == -1).all()


def test_usage_counts_sampled_tokens_only(policy):
    engine = make_engine()
    trunks = engine.rollout(policy, TASKS, 2, jax.random.key(1))
    generated = sum(len(turn.action) for e in trunks.episodes for turn in e.turns)
    assert engine.usage.generated_tokens == generated
    siblings = engine.continue_from(policy, trunks, 1, 2, jax.random.key(2))
    again = sum(len(turn.action) for e in siblings.episodes for turn in e.turns[1:])
    assert engine.usage.generated_tokens == generated + again


def test_two_tasks_with_equal_text_are_two_groups(policy):
    trunks = make_engine().rollout(policy, [TASKS[0], TASKS[0]], 2, jax.random.key(1))
    assert trunks.group_ids[:4].tolist() == [0, 0, 1, 1]


def test_demonstrations_use_the_same_contexts_and_can_be_packed():
    engine = make_engine()
    batch = demonstrate(engine, TASKS, jax.random.key(0), error_rate=0.0, systematic_rate=0.0)
    assert all(ENVIRONMENT.outcome(episode.state).success for episode in batch.episodes)
    rows = engine.rows(batch)
    first = rows.tokens[0, rows.action_positions[0]][rows.action_mask[0]]
    assert TOKENIZER.decode(first)[0] == "Q" and first[-1] == TOKENIZER.end_id


def test_an_environment_that_never_ends_is_named():
    class Endless(Lookup):
        def step(self, state, action_text):
            return super().step(state, action_text)._replace(ended=False)

    engine = make_engine(Endless(num_hops=1))
    policy = Policy(init(CONFIG, jax.random.key(0)))
    with pytest.raises((RuntimeError, ValueError), match="Endless|ended"):
        engine.rollout(policy, TASKS[:1], 1, jax.random.key(0))


def test_unknown_context_is_refused(trunks):
    with pytest.raises(ValueError, match="'recorded' or 'full_history'"):
        make_engine().rows(trunks, "summary")


def test_acting_and_scoring_also_work_where_float64_is_on(policy, trunks):
    """Importing `tabular` turns float64 on for the process; the model's numbers stay float32."""
    with jax.enable_x64(True):
        engine = make_engine()
        again = engine.rollout(policy, TASKS, 3, jax.random.key(1))
        assert played(again) == played(trunks)
        rows = engine.rows(again)
        log_probs = engine.score(policy, rows).log_probs
    assert rows.behavior_log_probs.dtype == log_probs.dtype == np.float32
    assert np.abs(log_probs - rows.behavior_log_probs)[rows.action_mask].max() < 1e-4


def test_contradictory_or_broken_parts_are_refused():
    engine = make_engine()
    with pytest.raises(ValueError, match="temperature=0.5: rows are scored at 1.0"):
        dataclasses.replace(engine, temperature=0.5)
    small = dataclasses.replace(CONFIG, vocab_size=5)
    with pytest.raises(ValueError, match="vocab_size=5"):
        dataclasses.replace(engine, sampler=dataclasses.replace(engine.sampler, config=small))

    class Broken(Lookup):
        def step(self, state, action_text):
            return super().step(state, action_text)._replace(reward=float("nan"))

    engine = dataclasses.replace(engine, environment=Broken(num_hops=1))
    policy = Policy(init(CONFIG, jax.random.key(0)))
    with pytest.raises(ValueError, match="reward=nan: step\\(\\) of Broken"):
        engine.rollout(policy, TASKS[:1], 1, jax.random.key(0))
