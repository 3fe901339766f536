"""Losses of all flat methods on one worked batch: four chains, two turns of two tokens, by hand."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rtpo_jax.algorithms import GRPO, GSPO, REINFORCE, SOGRPO, Policy, Scores, SeeUPO, Stage
from rtpo_jax.models import SymbolTokenizer
from rtpo_jax.rollouts import Episode, EpisodeBatch, SymbolTemplate, Turn
from rtpo_jax.rollouts.packing import training_rows

# Log-ratios of the new policy to the one that sampled, [chain, turn, token].
MOVED = np.array(
    [[[0.3, -0.1], [0.05, 0.25]], [[-0.3, 0.1], [0.2, -0.25]],
     [[0.0, 0.4], [-0.1, 0.1]], [[-0.05, 0.0], [0.3, 0.3]]]
)  # fmt: skip
RETURNS = (1.0, 0.0, 0.0, 1.0)
OLD = -1.0


class Worked:
    """An engine that returns the four chains and scores them with the moved policy."""

    num_turns = 2

    def __init__(self, lengths=(2, 2, 2, 2)):
        log_probs = np.full(2, OLD, np.float32)
        self.chains = tuple(
            Episode(None, 0, "", None, tuple(
                Turn(None, (9,), (5, 5), log_probs, "", r * (h == n - 1), 0) for h in range(n)
            ), True)
            for r, n in zip(RETURNS, lengths, strict=True)
        )  # fmt: skip

    def rollout(self, policy, tasks, copies, key):
        del policy, tasks, key
        assert copies == 4
        return EpisodeBatch(self.chains, self.num_turns)

    def rows(self, trajectories, context="recorded", turns=None):
        template = SymbolTemplate(SymbolTokenizer("x"))
        return training_rows(
            trajectories, template, context, turns, length_buckets=(8,), action_buckets=(2, 4)
        )

    def score(self, policy, rows):
        del policy
        scores = moved_log_probs(rows)
        return Scores(scores, np.zeros_like(scores))


def moved_log_probs(rows):
    """Log-probabilities [N, T] under the new policy, from each token's place in its turn."""
    found = np.zeros(rows.action_mask.shape, np.float32)
    for n, t in np.argwhere(rows.action_mask):
        place = t % 2
        found[n, t] = OLD + MOVED[rows.trajectory_ids[n], rows.turn_ids[n, t], place]
    return found


def batch_of(method, stage=None, carry=None, engine=None):
    engine = engine or Worked()
    collected = method.collect(engine, Policy(None), (), jax.random.key(0))
    batch = method.batch(engine, Policy(None), collected, stage or Stage(), None, carry)
    return jax.tree.map(np.asarray, batch)


def surrogate(method, batch):
    log_probs = jnp.asarray(moved_log_probs(batch.rows))
    values, sums = method.objective(Scores(log_probs, jnp.zeros_like(log_probs)), batch)
    return float(values["objective"]), {name: float(value) for name, value in sums.items()}


PLAIN = {"group_size": 4, "scale": None}


@pytest.mark.parametrize("context", ["recorded", "full_history"])
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"ratio": "token"}, 0.008716601),
        ({"ratio": "turn"}, 0.021297812),
        ({"ratio": "trajectory"}, 0.029495766),
        ({"ratio": "token", "clip_high": 0.28}, 0.018716601),
    ],
)
def test_mean_surrogates_by_level(changes, expected, context):
    method = GRPO(context=context, **PLAIN, **changes)
    found, sums = surrogate(method, batch_of(method))
    assert found == pytest.approx(expected, abs=1e-7)
    clipped = {"token": 0.375, "turn": 0.125, "trajectory": 0.0}[method.ratio]
    if method.clip_high == 0.2:
        assert sums["clip_fraction"] == pytest.approx(clipped, abs=1e-7)
    assert sums["kl_from_behavior"] == pytest.approx(np.mean(np.expm1(MOVED) - MOVED), abs=1e-7)


def test_product_ratios_are_the_ratios_of_turn_and_trajectory():
    for level, axes in (("turn", (2,)), ("trajectory", (1, 2))):
        method = GRPO(ratio=level, ratio_mean=False, clip_low=1.0, clip_high=1e6, **PLAIN)
        units = np.exp(MOVED.sum(axes, keepdims=True)) * np.ones_like(MOVED)
        expected = np.mean(units * np.array([0.5, -0.5, -0.5, 0.5])[:, None, None])
        assert surrogate(method, batch_of(method))[0] == pytest.approx(expected, abs=1e-6)


def test_gspo_by_hand():
    method = GSPO(group_size=4)
    sequence = np.exp(MOVED.mean((1, 2)))
    np.testing.assert_allclose(sequence, [1.133148, 0.939413, 1.105171, 1.147402], atol=1e-6)
    scaled = np.array([1, -1, -1, 1]) * 0.5 / (np.sqrt(1 / 3) + 1e-6)
    clipped = np.minimum(sequence * scaled, np.clip(sequence, 1 - 3e-4, 1 + 4e-4) * scaled)
    assert surrogate(method, batch_of(method))[0] == pytest.approx(clipped.mean(), abs=1e-6)


@pytest.mark.parametrize(
    ("baseline", "expected"),
    [
        ("leave_one_out", [2 / 3, -2 / 3, -2 / 3, 2 / 3]),
        ("none", RETURNS),
        ("batch", np.array([0.8660254, -0.8660254, -0.8660254, 0.8660254])),
    ],
)
def test_reinforce_sums_tokens_and_never_clips(baseline, expected):
    method = REINFORCE(group_size=4, baseline=baseline, tokens=8)
    batch = batch_of(method)
    np.testing.assert_allclose(batch.weights[batch.rows.action_mask], 1 / 4 / 8)
    value = np.sum(np.exp(MOVED) * np.asarray(expected)[:, None, None]) / 4 / 8
    assert surrogate(method, batch)[0] == pytest.approx(value, abs=1e-6)


COMPOUND = {
    "product": (1.169012, -0.823789, -0.866025, 1.578001),
    "mean": (1.006178, -0.844643, -0.866025, 1.169012),
    "clamped": (1.006178, -0.844643, -0.866025, 1.039230),
}


@pytest.mark.parametrize("compound", list(COMPOUND))
def test_seeupo_carries_the_compound_ratio(compound):
    method = SeeUPO(group_size=4, compound=compound)
    last = batch_of(method, Stage((1,)))
    np.testing.assert_allclose(last.advantages[:4, 0] / 0.8660254, [1, -1, -1, 1], atol=1e-5)
    carry = method.carry(Worked(), Policy(None), last, None)
    first = batch_of(method, Stage((0,)), carry)
    np.testing.assert_allclose(first.advantages[:4, 0], COMPOUND[compound], atol=5e-6)
    expected = {"product": 0.256959366, "clamped": 0.075884967}.get(compound)
    if expected is not None:
        assert surrogate(method, first)[0] == pytest.approx(expected, abs=5e-6)


def test_seeupo_without_a_turn_keeps_its_compound_ratio():
    """Chain 1 has one turn: it is no part of the last turn's stage, and its M stays its advantage."""
    method, engine = SeeUPO(group_size=4, scale=None), Worked(lengths=(2, 1, 2, 2))
    last = batch_of(method, Stage((1,)), engine=engine)
    assert sorted(last.rows.trajectory_ids[last.rows.action_mask.any(1)]) == [0, 2, 3]
    assert last.weights.sum() == pytest.approx(1.0)
    carry = method.carry(engine, Policy(None), last, None)
    np.testing.assert_allclose(carry, [np.exp(0.3), 1.0, 1.0, np.exp(0.6)], rtol=1e-5)
    first = batch_of(method, Stage((0,)), carry, engine)
    np.testing.assert_allclose(first.advantages[1, 0], -0.5, atol=1e-6)


def test_seeupo_refreshes_its_denominator_when_asked():
    method = SeeUPO(group_size=4, denominator="current")
    batch = batch_of(method, Stage((1,)))
    mask = batch.rows.action_mask
    np.testing.assert_array_equal(
        batch.rows.behavior_log_probs[mask], moved_log_probs(batch.rows)[mask]
    )
    np.testing.assert_allclose(method.carry(Worked(), Policy(None), batch, None), np.ones(4))


def test_seeupo_pool_scale_is_that_of_the_chains_with_the_turn():
    method, engine = SeeUPO.released_code(group_size=4), Worked(lengths=(2, 1, 2, 2))
    assert (method.compound, method.denominator) == ("clamped", "current")
    batch = batch_of(method, Stage((1,)), engine=engine)
    pool = np.array([0.5, -0.5, 0.5])  # chains 0, 2, 3
    expected = (pool - pool.mean()) / (pool.std(ddof=1) + 1e-6)
    np.testing.assert_allclose(batch.advantages[:3, 0], expected, atol=1e-5)


def test_seeupo_schedules():
    key = jax.random.key(3)

    def turns(**fields):
        return [stage.turns for stage in SeeUPO(**fields).stages(4, key)]

    assert turns() == [(3,), (2,), (1,), (0,)]
    assert turns(order="natural") == [(0,), (1,), (2,), (3,)]
    assert sorted(turns(order="random")) == [(0,), (1,), (2,), (3,)]
    orders = {tuple(SeeUPO(order="random").stages(4, jax.random.key(i))) for i in range(12)}
    assert len(orders) > 3
    assert turns(sequential_turns=2) == [(3,), (2,), (0, 1)]
    assert turns(sequential_turns=4) == turns()
    with pytest.raises(ValueError, match="order='natural'"):
        SeeUPO(order="natural", sequential_turns=2)


def test_seeupo_with_one_turn_is_gspo():
    """A single turn: the turn's geometric ratio is the trajectory's, and nothing is carried."""
    engine = Worked(lengths=(1, 1, 1, 1))
    engine.num_turns = 1
    clip = {"clip_low": 0.1, "clip_high": 0.15}
    gspo = GSPO(group_size=4, scale="batch", **clip)
    seeupo = SeeUPO(group_size=4, **clip)
    expected, sums = surrogate(gspo, batch_of(gspo, engine=engine))
    found, same = surrogate(seeupo, batch_of(seeupo, Stage((0,)), engine=engine))
    assert found == pytest.approx(expected, rel=1e-6) and same == pytest.approx(sums)


@pytest.mark.parametrize("kind", [GRPO, GSPO, REINFORCE, SeeUPO, SOGRPO])
def test_fields_are_checked(kind):
    with pytest.raises(ValueError, match="group_size=1"):
        kind(group_size=1)
    with pytest.raises(ValueError, match="ratio='word'"):
        dataclasses.replace(kind(), ratio="word")


def gradients_of(method, batch):
    """Gradient of each scalar with respect to the log-probabilities [N, T] of the chosen tokens."""
    log_probs = jnp.asarray(moved_log_probs(batch.rows))
    names = method.objective(Scores(log_probs, jnp.zeros_like(log_probs)), batch)[0]
    return {
        name: jax.grad(
            lambda lp, n=name: method.objective(Scores(lp, jnp.zeros_like(lp)), batch)[0][n]
        )(log_probs)
        for name in names
    }


@pytest.mark.parametrize("context", ["recorded", "full_history"])
@pytest.mark.parametrize(
    ("ratio", "gradient_norm", "bias_norm"),
    [("token", 0.107382025, 0.089869806), ("turn", 0.123303138, 0.059655895)],
)
def test_so_grpo_norms_of_gradient_and_clipping_bias(ratio, gradient_norm, bias_norm, context):
    method = SOGRPO(group_size=4, scale=None, ratio=ratio, context=context, normalization="literal")
    batch = batch_of(method)
    gradients = gradients_of(method, batch)
    step, metrics = method.ascent(gradients)
    assert metrics["clipped_gradient_norm"] == pytest.approx(gradient_norm, abs=1e-7)
    assert metrics["clipping_bias_norm"] == pytest.approx(bias_norm, abs=1e-7)
    assert metrics["normalization_scale"] == pytest.approx(1 / bias_norm, rel=1e-5)
    np.testing.assert_allclose(step, gradients["objective"] / bias_norm, rtol=1e-5)
    _, sums = surrogate(method, batch)
    assert sums["token_clip_fraction"] == pytest.approx(0.375, abs=1e-7)
    assert sums["turn_clip_fraction"] == pytest.approx(0.125, abs=1e-7)


def test_so_grpo_gradient_and_bias_add_up_to_the_unclipped_gradient():
    method = SOGRPO(group_size=4, scale=None)
    batch = batch_of(method)
    parts = gradients_of(method, batch)
    wide = dataclasses.replace(method, clip_low=1.0, clip_high=1e6)
    whole = gradients_of(wide, batch)["objective"]
    assert np.abs(parts["clipping_bias"]).max() > 1e-3
    np.testing.assert_allclose(parts["objective"] + parts["clipping_bias"], whole, atol=1e-7)


def test_so_grpo_without_normalization_is_grpo_with_turn_ratios():
    method = SOGRPO(group_size=4, normalization=None)
    batch = batch_of(method)
    assert surrogate(method, batch)[0] == surrogate(GRPO(group_size=4, ratio="turn"), batch)[0]
    (name,) = gradients = gradients_of(method, batch)
    assert method.ascent(gradients) == (gradients[name], {})


def test_so_grpo_with_one_token_a_turn_is_grpo_on_tokens():
    """Then a turn's geometric ratio is its token's, in value and gradient."""
    method, grpo = SOGRPO(group_size=4), GRPO(group_size=4)
    batch = batch_of(grpo)
    first = np.arange(batch.rows.action_mask.shape[1])[None, :] == 0
    rows = dataclasses.replace(
        batch.rows,
        action_mask=batch.rows.action_mask & first,
        turn_ids=np.where(first, batch.rows.turn_ids, -1),
    )
    batch = dataclasses.replace(batch, rows=rows, weights=batch.weights * first)
    np.testing.assert_allclose(
        gradients_of(method, batch)["objective"], gradients_of(grpo, batch)["objective"], atol=1e-8
    )
