"""Theorem 1 experiment: instances by hand, replays, statistics on made-up data, a whole run."""

import dataclasses
import itertools
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import theorem_convergence as experiment
from experiments.theory import (
    claims,
    convergence_learning,
    convergence_rates,
    convergence_restricted,
    convergence_steps,
    convergence_updates,
    intervals,
)
from experiments.theory.command import run_and_write
from tabular.learning.q_learning import Steps


@pytest.fixture(scope="module")
def saved():
    with jax.enable_x64(True):
        return {
            **convergence_restricted.instances(),
            **convergence_steps.coins(),
            "natural_order": convergence_restricted.natural_order(),
            "slow_branch": convergence_updates.lost_branch(),
            "absent_minded": convergence_restricted.forgetful(),
        }


def test_numbers_of_the_instances_by_hand(saved):
    limit, best, optimum = (
        "performance_limit",
        "performance_best_of_class",
        "performance_optimal",
    )
    expected = {
        "natural_order": (0.5, 0.9, 0.9),
        "unvisited_state": (0.5, 0.9, 0.9),
        "stale_continuations": (0.5, 0.9, 0.9),
        "merged_context": (0.5, 0.5, 1.0),
        "tied_states": (2 / 3, 1.0, 1.0),
        "forbidden_action": (0.5, 0.5, 0.9),
    }
    for name, numbers in expected.items():
        found = [saved[name].numbers[key] for key in (limit, best, optimum)]
        np.testing.assert_allclose(found, numbers, atol=1e-12, err_msg=name)
    slow = saved["slow_branch"].numbers
    assert abs(slow["performance_before"] - (0.7 + 0.7 + 1 / 3) / 3) < 1e-12
    assert abs(slow["performance_after_sweeps"] - 0.7) < 1e-12
    assert abs(slow["performance_converged_turns"] - 1.0) < 1e-12
    forgetful = saved["absent_minded"].numbers
    assert forgetful["performance_deterministic"] == 0.25
    assert abs(forgetful["performance_stochastic"] - 1 / 3) < 1e-12
    assert abs(forgetful["performance_ascent"] - 1 / 3) < 1e-3


def test_coins_by_hand(saved):
    """alpha/(2-alpha) Var(Y) within 5 standard errors of 64 runs; prod (1 - 1/(i+1)^2) in full."""
    constant, summable = (saved[f"{name}_steps"].numbers for name in ("constant", "summable"))
    plateau = 0.05 / 1.95 / 4
    assert constant["expected_squared_error"] == pytest.approx(plateau, rel=1e-9)
    assert abs(constant["squared_error"] - plateau) < 5 * np.sqrt(2 / 64) * plateau
    assert constant["expected_squared_error_with_1/i"] == pytest.approx(0.25 / 4096)
    left = 4098 / (2 * 4097)
    assert summable["learned"] == pytest.approx(1 - left, abs=1e-12)
    assert summable["squared_error"] == pytest.approx(left**2, abs=1e-12)
    assert summable["expected_squared_error_with_1/i"] == 0.0


@pytest.mark.parametrize(
    "name", ["tied_states", "natural_order", "constant_steps", "slow_branch", "absent_minded"]
)
def test_replay_gives_the_saved_numbers(saved, name, tmp_path):
    path = tmp_path / f"{name}.json"
    saved[name].save(path)
    found = experiment.replay(claims.load_counterexample(path))
    assert set(found) == set(saved[name].numbers)
    for key, number in saved[name].numbers.items():
        assert abs(found[key] - number) <= 1e-12, key


def test_replay_refuses_other_kinds(saved):
    strange = dataclasses.replace(saved["tied_states"], settings={"kind": "other"})
    with pytest.raises(ValueError, match="kind='other'"):
        experiment.replay(strange)


def test_no_smaller_tied_instance():
    """Bound 3 by brute force over all four entries, with both orders of the actions."""
    found = np.rint(convergence_restricted.smallest_tied() * 3).astype(int)
    assert found.sum(0)[0] > found.sum(0)[1] and found.max(0)[0] < found.max(0)[1]
    assert found.max() == 3
    for a, b, c, d in itertools.product(range(3), repeat=4):
        assert not (a + b > c + d and max(a, b) < max(c, d))
    with pytest.raises(ValueError, match="largest=2"):
        convergence_restricted.smallest_tied(2)


def test_rate_claim_measures_the_exponent():
    # Seeds agree: no tolerance beyond .06, and the mean over turns is .1 away from the rate.
    law = 3.0 * np.arange(1, 1025) ** (-0.5 - 0.1 * np.arange(3)[:, None])
    errors = np.broadcast_to(law[::-1], (2, 4, 3, 1024))
    np.testing.assert_allclose(convergence_rates.exponents(errors), [-0.5, -0.6, -0.7])
    claim = convergence_rates.rate_claim("1/i", -0.5, errors, "here")
    assert abs(claim.worst - 0.1) < 1e-12 and abs(claim.bound - 0.06) < 1e-12 and not claim.holds
    rows = convergence_rates.rate_rows("1/i", -0.5, errors)
    assert [row["turn"] for row in rows] == [0, 1, 2] and rows[2]["exponent"] < -0.69


def test_rate_tolerance_is_the_noise_of_the_fit():
    """Seeds with factors n^e, e small: the interval is that of the mean of e, to first order."""
    seed = int(os.environ["FRESH_SEED"])
    tilt = 1e-3 * np.random.default_rng(seed).normal(size=8)
    samples = np.arange(1, 1025) / 256.0
    errors = np.broadcast_to(samples ** (-0.5 + tilt[:, None, None]), (2, 8, 3, 1024))
    claim = convergence_rates.rate_claim("1/i", -0.5, errors, "here")
    # 2.3646 is the quantile of t with 7 degrees of freedom.
    assert claim.bound - 0.06 == pytest.approx(2.3646 * tilt.std(ddof=1) / 8**0.5, rel=0.02), seed
    assert claim.holds


def test_half_width_is_students():
    """n = 3, standard deviation 1: 4.30265 / sqrt 3, from tables."""
    assert abs(intervals.half_width(np.array([0.0, 1.0, 2.0])) - 4.30265 / 3**0.5) < 1e-4
    assert abs(intervals.half_width(np.tile([0.0, 2.0], 5000)) - 1.96 / 100) < 1e-4
    assert intervals.half_width(np.zeros((2, 5))).shape == (5,)
    with pytest.raises(ValueError, match="values has 1 draws"):
        intervals.half_width(np.zeros(1))


def test_order_claim_is_corrected_for_the_number_of_orders():
    """Quantile .998 of t with 7 degrees of freedom, from tables, is 4.207."""
    even = np.array([0.0, 2.0] * 4) - 1.0
    scale = even.std(ddof=1) / 8**0.5
    more = np.array([even + 1.0, even - 4.1 * scale, even, even, even])
    claim = convergence_learning.order_claim(more, "here")
    assert claim.worst == pytest.approx(-4.1) and claim.holds
    assert claim.bound == pytest.approx(-4.207, abs=1e-3)
    assert not convergence_learning.order_claim(more - 0.2 * scale, "here").holds
    assert not convergence_learning.order_claim(more[:2], "here").holds


def test_law_claim_is_a_z_score():
    rng = np.random.default_rng(0)
    predicted = np.full((40, 50), 2.0)
    observed = predicted + rng.normal(size=predicted.shape)
    law = convergence_learning.Law(observed, predicted, predicted, predicted)
    assert convergence_learning.law_claim("1/i", law, "here", 1).worst < 5
    shifted = law._replace(observed=observed + 0.2)
    assert convergence_learning.law_claim("1/i", shifted, "here", 1).worst > 5


def test_error_law_predicts_weighted_sums():
    """Tables made by hand as weighted sums of Bernoulli draws, too few to forget the start."""
    seed = int(os.environ["FRESH_SEED"])
    rng = np.random.default_rng(seed)
    mdps = convergence_learning.draw_mdps(jax.random.key(seed), 1, 0.0)
    rewards = np.asarray(mdps.rewards[0, -1])  # the last turn: Y is a Bernoulli reward
    alpha, visits, runs = 0.3, 6, 400
    tables = np.zeros((1, runs, 3, 3, 3))
    for _ in range(visits):
        draws = rng.random((runs, 3, 3)) < rewards
        tables[0, :, 2] += alpha * (draws - tables[0, :, 2])
    policy = np.zeros((1, runs, 3, 3, 3))
    policy[..., 0] = 1.0
    counts = np.zeros_like(tables)
    counts[:, :, 2] = visits
    learned = convergence_learning.Learned(
        jnp.asarray(policy), jnp.asarray(tables), jnp.asarray(counts), jnp.zeros((1, runs, 3, 1))
    )
    law = convergence_learning.error_law(mdps, learned, Steps(alpha, 0.0), 8)
    # Turns 0 and 1 were never visited: their errors are those of the start, the same on both sides.
    gap = (law.observed - law.predicted).ravel()
    assert abs(gap.mean()) < 5 * gap.std(ddof=1) / runs**0.5, f"{seed=}"
    assert gap.std() > 0.01, f"{seed=}"
    left = law.remembered.mean()
    weights = np.asarray(law_targets(mdps, policy))
    expected = 1 - (1 - 0.7**visits) * (weights[2] ** 2).sum() / (weights**2).sum()
    assert abs(left - expected) < 5 * law.remembered.std(ddof=1) / runs**0.5, f"{seed=}"


def law_targets(mdps, policy):
    """Action values of the policy by plain recursion, [H, S, A]."""
    following, found = np.zeros(3), []
    for turn in (2, 1, 0):
        values = np.asarray(mdps.rewards[0, turn] + mdps.transitions[0, turn] @ following)
        following = (policy[0, 0, turn] * values).sum(-1)
        found.append(values)
    return np.array(found[::-1])


def test_gaps_and_summaries_by_hand():
    best = np.array([1.0, 2.0])
    path = np.array([[0.0, 0.5, 1.0], [1.0, 1.5, 1.75]])
    np.testing.assert_allclose(
        convergence_updates.relative_gap(best, path), [[1, 0.5, 0], [1, 0.5, 0.25]]
    )
    found = convergence_updates.summary(best, path)
    assert found["optimal_share"] == 0.5 and found["mean_sweeps"] == 2
    assert found["largest_sweeps"] == 2 and found["largest_loss"] == 0.25


def test_orders_are_permutations():
    drawn = convergence_updates.sweep_orders("random", jax.random.key(3), 30)
    assert (np.sort(drawn, axis=1) == np.arange(3)).all() and len(np.unique(drawn, axis=0)) > 3
    assert convergence_updates.sweep_orders("natural", None, 1).tolist() == [[0, 1, 2]]
    assert convergence_updates.sweep_orders("reverse", None, 1).tolist() == [[2, 1, 0]]


@pytest.mark.parametrize(
    "change, message",
    [
        ({"num_seeds": 1}, "num_seeds=1: give 2 or more"),
        ({"num_mdps": 10}, "num_mdps=10: give 100 or more"),
        ({"sibling_counts": (2, 3)}, "sibling_counts has 3"),
        ({"sibling_counts": (1,)}, "sibling_counts has 1"),
        ({"num_searched": 301}, "num_searched=301"),
    ],
)
def test_impossible_options_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        experiment.Config(**change)


@pytest.mark.slow
def test_a_fresh_tiny_run_is_as_expected(tmp_path):
    from rich.console import Console

    seed = int(os.environ["FRESH_SEED"])
    config = dataclasses.replace(experiment.PRESETS["tiny"], seed=seed)
    found = run_and_write(experiment.EXPERIMENT, config, tmp_path, Console(quiet=True))
    wrong = [claim.row() for claim in found.claims if not claim.as_expected]
    assert not wrong, f"{seed=} {wrong}"
    assert (tmp_path / "convergence_updates.png").stat().st_size > 10_000
