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
    *,
    reference: Policy | None = None,
    behavior: Policy | None = None,
) -> tuple[TrainState, dict[str, float]]:
    """One iteration: collect, then batch and update stage by stage.

    Args:
      method: what to train by.
      engine: acts and scores.
      updater: takes the steps.
      state: before the iteration.
      tasks: of this iteration.
      key: decides everything random in it.
      reference: of the method's KL penalty; only read when its coefficient is above 0.
      behavior: policy that the iteration's data are collected with; None = the state's. Hand an
        older one for rollouts that lag behind; what a stage samples afresh is always on-policy.

    Every stage's rows are scored with the parameters of the moment before its first update, so the
    log-ratio against the behaviour policy is measured on every token. The arrays of the old state
    are donated to the first update: go on with the state that is returned.
    """
    if method.kl_coefficient and reference is None:
        raise ValueError(f"kl_coefficient={method.kl_coefficient}: hand a reference policy")
    started = time.perf_counter()
    collect_key, order_key, stages_key, schedule_key = jax.random.split(key, 4)
    rng = generator(order_key)
    averages, carry = Averages(), None
    behavior = policy_of(state) if behavior is None else behavior
    collected = method.collect(engine, behavior, tasks, collect_key)
    for index, stage in enumerate(method.stages(engine.num_turns, schedule_key)):
        stage_key = jax.random.fold_in(stages_key, index)
        batch = method.batch(engine, policy_of(state), collected, stage, stage_key, carry)
        if batch is None:
            continue
        batch = _scored(method, engine, policy_of(state), reference, batch, averages)
        state = _train_stage(method, updater, state, method.corrected(batch), rng, averages)
        carry = method.carry(engine, policy_of(state), batch, carry)
    episode_metrics(averages, engine, collected.trunks)
    averages.add_sum("iteration_seconds", time.perf_counter() - started)
    return state, averages.results()


def _scored(method, engine, policy, reference, batch: Batch, averages: Averages) -> Batch:
    """The batch in numpy with the scores of the moment, its metrics taken."""
    batch = jax.tree.map(np.asarray, batch)
    started = time.perf_counter()
    if batch.scores is None:
        batch = dataclasses.replace(batch, scores=engine.score(policy, batch.rows))
    if method.kl_coefficient:
        reference_log_probs = engine.score(reference, batch.rows).log_probs
        fields = {**batch.fields, "reference_log_probs": reference_log_probs}
        batch = dataclasses.replace(batch, fields=fields)
    averages.add_sum("scoring_seconds", time.perf_counter() - started)
    log_ratio_metrics(averages, batch)
    signal_metrics(averages, batch)
    return batch


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
            if not method.active_rows(part).any():
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
