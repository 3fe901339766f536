"""The one jitted update: split and padding change nothing, silence moves nothing."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rtpo_jax import core
from rtpo_jax.algorithms import GRPO, Batch, Rows, Scores
from rtpo_jax.training import TrainState, Updater, adamw, create_state, minibatches
from rtpo_jax.training.update import _update

TOKENS, VOCAB = 3, 7


def log_probs_of(params, rows):
    """A table policy over tokens that ignores its context."""
    table = jax.nn.log_softmax(params["table"])
    chosen = table[rows.tokens]
    entropies = jnp.broadcast_to(-jnp.sum(jnp.exp(table) * table), chosen.shape)
    return Scores(chosen, entropies)


def make_batch(num_rows=13, seed=0, groups=4):
    rng = np.random.default_rng(seed)
    mask = np.arange(TOKENS)[None, :] < rng.integers(0, TOKENS + 1, num_rows)[:, None]
    mask[0] = True
    tokens = rng.integers(0, VOCAB, (num_rows, TOKENS)).astype(np.int32)
    rows = Rows(
        tokens=tokens,
        action_positions=np.zeros_like(tokens),
        action_mask=mask,
        turn_ids=np.where(mask, 0, -1).astype(np.int32),
        behavior_log_probs=np.where(mask, -2.0, 0).astype(np.float32),
        policy_versions=np.zeros_like(tokens),
        rewards=np.zeros((num_rows, 1), np.float32),
        discounts=np.zeros((num_rows, 1), np.float32),
        group_ids=(np.arange(num_rows) % groups).astype(np.int32),
        sibling_ids=np.full(num_rows, -1, np.int32),
        trajectory_ids=np.arange(num_rows, dtype=np.int32),
    )
    advantages = rng.normal(size=(num_rows, 1)).astype(np.float32) * mask
    return Batch(rows, advantages, np.asarray(core.token_mean_weights(mask)))


PARAMS = {"table": jnp.asarray(np.random.default_rng(1).normal(size=VOCAB), jnp.float32)}
SGD = optax.sgd(1.0)


def gradient(batch, micro_batch):
    updater = Updater(log_probs_of, SGD, micro_batch)
    state, metrics = updater(GRPO(), create_state(PARAMS, SGD), batch)
    return np.asarray(state.params["table"] - PARAMS["table"]), metrics


def reference_gradient(batch):
    """The same objective in one plain expression over all rows."""

    def objective(params):
        log_probs, *_ = log_probs_of(params, batch.rows)
        ratios = jnp.exp(log_probs - batch.rows.behavior_log_probs)
        clipped = jnp.where(ratios > 1.2, 1.2, jnp.where(ratios < 0.8, 0.8, ratios))
        free, bound = ratios * batch.advantages, clipped * batch.advantages
        return jnp.sum(jnp.where(free < bound, free, bound) * batch.weights)

    return np.asarray(jax.grad(objective)(PARAMS)["table"])


@pytest.mark.parametrize("micro_batch", [1, 2, 4, 13, 64])
def test_gradient_does_not_depend_on_the_micro_batch(micro_batch):
    batch = make_batch()
    measured, _ = gradient(batch, micro_batch)
    np.testing.assert_allclose(measured, reference_gradient(batch), atol=1e-6)


def test_metrics_do_not_depend_on_the_micro_batch():
    first, second = (gradient(make_batch(), size)[1] for size in (2, 64))
    assert first.keys() == second.keys() >= {"clip_fraction", "entropy", "gradient_norm"}
    for name, value in first.items():
        np.testing.assert_allclose(value, second[name], atol=1e-6, err_msg=name)


def test_token_mean_of_uneven_micro_batches_is_the_global_mean():
    """Losses [2] and [1, 1, 1]: the mean is 1.25; a mean of means would be 1.5, a sum of means 3."""
    mask = np.array([[True, False, False], [True, True, True]])
    values = np.where(mask, [[2.0], [1.0]], 0).astype(np.float32)
    weights = np.asarray(core.token_mean_weights(mask))
    parts = [float(core.weighted_sum(values[i], weights[i])) for i in range(2)]
    np.testing.assert_allclose(sum(parts), 1.25)


def test_rows_without_advantage_or_weight_change_nothing():
    batch = make_batch()
    silent = np.asarray(batch.advantages).copy()
    silent[3:6] = 0
    batch = dataclasses.replace(batch, advantages=silent)
    np.testing.assert_allclose(gradient(batch, 4)[0], reference_gradient(batch), atol=1e-6)


@pytest.mark.parametrize("junk", [0.0, 10.0, np.nan])
def test_padding_never_reaches_the_gradient(junk):
    batch = make_batch()
    mask = batch.rows.action_mask
    old = np.where(mask, batch.rows.behavior_log_probs, junk).astype(np.float32)
    rows = dataclasses.replace(batch.rows, behavior_log_probs=old)
    measured, metrics = gradient(dataclasses.replace(batch, rows=rows), 4)
    np.testing.assert_allclose(measured, reference_gradient(batch), atol=1e-6)
    assert all(np.isfinite(value) for value in metrics.values())


def test_a_batch_without_signal_is_refused_before_the_optimiser_can_drift():
    """Adam moves parameters on a zero gradient by old momentum: the step must not happen."""
    batch = make_batch()
    silent = dataclasses.replace(batch, advantages=np.zeros_like(batch.advantages))
    updater = Updater(log_probs_of, adamw(0.1), 4)
    state, _ = updater(GRPO(), create_state(PARAMS, updater.optimizer), batch)
    assert not silent.signal_rows.any()
    with pytest.raises(ValueError, match="skip the update"):
        updater(GRPO(), state, silent)
    assert np.isfinite(np.asarray(state.params["table"])).all(), "the state was donated for nothing"


def test_batches_of_many_sizes_compile_few_programs():
    _update.clear_cache()
    updater = Updater(log_probs_of, SGD, 4)
    for rows in range(5, 33):
        batch = make_batch(rows)
        updater(GRPO(), create_state(PARAMS, SGD), batch)
    assert _update._cache_size() == 2  # room for 4 and for 8 micro-batches


def test_the_step_counts_and_clips_by_global_norm():
    optimizer = optax.chain(optax.clip_by_global_norm(1e-3), optax.sgd(1.0))
    updater = Updater(log_probs_of, optimizer, 4)
    state, metrics = updater(GRPO(), create_state(PARAMS, optimizer), make_batch())
    assert int(state.step) == 1 and isinstance(state, TrainState)
    moved = np.linalg.norm(np.asarray(state.params["table"] - PARAMS["table"]))
    np.testing.assert_allclose(moved, 1e-3, rtol=1e-3)
    norm = np.linalg.norm(reference_gradient(make_batch()))
    np.testing.assert_allclose(metrics["gradient_norm"], norm, rtol=1e-5)


def test_minibatches_keep_groups_whole_and_cover_every_row_once():
    batch = make_batch(num_rows=40, groups=10)
    parts = minibatches(batch, 3, np.random.default_rng(0))
    seen = [set(part.rows.group_ids.tolist()) for part in parts]
    assert len(parts) == 3 and all(not a & b for a in seen for b in seen if a is not b)
    rows = sorted(i for part in parts for i in part.rows.trajectory_ids.tolist())
    weighted = batch.weights.sum(1) > 0
    assert set(np.flatnonzero(weighted)) <= set(rows) and len(rows) == len(set(rows))
    for part in parts:
        np.testing.assert_allclose(part.weights.sum(), 1.0, rtol=1e-5)


def test_minibatches_are_counted_by_groups_not_by_rows():
    """Episodes with more turns have more rows; the number of optimiser steps must not change."""
    batch = make_batch(num_rows=60, groups=4)
    assert len(minibatches(batch, 2, np.random.default_rng(0))) == 2
    assert len(minibatches(batch, 8, np.random.default_rng(0))) == 4
    siblings = np.arange(60, dtype=np.int32) // 2
    rows = dataclasses.replace(batch.rows, sibling_ids=siblings)
    parts = minibatches(dataclasses.replace(batch, rows=rows), 5, np.random.default_rng(0))
    for part in parts:
        _, counts = np.unique(part.rows.sibling_ids, return_counts=True)
        assert (counts == 2).all()


def test_a_step_that_is_not_finite_stops_the_run():
    batch = make_batch()
    broken = dataclasses.replace(batch, advantages=np.where(batch.rows.action_mask, np.nan, 0))
    updater = Updater(log_probs_of, SGD, 4)
    with pytest.raises(FloatingPointError, match="at step 1: go back to the last checkpoint"):
        updater(GRPO(), create_state(PARAMS, SGD), broken)


def test_rows_of_a_trajectory_stay_together():
    """The ratio of a trajectory spans its rows: its gradient must not depend on micro-batches."""
    batch = make_batch()
    ids = np.repeat(np.arange(5), 3)[:13].astype(np.int32)
    batch = dataclasses.replace(batch, rows=dataclasses.replace(batch.rows, trajectory_ids=ids))
    method = GRPO(ratio="trajectory", ratio_mean=False, clip_low=1.0, clip_high=100.0)

    def step(size):
        state = create_state(PARAMS, SGD)
        state, metrics = Updater(log_probs_of, SGD, size)(method, state, batch)
        return np.asarray(state.params["table"] - PARAMS["table"]), metrics

    whole, metrics = step(64)
    mask, weights = batch.rows.action_mask, batch.weights

    def plain(table):
        chosen = jax.nn.log_softmax(table)[batch.rows.tokens]
        moved = jnp.where(mask, chosen + 2.0, 0).sum(1)
        units = jnp.stack([moved[ids == i].sum() for i in range(5)])
        return jnp.sum(jnp.exp(units)[ids][:, None] * batch.advantages * weights)

    expected = jax.grad(plain)(PARAMS["table"])
    np.testing.assert_allclose(whole, expected, rtol=1e-4, atol=1e-6)
    for size in (3, 4, 7):
        parts, same = step(size)
        np.testing.assert_allclose(parts, whole, rtol=1e-4, atol=1e-6)
        assert same["objective"] == pytest.approx(metrics["objective"], rel=1e-5)
    with pytest.raises(ValueError, match="micro_batch=2: 3 rows belong together"):
        step(2)


@dataclasses.dataclass(frozen=True)
class Halved(GRPO):
    """Its step is the gradient over 1 plus the norm of another scalar's gradient."""

    def objective(self, scores, batch):
        values, sums = super().objective(scores, batch)
        return {**values, "other": 3 * values["objective"]}, sums

    def ascent(self, gradients):
        norm = optax.tree.norm(gradients["other"])
        return jax.tree.map(lambda g: g / (1 + norm), gradients["objective"]), {"other_norm": norm}


def test_a_method_may_combine_gradients_of_the_whole_batch():
    batch = make_batch()
    plain, _ = gradient(batch, 64)
    updater = Updater(log_probs_of, SGD, 4)
    state, metrics = updater(Halved(), create_state(PARAMS, SGD), batch)
    norm = 3 * np.linalg.norm(plain)
    assert metrics["other_norm"] == pytest.approx(norm, rel=1e-5)
    found = np.asarray(state.params["table"] - PARAMS["table"])
    np.testing.assert_allclose(found, plain / (1 + norm), rtol=1e-4, atol=1e-7)
    assert metrics["gradient_norm"] == pytest.approx(np.linalg.norm(found), rel=1e-5)
