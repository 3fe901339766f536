"""Closed forms: their algebra, and exactness where their assumptions hold."""

import os

import numpy as np
import pytest

from tabular.regimes import allocation, families, group_gradient, rules

FRESH = int(os.environ["FRESH_SEED"])


def test_rtpo_rule_is_the_model_it_is_derived_from():
    rng = np.random.default_rng(FRESH)
    within = np.append(1.0, rng.random(6))
    turns, rows = len(within), 3.0
    flat = (turns / rows) * (rows * turns)
    forked = (within / rows).sum() * (rows * np.arange(turns, 0, -1).sum())
    assert rules.rtpo_rule(within) == pytest.approx(flat / forked, rel=1e-12), FRESH


def test_fork_rule_is_the_best_split_of_two_estimates():
    turns, first, within = 8, 3, 0.2
    fraction = first / turns

    def ratio(share):
        flat = first * turns / share
        tails = (turns - first) * within * (turns - first) / (1 - share)
        return turns**2 / (flat + tails)

    shares = np.linspace(0.001, 0.999, 9981)
    best = max(shares, key=ratio)
    assert rules.fork_share(fraction, within) == pytest.approx(best, abs=2e-4)
    assert rules.fork_rule(fraction, within) == pytest.approx(ratio(best), rel=1e-6)


@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.9])
def test_break_even_and_bound(fraction):
    limit = rules.break_even(fraction)
    assert rules.fork_rule(fraction, limit) == pytest.approx(1.0, rel=1e-12)
    assert rules.fork_rule(fraction, 0.9 * limit) > 1 > rules.fork_rule(fraction, limit + 0.01)
    assert rules.fork_rule(fraction, 0.0) == pytest.approx(1 / fraction, rel=1e-12)


def test_signal_rule_is_exact_for_a_single_coin():
    """Only the last turn matters, p = 1/2: its fork costs 1 instead of K at the same variance."""
    moments = group_gradient.group_moments(*families.late_case(6, 1, 0.5))
    flat = allocation.flat(moments, 8)
    rule = rules.signal_rule(moments, flat.variances * 8)
    np.testing.assert_allclose(rule, 6 / np.arange(6, 0, -1), rtol=1e-9)
    kinds = allocation.candidates(moments, tails=True, sizes=(8,))
    exact = kinds.precisions[1:, -1] / kinds.costs[1:] / (kinds.precisions[0, -1] / kinds.costs[0])
    np.testing.assert_allclose(rule[1:], exact, rtol=1e-9)


def test_signal_rule_divides_by_the_open_share():
    lock = families.lock_case(4, 0.7)
    lucky = families.with_additive_luck(lock, 0, 1.0)
    scores = []
    for case in (lock, lucky):
        moments = group_gradient.group_moments(*case)
        variances = allocation.flat(lock_moments := group_gradient.group_moments(*lock)).variances
        scores.append(rules.signal_rule(moments, variances * 8))
    # Luck of variance 1 multiplies 1/w after turn 0 by 1 + 1 / Var R of the lock.
    outcome = 0.7**4 * (1 - 0.7**4)
    np.testing.assert_allclose(scores[1][1:] / scores[0][1:], 1 + 1 / outcome, rtol=1e-9)
    assert scores[1][0] == pytest.approx(scores[0][0]) == pytest.approx(1.0)
    assert lock_moments.signals[0] > 0


def test_late_rule_counts_rows():
    """K = 9, m = 2, n = 8: 16 rows for 9 + 7 x 3 turns, flat 2 for 9; times 1/w."""
    assert rules.late_rule(9, 2, 8) == pytest.approx((16 / 30) / (2 / 9))
    assert rules.late_rule(9, 2, 8, 0.5) == pytest.approx(4.8)
    moments = group_gradient.group_moments(*families.late_case(9, 2, 0.5))
    # The rows of the rule are those of the schedule.
    cost = allocation.rtpo(moments, 8, trunk=True, turns=[7, 8]).cost
    assert cost == pytest.approx(30.0, rel=1e-12)


def test_late_rule_is_exact_for_a_single_coin():
    moments = group_gradient.group_moments(*families.late_case(9, 1, 0.5))
    last = allocation.rtpo(moments, 8, trunk=True, turns=[8])
    signals = moments.signals
    exact = allocation.information_rate(last, signals) / allocation.information_rate(
        allocation.flat(moments, 8), signals
    )
    assert rules.late_rule(9, 1, 8) == pytest.approx(exact, rel=1e-9)


def test_best_split_is_the_best():
    rng = np.random.default_rng(FRESH)
    variances, costs = rng.random(5) + 0.1, rng.random(5) + 0.1
    split = rules.best_split(variances, costs)

    def value(shares):
        return (variances * costs / shares).sum()

    assert split.value == pytest.approx(value(split.shares), rel=1e-12)
    others = rng.dirichlet(np.ones(5), 500)
    assert min(value(shares) for shares in others) > split.value, f"seed={FRESH}"


def test_even_schedules_lose_at_most_an_eighth():
    turns = np.arange(1, 2001)
    even = len(turns) * turns.sum()
    split = rules.best_split(np.ones(len(turns)), turns)
    assert even / split.value == pytest.approx(9 / 8, rel=1e-3)


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.2])
def test_refusals(fraction):
    for function in (rules.break_even, lambda f: rules.fork_rule(f, 0.5)):
        with pytest.raises(ValueError, match="fraction="):
            function(fraction)
    with pytest.raises(ValueError, match="critical is 5"):
        rules.late_rule(4, 5, 8)
    with pytest.raises(ValueError, match="size is 1"):
        rules.late_rule(4, 1, 1)


def test_signal_rule_adds_up_what_every_turn_tells():
    """Unequal turns and lengths: signal |g_l|^4 / v_l, per cost and per open share, by a loop."""
    moments = group_gradient.group_moments(*families.chain_case(5, 2, 0.3, setback=1))
    variances = np.random.default_rng(FRESH).random(5) + 0.1
    found = rules.signal_rule(moments, variances)
    reach, left = np.asarray(moments.occupancy), np.asarray(moments.turns_left)
    for fork in range(5):
        cost = [sum(reach[k, s] * left[k, s] for s in range(2)) for k in (fork, 0)]
        open_at = [reach[k] @ np.asarray(moments.returns)[k, :, k] for k in (fork, 0)]
        told = [sum(float(moments.signals[turn]) ** 2 / variances[turn] for turn in range(k, 5))
                for k in (fork, 0)]  # fmt: skip
        expected = told[0] / told[1] / (open_at[0] / open_at[1]) / (cost[0] / cost[1])
        assert found[fork] == pytest.approx(expected, rel=1e-9), f"{FRESH=} {fork=}"
