"""The stage loop end to end on the combination lock, whose optimum is known."""

import dataclasses

import jax
import numpy as np
import pytest

from rtpo_jax.algorithms import (
    GRPO,
    GSPO,
    REFUEL,
    REINFORCE,
    RTPO,
    SOGRPO,
    GiGPO,
    Policy,
    SeeUPO,
    TreeGRPO,
    VinePPO,
)
from rtpo_jax.envs import Lock
from rtpo_jax.models import SymbolTokenizer, TransformerConfig, init
from rtpo_jax.rollouts import (
    FullHistory,
    LanguageModelLogProbs,
    RolloutEngine,
    Sampler,
    Scorer,
    SymbolTemplate,
    Usage,
)
from rtpo_jax.training import Updater, adamw, create_state, evaluate, iterate, policy_of

ENVIRONMENT = Lock(code_length=3, num_actions=2)
TOKENIZER = SymbolTokenizer(ENVIRONMENT.symbols)
CONFIG = TransformerConfig.tiny(TOKENIZER.vocab_size, num_layers=1)
LOG_PROBS = LanguageModelLogProbs(CONFIG, 1.0)
TASKS = [ENVIRONMENT.make_task(i) for i in range(8)]
METHODS = {
    "grpo": GRPO(group_size=8),
    "grpo, minibatches": GRPO(group_size=8, num_minibatches=3, epochs=2),
    "rtpo": RTPO(group_size=4),
    "rtpo, stale": RTPO(group_size=4, continuation="stale"),
    "rtpo, economical": RTPO.economical(group_size=4),
    "gspo": GSPO(group_size=8),
    "rloo": REINFORCE(group_size=8),
    "seeupo": SeeUPO(group_size=8),
    "so-grpo": SOGRPO(group_size=8, num_minibatches=3, epochs=2, normalization="literal"),
    "dr. grpo": GRPO.dr_grpo(group_size=8),
    "tree-grpo": TreeGRPO(group_size=3, branches=2),
    "gigpo": GiGPO(group_size=8),
    "vineppo": VinePPO(group_size=2, rollouts=4, num_minibatches=2),
    "refuel": REFUEL(num_trunks=6),
    "refuel, reverse": REFUEL(num_trunks=2, order="reverse"),
    "seeupo, released code": SeeUPO.released_code(group_size=8),
}
# Rows of a later stage were sampled by an earlier policy than the stage starts from.
OLDER = ("rtpo, stale", "rtpo, economical", "seeupo")


def make_engine():
    return RolloutEngine(
        ENVIRONMENT,
        SymbolTemplate(TOKENIZER),
        FullHistory(),
        Sampler(CONFIG, TOKENIZER.end_id, TOKENIZER.pad_id, 2, (24,)),
        Scorer(LOG_PROBS),
        length_buckets=(26,),
        action_buckets=(2, 8),
        usage=Usage(),
    )


@pytest.fixture(scope="module")
def updater():
    return Updater(LOG_PROBS, adamw(3e-3), micro_batch=32)


@pytest.fixture(scope="module")
def params():
    """Random weights that mostly choose an action letter and end it: the lock is open by chance.

    The head is moved towards "one of the letters first, then the end", as a warm start would.
    """
    engine, optimizer = make_engine(), adamw(3e-3)
    from rtpo_jax.rollouts import demonstrate
    from rtpo_jax.training import WarmStart, imitate
    from rtpo_jax.training.warm_start import real_rows

    settings = WarmStart(steps=60, batch_size=64, full_history_share=0.0)
    batch = demonstrate(engine, TASKS * 8, jax.random.key(0), error_rate=0.5, systematic_rate=0.0)
    rows = {"recorded": real_rows(engine.rows(batch))}
    state = create_state(init(CONFIG, jax.random.key(1)), optimizer)
    state = imitate(
        settings, Updater(LOG_PROBS, optimizer, 32), state, rows, jax.random.key(2), lambda *_: None
    )
    return state.params


def test_success_of_the_start_is_that_of_independent_turns(params):
    """A lock of three turns opens with the product of the three turns' probabilities."""
    engine = make_engine()
    batch = engine.rollout(Policy(params), TASKS, 64, jax.random.key(5))
    right = [
        [ENVIRONMENT.outcome(e.state).success for e in batch.episodes],
        *(
            [TOKENIZER.decode(e.turns[k].action) == "a" for e in batch.episodes]
            for k in range(ENVIRONMENT.num_turns)
        ),
    ]
    success, turns = np.mean(right[0]), np.mean(right[1:], axis=1)
    deviation = (np.prod(turns) * (1 - np.prod(turns)) / len(batch.episodes)) ** 0.5
    assert abs(success - np.prod(turns)) < 5 * deviation
    assert 0.02 < success < 0.6, "a start from which there is something to learn"


@pytest.mark.parametrize("name", METHODS)
def test_every_method_learns_the_lock(name, params, updater):
    engine, state = make_engine(), create_state(params, updater.optimizer)
    before = evaluate(engine, policy_of(state), TASKS * 8, jax.random.key(7), 1.0)["success"]
    for iteration in range(10):
        state, metrics = iterate(
            METHODS[name], engine, updater, state, TASKS, jax.random.key(iteration)
        )
        if name not in OLDER:
            assert metrics["log_ratio_before_update_max"] < 1e-4
    after = evaluate(engine, policy_of(state), TASKS * 8, jax.random.key(7), 1.0)["success"]
    assert after > max(0.6, before + 0.2), (before, after)


def test_an_iteration_repeats_with_its_key_and_not_with_another(params, updater):
    def run(key):
        state = create_state(params, updater.optimizer)
        return iterate(
            RTPO(group_size=4), make_engine(), updater, state, TASKS, jax.random.key(key)
        )

    (first, metrics), (second, again), (third, _) = run(0), run(0), run(1)
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_array_equal(a, b)
    timeless = {k for k in metrics if "seconds" not in k}
    assert {k: metrics[k] for k in timeless} == {k: again[k] for k in timeless}
    leaves = zip(jax.tree.leaves(first.params), jax.tree.leaves(third.params), strict=True)
    assert any((np.asarray(a) != np.asarray(b)).any() for a, b in leaves)


def test_each_stage_samples_with_the_parameters_the_stage_before_left(params, updater):
    """RTPO: siblings of stage k carry the version after stages K-1 ... k+1."""
    engine, seen = make_engine(), []

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Spy(RTPO):
        def batch(self, engine, policy, collected, stage, key, carry):
            batch = super().batch(engine, policy, collected, stage, key, carry)
            versions = np.asarray(batch.rows.policy_versions)[batch.rows.action_mask]
            seen.append((stage.turns[0], policy.version, set(versions.tolist())))
            return batch

    state = create_state(params, updater.optimizer)
    state, metrics = iterate(Spy(group_size=4), engine, updater, state, TASKS, jax.random.key(0))
    assert [turn for turn, _, _ in seen] == [2, 1, 0]
    assert seen[0][1] == 0 and all(versions == {version} for _, version, versions in seen)
    assert int(state.step) == metrics["updates"]
    assert [version for _, version, _ in seen] == sorted(version for _, version, _ in seen)


def test_a_batch_without_signal_takes_no_step(params, updater):
    """Returns all equal: parameters, optimiser state and step stay as they are."""

    class Worthless(Lock):
        def step(self, state, action_text):
            return super().step(state, action_text)._replace(reward=0.0)

    engine = dataclasses.replace(make_engine(), environment=Worthless(code_length=3, num_actions=2))
    state = create_state(params, updater.optimizer)
    after, metrics = iterate(GRPO(group_size=4), engine, updater, state, TASKS, jax.random.key(0))
    assert metrics["zero_advantage_share"] == 1.0
    assert metrics["skipped_updates"] == 1.0 and "updates" not in metrics
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(after), strict=True):
        np.testing.assert_array_equal(a, b)


def test_evaluation_is_not_counted_as_usage(params, updater):
    engine, state = make_engine(), create_state(params, updater.optimizer)
    evaluate(engine, policy_of(state), TASKS, jax.random.key(0), 0.0)
    assert engine.usage == Usage()


def test_no_random_key_is_used_twice(params, updater, monkeypatch):
    """`split(key)[i]` equals `fold_in(key, i)`, so careless use draws the same numbers twice."""
    used = []
    original = Sampler.sample

    def spy(self, params, contexts, key, temperature=1.0):
        used.append(tuple(np.asarray(jax.random.key_data(key)).tolist()))
        return original(self, params, contexts, key, temperature)

    monkeypatch.setattr(Sampler, "sample", spy)
    for method in METHODS.values():
        used.clear()
        state = create_state(params, updater.optimizer)
        iterate(method, make_engine(), updater, state, TASKS, jax.random.key(3))
        assert len(set(used)) == len(used) >= ENVIRONMENT.num_turns


def test_epochs_and_minibatches_are_the_number_of_steps(params, updater):
    method = dataclasses.replace(METHODS["grpo, minibatches"], num_minibatches=2, epochs=3)
    state = create_state(params, updater.optimizer)
    _, metrics = iterate(method, make_engine(), updater, state, TASKS, jax.random.key(0))
    assert metrics["updates"] + metrics.get("skipped_updates", 0) == 6
    assert metrics["updates"] >= 3


def test_rows_keep_the_log_probs_of_the_moment_of_sampling(params, updater):
    """The denominator is what the sampler recorded, not a later recomputation."""
    engine, kept = make_engine(), []

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Spy(GRPO):
        def batch(self, engine, policy, collected, stage, key, carry):
            batch = super().batch(engine, policy, collected, stage, key, carry)
            kept.append((collected.trunks, batch))
            return batch

    state = create_state(params, updater.optimizer)
    iterate(Spy(group_size=8), engine, updater, state, TASKS, jax.random.key(0))
    ((trunks, batch),) = kept
    sampled = np.concatenate([t.log_probs for e in trunks.episodes for t in e.turns])
    recorded = np.asarray(batch.rows.behavior_log_probs)[batch.rows.action_mask]
    np.testing.assert_array_equal(recorded, sampled)


def test_an_older_behaviour_policy_collects_and_is_corrected_for(params, updater):
    """Rows carry the old version; after the correction the first ratio is 1 again."""
    seen = []

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Spy(GRPO):
        def corrected(self, batch):
            new = super().corrected(batch)
            gaps = np.abs(new.rows.behavior_log_probs - batch.scores.log_probs)
            versions = np.asarray(batch.rows.policy_versions)[batch.rows.action_mask]
            seen.append((set(versions.tolist()), gaps.max()))
            return new

    old = Policy(jax.tree.map(np.asarray, params), 41)
    moved = jax.tree.map(lambda leaf: leaf * 1.05, params)
    for importance in (None, "trajectory"):
        state = create_state(moved, updater.optimizer)
        method = Spy(group_size=8, importance=importance)
        _, metrics = iterate(
            method, make_engine(), updater, state, TASKS, jax.random.key(0), behavior=old
        )
        assert metrics["log_ratio_before_update_max"] > 1e-3, "measured before the correction"
    (versions, gap), (_, closed) = seen
    assert versions == {41} and gap > 1e-3 and closed == 0


def test_a_penalty_needs_a_reference_and_holds_the_policy_near_it(params, updater):
    reference = Policy(jax.tree.map(np.asarray, params))

    def run(coefficient, **options):
        state = create_state(params, updater.optimizer)
        method = GRPO(group_size=8, kl_coefficient=coefficient)
        for iteration in range(4):
            state, metrics = iterate(
                method, make_engine(), updater, state, TASKS, jax.random.key(iteration), **options
            )
        return metrics["kl_from_reference"]

    with pytest.raises(ValueError, match="kl_coefficient=0.1: hand a reference"):
        run(0.1)
    assert run(10.0, reference=reference) < run(1e-6, reference=reference) / 2
