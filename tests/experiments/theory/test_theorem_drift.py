"""The drift experiment: verdicts, replays, and its helpers against things worked out separately."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tabular
from experiments import theorem_drift
from experiments.theory import drift_growth, drift_noise, drift_sharing
from experiments.theory.claims import load_counterexample
from experiments.theory.drift_continuations import (
    by_clamp,
    by_horizon,
    first_turns,
    full_length,
    lock_pair,
    member,
    random_pairs,
    two_ratio_pair,
    unbiasedness,
)
from tabular.policy_classes import linear, per_turn_table, shared_logits

FRESH = int(os.environ["FRESH_SEED"])
OPTIONS = (0.2, 1.0, 6)


@pytest.fixture(scope="module")
def findings():
    with jax.enable_x64(True):
        return theorem_drift.run(theorem_drift.PRESETS["tiny"])


@pytest.fixture(scope="module")
def pairs():
    with jax.enable_x64(True):
        return random_pairs(np.random.default_rng(FRESH), 20, theorem_drift.SIZES, 0.5)


def test_every_claim_is_as_expected(findings):
    assert [claim.claim for claim in findings.claims if not claim.as_expected] == []
    violated = [claim for claim in findings.claims if not claim.expected]
    assert len(violated) == 10 and all(claim.counterexample for claim in violated)


def test_counterexamples_replay_from_their_files(findings, tmp_path):
    assert set(findings.counterexamples) == {claim.counterexample for claim in findings.claims} - {
        ""
    }
    for name, counterexample in findings.counterexamples.items():
        counterexample.save(tmp_path / f"{name}.json")
        found = theorem_drift.replay(load_counterexample(tmp_path / f"{name}.json"))
        assert found.keys() == counterexample.numbers.keys()
        for key, number in counterexample.numbers.items():
            assert abs(found[key] - number) < 1e-12, f"{name} {key}"


def test_identities_on_fresh_mdps(pairs):
    claims = unbiasedness(pairs, 0.2)[0] + drift_growth.claims(pairs) + drift_noise.claims(pairs)[0]
    assert [claim.claim for claim in claims if not claim.as_expected] == [], f"{FRESH=}"


def test_counterexamples_by_hand():
    # Lock of three turns, p .2 -> .4 at the later two: Q of the right action .04 -> .16, taken with
    # probability .2 in both cases.
    numbers = drift_noise.noise_rises(0.2, 0.4).numbers
    assert numbers["performance before"] == pytest.approx(0.2**3, rel=1e-14)
    assert numbers["performance after"] == pytest.approx(0.2 * 0.4**2, rel=1e-14)
    assert numbers["noise before"] == pytest.approx(0.2 * 0.04 * 0.96, rel=1e-14)
    assert numbers["noise after"] == pytest.approx(0.2 * 0.16 * 0.84, rel=1e-14)
    numbers = drift_noise.product_of_clips(1.5, 0.5).numbers
    expected = {"product": 0.75, "clip of product": 0.8, "product of clips": 0.96}
    assert {name: pytest.approx(numbers[name], rel=1e-14) for name in expected} == expected


def test_lock_errors_by_hand():
    # After the right action in the alive state, with N turns to follow: policy .75^N, behaviour .5^N.
    # The other three entries are 0; an outcome of probability p has variance p (1 - p).
    rows = by_horizon("lock", [lock_pair(5, 1.5)], 0.2)
    found = {(row["mode"], row["remaining_turns"]): row for row in rows}
    for later in range(5):
        p, old = 0.75**later, 0.5**later
        assert found["fresh", later]["mean_abs_bias"] == pytest.approx(0.0, abs=1e-15)
        assert found["fresh", later]["mean_variance"] == pytest.approx(p * (1 - p) / 4, abs=1e-15)
        assert found["stale", later]["mean_abs_bias"] == pytest.approx((p - old) / 4, abs=1e-15)
        clipped = found["clipped", later]
        assert clipped["mean_abs_bias"] == pytest.approx((p - 0.6**later) / 4, abs=1e-15)
        second = old * 1.5 ** (2 * later)
        exact = found["exact", later]
        assert exact["mean_variance"] == pytest.approx((second - p**2) / 4, abs=1e-14)
        square = (p - 0.6**later) ** 2 + old * 1.2 ** (2 * later) - 0.36**later
        assert clipped["rmse"] == pytest.approx((square / 4) ** 0.5, abs=1e-12)


def test_a_clamp_to_one_is_no_weight_and_a_wide_one_is_exact():
    pair = two_ratio_pair(np.random.default_rng(FRESH), 8, 1.5)
    narrow, wide = by_clamp([pair], (1.0, 1e9))
    rows = {r["mode"]: r for r in by_horizon("x", [pair], 0.2) if r["remaining_turns"] == 7}
    for name in ("mean_abs_bias", "mean_variance", "rmse"):
        assert narrow[name] == pytest.approx(rows["stale"][name], rel=1e-10, abs=1e-12), f"{FRESH=}"
        assert wide[name] == pytest.approx(rows["exact"][name], rel=1e-10, abs=1e-12), f"{FRESH=}"


def test_fitted_rate_of_an_exponential():
    horizons = np.arange(1, 20)
    slope, r_squared = drift_growth.fitted_rate(horizons, 1.3**horizons - 1.0)
    assert slope == pytest.approx(np.log(1.3), rel=1e-12)
    assert r_squared == pytest.approx(1.0, abs=1e-12)


def test_token_moments_by_brute_force(pairs):
    pair = member(pairs, 0)
    behavior, policy = np.asarray(pair.behavior)[2, 1], np.asarray(pair.policy)[2, 1]
    # Actions 0..3 are the strings 00, 01, 10, 11.
    expected = []
    for groups in ([(0, 1), (2, 3)], [(0,), (1,)], [(2,), (3,)]):
        old = np.array([behavior[list(group)].sum() for group in groups])
        new = np.array([policy[list(group)].sum() for group in groups])
        old, new = old / old.sum(), new / new.sum()
        expected.append((old * (new / old) ** 2).sum())
    found = drift_growth._token_moments(pair)[2, 1]
    np.testing.assert_allclose(found, expected, rtol=1e-13, err_msg=f"{FRESH=}")


def test_features_are_the_policy_classes():
    rng = np.random.default_rng(FRESH)
    sizes = (3, 2, 4)
    features = drift_sharing.class_features(sizes, rng)
    params = jnp.asarray(rng.normal(size=24))
    expected = per_turn_table(sizes).policy(params.reshape(sizes))
    np.testing.assert_allclose(linear(features["per-turn table"]).policy(params), expected)
    expected = shared_logits(sizes).policy(params[:8].reshape(2, 4))
    np.testing.assert_allclose(linear(features["shared logits"]).policy(params), expected)
    assert np.ptp(linear(features["linear features"]).policy(params), axis=0).max() > 1e-3


def one_stage(pairs, turn, epochs=1):
    """A stage with a table per turn on one MDP: before, after and what changed."""
    pair = full_length(first_turns(member(pairs, 3), 4))
    sizes = pair.policy.shape
    table = drift_sharing.class_features(sizes, np.random.default_rng(0))["per-turn table"]
    params = jnp.log(pair.policy).ravel()
    trunk = tabular.occupancy(pair.mdp, pair.behavior)
    after, found = drift_sharing.stage_shifts(
        table, pair.mdp, params, trunk, turn, (0.2, 0.5, epochs)
    )
    return pair, trunk, (after - params).reshape(sizes), found


def test_the_first_step_of_a_stage_is_the_masked_policy_gradient(pairs):
    pair, trunk, step, found = one_stage(pairs, 2)
    advantages = tabular.advantages(pair.mdp, pair.policy)[2]
    expected = np.zeros(step.shape)
    expected[2] = 0.5 * trunk[2][:, None] * pair.policy[2] * advantages
    np.testing.assert_allclose(step, expected, atol=1e-14, err_msg=f"{FRESH=}")
    drift = abs(trunk - tabular.occupancy(pair.mdp, pair.policy))[2].sum() / 2
    assert found["trunk_tv"] == pytest.approx(float(drift), rel=1e-12)
    assert drift > 1e-3


def test_shifts_by_hand(pairs):
    pair = full_length(member(pairs, 1))
    found = drift_sharing.shifts(pair.mdp, pair.behavior, pair.policy, 3)
    old, new = np.asarray(pair.behavior), np.asarray(pair.policy)
    assert found["downstream_tv"] == pytest.approx(abs(old - new)[4:].sum(-1).max() / 2, rel=1e-13)
    kl = (old * np.log(old / new)).sum(-1)[4:].max()
    assert found["downstream_kl"] == pytest.approx(kl, rel=1e-12)
    # Two turns follow turn 3.
    transitions = np.asarray(pair.mdp.transitions)
    squares = (new**2 / old).sum(-1)
    moment = np.einsum("sa,sat,t->s", (new**2 / old)[4], transitions[4], squares[5])
    assert found["weight_variance"] == pytest.approx((moment - 1.0).mean(), rel=1e-12), f"{FRESH=}"
    # Only turn 3 changes: nothing after it does, and the values before it do.
    found = drift_sharing.shifts(
        pair.mdp, old, np.where(np.arange(6)[:, None, None] == 3, new, old), 3
    )
    assert found["downstream_tv"] == found["downstream_kl"] == found["value_shift"] == 0.0
    assert abs(found["gain"]) > 1e-6, f"{FRESH=}"


def test_only_shared_parameters_move_other_turns(pairs):
    short = jax.vmap(lambda pair: full_length(first_turns(pair, 4)))(pairs)
    _, rows, _ = drift_sharing.measure(short, np.random.default_rng(FRESH), OPTIONS)
    for row in rows:
        moves = row["class"] != "per-turn table" and row["turn"] < 3
        assert (row["mean_downstream_tv"] > 1e-3) == moves, f"{FRESH=} {row}"
        assert (row["mean_weight_variance"] > 1e-5) == moves
        stale = row["class"] != "per-turn table" and row["turn"] in (1, 2)
        assert (row["mean_trunk_tv"] > 1e-4) == stale, f"{FRESH=} {row}"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_mdps": 1}, "num_mdps=1: give 2 or more"),
        ({"ratio": 2.0}, "ratio=2.0: give a number between 1 and 2"),
        ({"clip": 0.0}, "clip=0.0"),
        ({"epochs": 1}, "epochs=1"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        theorem_drift.Config(**options)
