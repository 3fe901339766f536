"""The stage loop: one path for every method."""

import dataclasses
import time
from collections.abc import Sequence

import jax
import numpy as np

from rtpo_jax.algorithms import Batch, Method, Policy
from rtpo_jax.rollouts import RolloutEngine
from rtpo_jax.rollouts.generators import generator
from rtpo_jax.training.metrics import Averages, episode_metrics, log_ratio_metrics, signal_metrics
from rtpo_jax.training.update import TrainState, Updater, minibatches


def policy_of(state: TrainState) -> Policy:
    """The policy to act with: parameters and the version they carry into the rows."""
    return Policy(state.params, int(state.step))


def iterate(
    method: Method,
    engine: RolloutEngine,
    updater: Updater,
    state: TrainState,
    tasks: Sequence,
    key: jax.Array,
) -> tuple[TrainState, dict[str, float]]:
    """One iteration: collect, then batch and update stage by stage.

    Every stage's rows are scored with the parameters of the moment before its first update, so the
    log-ratio against the behaviour policy is measured on every token. The arrays of the old state
    are donated to the first update: go on with the state that is returned.
    """
    started = time.perf_counter()
    collect_key, order_key, stages_key, schedule_key = jax.random.split(key, 4)
    rng = generator(order_key)
    averages, carry = Averages(), None
    collected = method.collect(engine, policy_of(state), tasks, collect_key)
    for index, stage in enumerate(method.stages(engine.num_turns, schedule_key)):
        stage_key = jax.random.fold_in(stages_key, index)
        batch = method.batch(engine, policy_of(state), collected, stage, stage_key, carry)
        if batch is None:
            continue
        batch = jax.tree.map(np.asarray, batch)
        scored = time.perf_counter()
        scores = engine.score(policy_of(state), batch.rows)
        averages.add_sum("scoring_seconds", time.perf_counter() - scored)
        log_ratio_metrics(averages, batch, *scores)
        signal_metrics(averages, batch)
        state = _train_stage(method, updater, state, batch, rng, averages)
        carry = method.carry(engine, policy_of(state), batch, carry)
    episode_metrics(averages, engine, collected.trunks)
    averages.add_sum("iteration_seconds", time.perf_counter() - started)
    return state, averages.results()


def _train_stage(
    method: Method,
    updater: Updater,
    state: TrainState,
    batch: Batch,
    rng: np.random.Generator,
    averages: Averages,
) -> TrainState:
    """Epochs of minibatch steps on one batch. A part without signal takes no step at all."""
    started = time.perf_counter()
    for _ in range(method.epochs):
        for part in minibatches(batch, method.num_minibatches, rng):
            if not part.has_signal:
                averages.add_sum("skipped_updates", 1)
                continue
            state, metrics = updater(method, state, part)
            averages.add_sum("updates", 1)
            for name, value in metrics.items():
                averages.add_mean(name, value)
    averages.add_sum("update_seconds", time.perf_counter() - started)
    return state


def evaluate(
    engine: RolloutEngine, policy: Policy, tasks: Sequence, key: jax.Array, temperature: float
) -> dict[str, float]:
    """Success, return, turns and tool calls over one episode a task; not counted as usage."""
    engine = dataclasses.replace(engine, usage=type(engine.usage)())
    averages = Averages()
    episode_metrics(averages, engine, engine.rollout(policy, tasks, 1, key, temperature))
    return averages.results()


def evaluation_record(
    engine: RolloutEngine, policy: Policy, tasks: Sequence, key: jax.Array, *, greedy: bool
) -> dict[str, float]:
    """One line of metrics: `evaluate` at the engine's temperature and, where asked for, greedily."""
    started = time.perf_counter()
    record = evaluate(engine, policy, tasks, key, engine.temperature)
    record["success_sampled"] = record.pop("success")
    if greedy:
        record["success_greedy"] = evaluate(engine, policy, tasks, key, 0.0)["success"]
    seconds = time.perf_counter() - started
    return {**record, "evaluation_tasks": len(tasks), "evaluation_seconds": seconds}
