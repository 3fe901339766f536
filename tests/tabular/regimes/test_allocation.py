"""Schedules and their measures by hand, by simulation and in limits."""

import os

import numpy as np
import pytest

from tabular.regimes import allocation, families, group_gradient, group_variance

FRESH = int(os.environ["FRESH_SEED"])


def moments_of(case, **options):
    return group_gradient.group_moments(*case, **options)


def coin_variances(size, num_turns):
    """Only the last of K turns matters, p = 1/2, eta = 1: everything is a constant.

    |z|^2 = 1/2 + 1 and x^2 = 1/4 always; c = 0 but for the last turn, where x z = (1/4, -1/4) always
    and |c|^2 = 1/8.
    """
    product = 0.25 * 1.5
    variances = np.full(num_turns, (product + product / (size - 1)) / size)
    variances[-1] -= (size - 2) / (size - 1) / 8 / size
    return variances


@pytest.mark.parametrize("num_turns", [3, 8])
def test_schedules_by_hand_where_only_the_last_turn_matters(num_turns):
    moments = moments_of(families.late_case(num_turns, 1, 0.5))
    flat = allocation.flat(moments, 8)
    np.testing.assert_allclose(flat.variances, coin_variances(8, num_turns), rtol=1e-12)
    assert flat.cost == pytest.approx(8 * num_turns, rel=1e-12)
    tree = num_turns * (num_turns + 1) / 2
    for size, trunk, siblings in ((2, False, 2), (4, True, 3)):
        found = allocation.rtpo(moments, size, trunk=trunk)
        np.testing.assert_allclose(found.variances, coin_variances(size, num_turns), rtol=1e-12)
        assert found.cost == pytest.approx(num_turns + siblings * tree, rel=1e-12)
    last = allocation.rtpo(moments, 4, trunk=True, turns=[num_turns - 1])
    assert np.isinf(last.variances[:-1]).all() and np.isfinite(last.variances[-1])
    assert last.cost == pytest.approx(num_turns + 3, rel=1e-12)
    assert allocation.variance_cost(flat) == pytest.approx(
        8 * num_turns * coin_variances(8, num_turns).sum(), rel=1e-12
    )
    # M2 of the last turn alone: |g|^2 = |c|^2 = 1/8.
    rate = allocation.information_rate(flat, moments.signals)
    assert rate == pytest.approx(
        1 / 64 / coin_variances(8, num_turns)[-1] / (8 * num_turns), rel=1e-9
    )


def test_costs_count_only_turns_that_happen():
    """Lock that ends at the error: a trunk lasts 1 + p + p^2, boundary k is reached with p^k."""
    p = 0.6
    moments = moments_of(families.lock_case(3, p, ends_at_error=True))
    lengths = np.array([1 + p + p * p, p * (1 + p), p * p])
    assert allocation.flat(moments, 5).cost == pytest.approx(5 * lengths[0], rel=1e-12)
    assert allocation.rtpo(moments, 3).cost == pytest.approx(lengths[0] + 3 * lengths.sum())
    known = allocation.rtpo(moments, 3).variances
    counted = allocation.rtpo(moments, 3, reach="counted").variances
    assert counted[0] == pytest.approx(known[0], rel=1e-12)
    # The difference is the variance of the count, |g|^2 (1/rho - 1).
    expected = np.asarray(moments.signals) * (1 / p ** np.arange(3) - 1)
    np.testing.assert_allclose(counted - known, expected, atol=1e-14)
    assert (counted > known + 1e-3)[1:].all()


def test_squared_cosine_of_the_best_weights():
    rng = np.random.default_rng(FRESH)
    signals, precisions = rng.random(4) + 0.1, 10 * rng.random(4)
    found = allocation.squared_cosine(precisions, signals)

    def cosine(weights):
        mean = (weights * signals).sum()
        return mean**2 / signals.sum() / (weights**2 * (signals + 1 / precisions)).sum()

    best = signals * precisions / (signals * precisions + 1)
    assert abs(cosine(best) - found) < 1e-12, f"seed={FRESH}"
    others = [cosine(best * (1 + 0.3 * rng.normal(size=4))) for _ in range(200)]
    assert max(others) < found, f"seed={FRESH}"


def test_cost_of_a_cosine():
    signals = np.array([2.0, 3.0])
    # One block alone: |g|^2 / v units give 1/2 where it holds all of the gradient.
    only = allocation.Schedule(np.array([np.inf, 6.0]), 10.0)
    cost = allocation.cost_of_cosine(only, np.array([0.0, 3.0]))
    assert cost == pytest.approx(10.0 * 6.0 / 3.0, rel=1e-9)
    both = allocation.Schedule(np.array([1.0, 6.0]), 10.0)
    units = allocation.cost_of_cosine(both, signals) / 10.0
    assert allocation.squared_cosine(units / both.variances, signals) == pytest.approx(0.5)
    # A third turn's worth of noise dominates: cos^2 is M2 times the cost over |g|^2.
    small = allocation.cost_of_cosine(both, signals, target=1e-6)
    rate = allocation.information_rate(both, signals)
    assert small == pytest.approx(1e-6 * signals.sum() / rate, rel=1e-4)
    with pytest.raises(ValueError, match="target=0.7"):
        allocation.cost_of_cosine(only, signals, target=0.7)


def test_one_fork_splits_the_cost_best():
    moments = moments_of(families.with_additive_luck(families.lock_case(4, 0.7), 0, 1.0))
    best = allocation.fork_once(moments, 1)
    shares = np.linspace(0.05, 0.95, 91)
    costs = [allocation.variance_cost(allocation.fork_once(moments, 1, share=s)) for s in shares]
    assert allocation.variance_cost(best) <= min(costs) < 1.001 * allocation.variance_cost(best)
    # Parts: flat rows train turn 0 only, sibling rows the rest at 3 turns each.
    flat = allocation.flat(moments, 8)
    late = np.asarray(group_variance.boundary_variance(moments, 8))[1]
    half = allocation.fork_once(moments, 1, share=0.5)
    assert half.variances[0] == pytest.approx(flat.variances[0] * flat.cost / 0.5, rel=1e-12)
    np.testing.assert_allclose(half.variances[1:], late[1:] * 8 * 3 / 0.5, rtol=1e-12)
    for turn in (0, 4):
        with pytest.raises(ValueError, match="turn is"):
            allocation.fork_once(moments, turn)
    with pytest.raises(ValueError, match="share=1.0"):
        allocation.fork_once(moments, 1, share=1.0)


def test_tails_from_one_trunk_by_simulation():
    """Lock of 3, n = 3 siblings at every turn with tails, combined by precision: 5 sigma."""
    rng = np.random.default_rng(FRESH)
    p, size, count = 0.7, 3, 200_000
    moments = moments_of(families.lock_case(3, p), noise=0.0)
    exact, independent = allocation.rtpo_with_tails(moments, size)
    precisions = 1.0 / np.asarray(group_variance.boundary_variance(moments, size))
    weights = precisions / precisions.sum(0)
    trunk = rng.random((count, 3)) < p
    estimate = np.zeros((count, 3))
    for boundary in range(3):
        alive = trunk[:, :boundary].all(1)
        right = rng.random((count, size, 3)) < p
        outcome = (alive[:, None] & right[:, :, boundary:].all(2)).astype(float)
        advantages = size / (size - 1) * (outcome - outcome.mean(1, keepdims=True))
        for turn in range(boundary, 3):
            own = (advantages * (right[:, :, turn] - p)).mean(1)
            estimate[:, turn] += weights[boundary, turn] * own
    # With two actions the score is (1, -1) times (right - p): squared norms double.
    mean = p**3 * (1 - p)
    squares = 2.0 * (estimate - mean) ** 2
    error = squares.std(0) / count**0.5
    assert (abs(squares.mean(0) - exact.variances) < 5 * error).all(), f"seed={FRESH}"
    assert squares.mean(0)[2] - independent.variances[2] > 5 * error[2], f"seed={FRESH}"
    assert exact.cost == independent.cost == pytest.approx(3 + 3 * 6)


def test_candidates_by_hand():
    moments = moments_of(families.late_case(3, 1, 0.5))
    kinds = allocation.candidates(moments, tails=False, sizes=(2, 4))
    assert kinds.boundaries.tolist() == [-1, 0, 1, 2, 0, 1, 2]
    assert kinds.sizes.tolist() == [8, 2, 2, 2, 4, 4, 4]
    np.testing.assert_allclose(kinds.costs, [3, 6, 4, 2, 12, 8, 4])
    np.testing.assert_allclose(kinds.precisions[0], 1 / coin_variances(8, 3) / 8)
    expected = np.diag(1 / coin_variances(4, 3))
    np.testing.assert_allclose(kinds.precisions[4:], expected, atol=1e-12)
    tails = allocation.candidates(moments, tails=True, sizes=(4,), flat_rows=False)
    assert tails.boundaries.tolist() == [-1, 1, 2]
    assert (tails.precisions[0] == 0).all()
    np.testing.assert_allclose(tails.precisions[1], [0, *1 / coin_variances(4, 3)[1:]])


def test_oracle_forks_only_where_it_pays():
    """Last turn of a lock: only the share p^(K-1) of states that is alive has any variance."""
    p, size = 0.7, 4
    moments = moments_of(families.lock_case(3, p))
    alive = p**2
    variance = float(group_variance.sampling_variance(moments, size)[2, 0, 2])
    kinds = allocation.candidates(moments, tails=False, oracle=True, sizes=(size,))
    # All groups start alive; the estimate is p^2 times their mean.
    assert kinds.precisions[3, 2] == pytest.approx(1 / (alive**2 * variance), rel=1e-9)
    assert kinds.costs[3] == pytest.approx(size, rel=1e-12)
    plain = allocation.candidates(moments, tails=False, sizes=(size,))
    assert kinds.precisions[3, 2] > 1.5 * plain.precisions[3, 2]
    # At turn 0 there is one state and nothing to choose.
    assert kinds.precisions[1, 0] == pytest.approx(plain.precisions[1, 0], rel=1e-9)


def test_oracle_has_nothing_to_choose_where_only_the_living_go_on():
    """Lock that ends at the error: one state at every boundary, rarer and rarer."""
    moments = moments_of(families.lock_case(3, 0.6, ends_at_error=True))
    chosen = allocation.candidates(moments, tails=True, oracle=True, sizes=(4,))
    plain = allocation.candidates(moments, tails=True, sizes=(4,))
    np.testing.assert_allclose(chosen.precisions, plain.precisions, rtol=1e-9)
    np.testing.assert_allclose(chosen.costs, plain.costs, rtol=1e-12)


def test_a_turn_that_never_happens_is_refused():
    case = families.chain_case(3, 1, 1.0)
    with pytest.raises(ValueError, match="turn 1 is never reached"):
        allocation.flat(moments_of(case))


def test_oracle_weighs_variance_against_length():
    """States with different numbers of turns left: variance times cost is (sum d sqrt(v c))^2."""
    size, turn = 4, 2
    moments = moments_of(families.chain_case(6, 3, 0.6))
    kinds = allocation.candidates(moments, tails=True, oracle=True, sizes=(size,))
    row = int(np.flatnonzero(kinds.boundaries == turn)[0])
    reach, lengths = (np.asarray(part)[turn] for part in (moments.occupancy, moments.turns_left))
    variances = np.asarray(group_variance.sampling_variance(moments, size))[turn, :, turn:].sum(1)
    least = size * (reach * np.sqrt(variances * lengths)).sum() ** 2
    assert np.ptp(lengths) > 0.5
    found = (1.0 / kinds.precisions[row, turn:]).sum() * kinds.costs[row]
    assert found == pytest.approx(least, rel=1e-9)
