"""Options that every method has, and GRPO's named choices, on the worked batch of test_golden."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from rtpo_jax.algorithms import GRPO, GSPO, SOGRPO, Scores
from tests.algorithms.test_golden import MOVED, OLD, RETURNS, Worked, batch_of, moved_log_probs

ADVANTAGES = np.array(RETURNS) - 0.5
CLIPPED = np.minimum(
    np.exp(MOVED) * ADVANTAGES[:, None, None],
    np.clip(np.exp(MOVED), 0.8, 1.2) * ADVANTAGES[:, None, None],
)


def value(method, batch, log_probs=None):
    log_probs = jnp.asarray(moved_log_probs(batch.rows) if log_probs is None else log_probs)
    values, sums = method.objective(Scores(log_probs, jnp.zeros_like(log_probs)), batch)
    return float(values["objective"]), sums


def test_measures_of_ragged_trajectories():
    """Chain 0 has two turns, chain 1 one, so that the three means differ."""
    lengths = (2, 1, 2, 2)
    kept = np.arange(2)[None, :, None] < np.array(lengths)[:, None, None]
    sums = np.where(kept, CLIPPED, 0).sum((1, 2))
    tokens = 2 * np.array(lengths)
    expected = {
        "trajectory": np.mean(sums / tokens),
        "token": sums.sum() / tokens.sum(),
        "constant": np.mean(sums) / 16,
    }
    for measure, wanted in expected.items():
        method = GRPO(group_size=4, scale=None, measure=measure, tokens=16)
        found, _ = value(method, batch_of(method, engine=Worked(lengths)))
        assert found == pytest.approx(wanted, abs=1e-6), measure
    assert GRPO.dr_grpo(group_size=4, tokens=16) == GRPO(
        group_size=4, scale=None, measure="constant", tokens=16
    )


@pytest.mark.parametrize("method", [GRPO(group_size=4, scale=None), GSPO(group_size=4)])
def test_kl_to_a_reference_is_subtracted(method):
    """With the behaviour policy as reference the mean k3 is the golden .021669229."""
    batch = batch_of(method)
    reference = np.where(batch.rows.action_mask, OLD, np.nan)  # NaN outside must not get in
    batch = dataclasses.replace(batch, fields={"reference_log_probs": reference})
    free, _ = value(method, batch)
    penalised = dataclasses.replace(method, kl_coefficient=0.5)
    found, sums = value(penalised, batch)
    assert float(sums["kl_from_reference"]) == pytest.approx(0.021669229, abs=1e-7)
    assert found == pytest.approx(free - 0.5 * 0.021669229, abs=1e-6)


def test_a_penalty_keeps_rows_without_advantage():
    batch = batch_of(GRPO(group_size=4, scale=None))
    silent = dataclasses.replace(batch, advantages=np.zeros_like(batch.advantages))
    assert not GRPO().active_rows(silent).any()
    np.testing.assert_array_equal(
        GRPO(kl_coefficient=0.1).active_rows(silent), silent.rows.action_mask.any(1)
    )


FACTORS = {
    "token": np.exp(MOVED),
    "turn": np.broadcast_to(np.exp(MOVED.sum(2, keepdims=True)), MOVED.shape),
    "trajectory": np.broadcast_to(np.exp(MOVED.sum((1, 2), keepdims=True)), MOVED.shape),
}


@pytest.mark.parametrize("context", ["recorded", "full_history"])
@pytest.mark.parametrize("level", FACTORS)
def test_truncated_importance_weights(level, context):
    """Where the stage starts from the moved policy, J = mean min(w, limit) A, at the ratio 1."""
    method = GRPO(group_size=4, scale=None, context=context, importance=level, importance_limit=1.3)
    batch = batch_of(method)
    moved = moved_log_probs(batch.rows)
    scored = dataclasses.replace(batch, scores=Scores(moved, np.zeros_like(moved)))
    corrected = method.corrected(scored)
    wanted = np.minimum(FACTORS[level], 1.3) * ADVANTAGES[:, None, None]
    found, sums = value(method, corrected, moved)
    assert found == pytest.approx(wanted.mean(), abs=1e-6)
    assert float(sums["kl_from_behavior"]) == pytest.approx(0, abs=1e-7)
    plain = dataclasses.replace(method, importance=None)
    assert plain.corrected(scored) is scored


def test_corrected_batches_do_not_read_masked_places():
    method = SOGRPO(group_size=4, scale=None, importance="turn")
    batch = batch_of(method, engine=Worked((2, 1, 2, 2)))
    moved = np.where(batch.rows.action_mask, moved_log_probs(batch.rows), np.nan)
    corrected = method.corrected(dataclasses.replace(batch, scores=Scores(moved, moved)))
    assert np.isfinite(corrected.advantages).all()
    assert np.isfinite(corrected.rows.behavior_log_probs).all()


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("kl_coefficient", -0.1),
        ("importance", "word"),
        ("importance_limit", 0.0),
        ("measure", "row"),
        ("tokens", 0),
    ],
)
def test_refused_settings_name_field_and_value(field, bad):
    with pytest.raises(ValueError, match=f"{field}={bad!r}"):
        GRPO(**{field: bad})
