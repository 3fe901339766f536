"""The regimes experiment: a tiny run, its claims, files, counterexamples and refusals."""

import csv
import dataclasses
import os

import jax
import numpy as np
import pytest
from rich.console import Console

from experiments import regimes, theory
from experiments.theory import regime_checks, regime_enumeration, regime_tables
from experiments.theory.claims import load_counterexample
from experiments.theory.regime_families import FAMILIES, critical_case, phase_case
from tabular import TurnMDP, performance
from tabular.regimes import allocation, families, group_gradient

FRESH = int(os.environ["FRESH_SEED"])


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A tiny run with a fresh seed, written with its figures."""
    directory = tmp_path_factory.mktemp("regimes")
    config = dataclasses.replace(regimes.PRESETS["tiny"], seed=FRESH)
    with jax.enable_x64(True):
        findings = theory.run_and_write(regimes.EXPERIMENT, config, directory, Console(quiet=True))
    return findings, directory


def rows(directory, name):
    with (directory / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


def test_every_claim_comes_out_as_expected(written):
    findings, _ = written
    surprises = [c.row() for c in findings.claims if not c.as_expected]
    assert not surprises, f"seed={FRESH}"
    failing = [c for c in findings.claims if not c.expected]
    assert len(failing) == 4
    # Violations are far outside rounding.
    for claim in failing:
        assert abs(claim.worst - claim.bound) > 0.01 * abs(claim.bound)
    assert theory.exit_code(findings.claims) == 0


def test_counterexamples_replay_from_their_files(written):
    findings, directory = written
    for name in findings.counterexamples:
        loaded = load_counterexample(directory / "counterexamples" / f"{name}.json")
        again = regimes.replay(loaded)
        for key, stored in loaded.numbers.items():
            assert abs(again[key] - stored) < 1e-12 * max(1, abs(stored)), f"{name} {key}"
    lock = findings.counterexamples["rtpo_on_a_lock"].numbers
    assert lock["rtpo_ratio"] < 0.5
    beyond = findings.counterexamples["rtpo_beyond_its_rule"].numbers
    assert beyond["rtpo_ratio"] > 2 * 2
    late = findings.counterexamples["gain_beyond_k_over_k1"].numbers
    assert late["fork_ratio"] > 2 * 5 / 3
    tails = findings.counterexamples["tails_share_a_trunk"].numbers
    assert tails["tails_cost"] > 1.05 * tails["tails_cost_if_independent"]


def test_tables_say_what_the_theory_says(written):
    _, directory = written
    table = {row["family"]: row for row in rows(directory, "families")}
    for row in table.values():
        # What may use more kinds of groups is never worse.
        assert float(row["flat_siblings_best"]) > 1 - 1e-5
        assert float(row["oracle_tails_best"]) > float(row["flat_tails_best"]) - 1e-5
        assert float(row["siblings_best"]) > float(row["paper_n2"]) - 1e-5
        assert float(row["m3_flat_tails_free_trunks"]) > float(row["m3_flat_tails_best"]) - 1e-5
    ends = table["lock K5 p.7, ends at error"]
    assert float(ends["rtpo_4_counted"]) < float(ends["rtpo_4"])
    for row in rows(directory, "phase_map_1"):
        assert float(row["flat_tails_best"]) > float(row["fork_tails"]) * 0.99
    by_luck = [float(r["rtpo_4"]) for r in rows(directory, "phase_map_1") if r["luck_after"] == "0"]
    assert by_luck == sorted(by_luck)
    assert (directory / "families.png").stat().st_size > 10_000
    assert (directory / "phase_maps.pdf").exists()


def test_the_sampled_table_is_not_the_exact_one(written):
    _, directory = written
    for row in rows(directory, "sampled"):
        assert row["exact"] != row["sampled"]
        assert 0 < float(row["standard_error"]) < 0.2 * float(row["exact"])


def test_selection_by_returns_notices_a_wrong_factor():
    """The rule holds for outcomes 0 and 1; doubled outcomes double the left side only."""
    mdp, policy = families.lock_case(3, 0.6)
    options = {"boundary": 1, "state": 0, "turn": 1, "size": 3, "noise": 0.5}
    groups = regime_checks.all_groups(mdp, policy, **options)
    assert regime_checks.selection_error(groups) < 1e-12
    wrong = groups._replace(covariances=2.0 * groups.covariances)
    assert regime_checks.selection_error(wrong) > 0.01


def test_enumeration_by_hand():
    """One turn, p = 1/2, reward 0 or 1, n = 2: C is +-(1/4, -1/4) x 2 or 0, half of the time."""
    mdp = TurnMDP(np.ones((1, 1, 2, 1)), np.array([[[1.0, 0.0]]]), np.ones(1))
    groups = regime_checks.all_groups(
        mdp, np.full((1, 1, 2), 0.5), boundary=0, state=0, turn=0, size=2, noise=0.0
    )
    # Equal actions: 0. Different: (1/2)(1 x (1/2, -1/2) - 1 x (-1/2, 1/2)) = (1/2, -1/2).
    mean, variance = regime_checks.mean_and_variance(groups)
    np.testing.assert_allclose(mean, [0.25, -0.25, 0.0], atol=1e-15)
    assert abs(variance - (0.5 * 0.5 - 0.125)) < 1e-15


def test_sampling_reproduces_the_success_probability():
    """Spread of a one-turn group: with probability 2p(1-p) the squared norm is 1/2, n = 2."""
    mdp, policy = families.lock_case(2, 0.3, ends_at_error=True)
    mean, error = regime_checks.sampled_squares(
        jax.random.key(FRESH), mdp, policy, boundary=1, size=2, groups=20_000, noise=0.5
    )
    # Turn 1 is reached with probability .3; then one of two right with .42, |C|^2 = 2 (1/2)^2 plus
    # half of the difference of two irrelevant coordinates, squared: .5 / 2.
    assert mean[0] == error[0] == 0.0
    assert abs(mean[1] - 0.3 * 0.42 * 0.75) < 5 * error[1], f"seed={FRESH}"


def test_maps_are_locks_with_the_stated_success():
    for case in (phase_case(5, 2, 1.0), critical_case(5, 5, 0.5)):
        assert abs(float(performance(*case)) - 0.3) < 1e-12
    assert abs(float(performance(*critical_case(5, 2, 1.0))) - 0.99**3 * 0.25) < 1e-12


def test_rows_agree_with_direct_calls():
    moments = group_gradient.group_moments(*FAMILIES["lock K5 p.7"].make())
    flat = allocation.variance_cost(allocation.flat(moments, 8))
    (two, *_) = regime_tables.variant_rows("lock K5 p.7")
    assert two["excluded"] == flat / allocation.variance_cost(allocation.rtpo(moments, 2))
    assert two["same_cost"] == flat / allocation.variance_cost(
        allocation.rtpo(moments, 3, trunk=True)
    )


def test_enumerated_claims_fail_on_a_wrong_formula(monkeypatch):
    """Without the |c|^2 term the variance claim is violated by far more than its bound."""
    right = regime_enumeration.sampling_variance

    def wrong(moments, size):
        return right(moments._replace(covariances=0.0 * moments.covariances), size)

    monkeypatch.setattr(regime_enumeration, "sampling_variance", wrong)
    variance, *others = regime_enumeration.enumeration_claims(FRESH, 1)
    assert variance.worst > 1e-6, f"seed={FRESH}"
    assert all(claim.holds for claim in others), f"seed={FRESH}"


def test_baseline_claim_fails_if_the_own_return_is_included(monkeypatch):
    def wrong(returns):
        return returns - returns.mean(1, keepdims=True)

    monkeypatch.setattr(regime_enumeration, "group_advantages", wrong)
    _, _, baseline, _ = regime_enumeration.enumeration_claims(FRESH, 1)
    assert baseline.worst > 1e-3, f"seed={FRESH}"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_mdps": 0}, "num_mdps=0"),
        ({"groups": 5}, "groups=5"),
        ({"sampled_cases": 0}, "sampled_cases=0"),
        ({"map_turns": (2,)}, "map_turns"),
        ({"critical_turns": ()}, "critical_turns"),
        ({"map_luck": (-1.0, 2.0)}, "map_luck"),
        ({"map_luck": (0.5,)}, "a luck of 1 or more"),
    ],
)
def test_impossible_configurations_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        regimes.Config(**options)
