"""REFUEL: the paired squared loss, its gradient and its optimum, and its kinship with RTPO."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rtpo_jax.algorithms import REFUEL, RTPO, Policy, Scores
from rtpo_jax.algorithms.rows import only_rows
from tests.algorithms.scripted import scripted_engine

TASKS = [0, 1, 2]


def tasks(engine):
    return [engine.environment.make_task(seed) for seed in TASKS]


def batch_of(method, engine, stage=0, key=0):
    policy, key = Policy(None), jax.random.key(key)
    collected = method.collect(engine, policy, tasks(engine), jax.random.fold_in(key, 1))
    stage = method.stages(engine.num_turns, key)[stage]
    batch = method.batch(engine, policy, collected, stage, jax.random.fold_in(key, 2), None)
    return jax.tree.map(np.asarray, batch), collected


def loss_by_loops(method, batch, log_probs):
    """- mean over pairs of (d - eta (R - R'))^2 and its gradient, pair by pair."""
    rows, total = batch.rows, 0.0
    gradient = np.zeros(log_probs.shape)
    pairs = sorted(set(rows.sibling_ids[rows.sibling_ids >= 0].tolist()))
    for pair in pairs:
        first, second = np.flatnonzero(rows.sibling_ids == pair)
        moved = [
            sum(log_probs[n, t] - rows.behavior_log_probs[n, t] for t in np.flatnonzero(mask))
            for n, mask in ((n, rows.action_mask[n]) for n in (first, second))
        ]
        ends = [rows.rewards[n, rows.turn_ids[n, 0] :].sum() for n in (first, second)]
        error = moved[0] - moved[1] - method.eta * (ends[0] - ends[1])
        total -= error**2 / len(pairs)
        gradient[first][rows.action_mask[first]] -= 2 * error / len(pairs)
        gradient[second][rows.action_mask[second]] += 2 * error / len(pairs)
    return total, gradient


def value_and_gradient(method, batch, log_probs):
    def objective(values):
        return method.objective(Scores(values, jnp.zeros_like(values)), batch)[0]["objective"]

    return jax.value_and_grad(objective)(jnp.asarray(log_probs))


@pytest.mark.parametrize("order", ["random", "reverse"])
def test_loss_and_gradient_are_those_of_a_loop_over_pairs(order):
    engine, method = scripted_engine(), REFUEL(eta=0.7, num_trunks=2, order=order)
    batch, _ = batch_of(method, engine, stage=-1)
    scores = engine.score(Policy(None), batch.rows).log_probs
    expected, slope = loss_by_loops(method, batch, scores.astype(float))
    assert abs(expected) > 0.1 and np.abs(slope).max() > 0.1
    garbage = np.where(batch.rows.action_mask, scores, np.nan)
    found, gradient = value_and_gradient(method, batch, garbage)
    assert float(found) == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(gradient, slope, atol=1e-5)


def test_every_trunk_is_forked_once_at_a_turn_drawn_uniformly():
    engine, method = scripted_engine(), REFUEL(num_trunks=200)
    batch, collected = batch_of(method, engine)
    rows, mask = batch.rows, collected.trunks.turn_mask
    lengths = mask.sum(1)
    kept = rows.action_mask.any(1)
    assert kept.sum() == 2 * len(collected.trunks.episodes)
    pairs, counts = np.unique(rows.sibling_ids[kept], return_counts=True)
    assert (counts == 2).all() and len(pairs) == len(collected.trunks.episodes)
    turns = rows.turn_ids[kept, 0]
    full = lengths[: len(pairs)][rows.sibling_ids[kept]] == 4
    drawn = np.bincount(turns[full], minlength=4) / 2
    assert (np.abs(drawn - drawn.sum() / 4) < 5 * np.sqrt(drawn.sum() * 3 / 16)).all()
    assert (turns < lengths[: len(pairs)][rows.sibling_ids[kept]]).all()


def test_reverse_order_forks_at_the_stage_s_turn_wherever_it_was_reached():
    engine, method = scripted_engine(), REFUEL(num_trunks=3, order="reverse")
    assert [s.turns for s in method.stages(4, None)] == [(3,), (2,), (1,), (0,)]
    batch, collected = batch_of(method, engine, stage=0)
    kept = batch.rows.action_mask.any(1)
    assert kept.sum() == 2 * collected.trunks.turn_mask[:, 3].sum()
    assert set(batch.rows.turn_ids[batch.rows.action_mask]) == {3}


def test_the_optimum_of_separate_logits_is_a_mirror_step():
    """d loss = 0 where the log-ratios of a pair differ by eta (R - R'), and J is 0 there."""
    engine, method = scripted_engine(), REFUEL(eta=0.5, num_trunks=2)
    batch, _ = batch_of(method, engine)
    rows = batch.rows
    counts = np.maximum(rows.action_mask.sum(1, keepdims=True), 1)
    mirror = rows.behavior_log_probs + method.eta * batch.advantages / counts
    found, gradient = value_and_gradient(method, batch, mirror.astype(np.float32))
    assert abs(float(found)) < 1e-10 and np.abs(gradient).max() < 1e-5
    assert np.abs(batch.advantages).max() > 0.1


def test_first_gradient_is_parallel_to_that_of_rtpo_with_two_siblings():
    """Equal up to a factor 8 eta, and RTPO's mean over the tokens of a turn."""
    engine = scripted_engine()
    method = REFUEL(eta=0.5, num_trunks=2, order="reverse")
    batch, _ = batch_of(method, engine, stage=-1)
    start = batch.rows.behavior_log_probs
    _, gradient = value_and_gradient(method, batch, start)
    _, other = value_and_gradient(RTPO(group_size=3), batch, start)
    tokens = batch.rows.action_mask.sum(1, keepdims=True)
    # RTPO: A / (2 pairs T) a token, A = (R - R') / 2; REFUEL: 2 eta (R - R') / pairs.
    np.testing.assert_allclose(gradient, 8 * method.eta * tokens * other, atol=1e-6)
    assert np.abs(gradient).max() > 0.01


def test_pairs_of_equal_return_stay_active_and_together():
    engine, method = scripted_engine(), REFUEL(num_trunks=3)
    batch, _ = batch_of(method, engine)
    active = method.active_rows(batch)
    assert (active == batch.rows.action_mask.any(1)).all()
    assert active.sum() > batch.signal_rows.sum() > 0
    together = method.together(batch.rows)
    np.testing.assert_array_equal(together, batch.rows.sibling_ids)


def test_rows_outside_are_padding():
    engine, method = scripted_engine(), REFUEL(num_trunks=2)
    batch, _ = batch_of(method, engine)
    none = only_rows(batch.rows, np.zeros(batch.rows.num_rows, bool))
    assert not none.action_mask.any() and (none.turn_ids == -1).all()
    for name in ("group_ids", "sibling_ids", "trajectory_ids"):
        assert (getattr(none, name) == -1).all()


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"eta": 0.0}, "eta"), ({"order": "forward"}, "order"), ({"importance": "turn"}, "importance"),
     ({"num_trunks": 0}, "num_trunks")],
)  # fmt: skip
def test_refused(changes, named):
    with pytest.raises(ValueError, match=f"^{named}="):
        REFUEL(**changes)
