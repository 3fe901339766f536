"""Best mixtures against random ones, against closed forms, and with shared trunks by simulation."""

import os

import numpy as np
import pytest

from tabular.regimes import allocation, designs, families, group_gradient, group_variance, rules

FRESH = int(os.environ["FRESH_SEED"])


def lucky(luck=1.0, num_turns=4):
    case = families.with_additive_luck(families.lock_case(num_turns, 0.7), 0, luck)
    return group_gradient.group_moments(*case)


def random_feasible(rng, kinds):
    """Cost shares of a random mixture: random forks, and enough trajectories for them."""
    visits = rng.exponential(size=len(kinds.costs)) * (rng.random(len(kinds.costs)) < 0.4)
    turns = range(int(kinds.boundaries.max()) + 1)
    needed = max(visits[kinds.boundaries == turn].sum() for turn in turns)
    visits[0] = needed + rng.exponential()
    tokens = visits * kinds.costs
    return tokens / tokens.sum()


@pytest.mark.parametrize(
    "options", [{"tails": False}, {"tails": True}, {"tails": True, "oracle": True}]
)
def test_no_mixture_beats_the_certified_bound(options):
    rng = np.random.default_rng(FRESH)
    kinds = allocation.candidates(lucky(), **options)
    design = designs.least_variance(kinds)
    rates = kinds.precisions / kinds.costs[:, None]
    assert abs(design.tokens.sum() - 1) < 1e-12
    assert design.value == pytest.approx((1 / (design.tokens @ rates)).sum(), rel=1e-9)
    assert design.lower_bound <= design.value * (1 + 1e-6)
    assert design.gap < 1e-5
    found = [(1 / (random_feasible(rng, kinds) @ rates)).sum() for _ in range(300)]
    assert min(found) > design.value * (1 - 1e-5), f"seed={FRESH}"
    # No more groups at a turn than trajectories.
    visits = design.tokens / kinds.costs
    for turn in range(4):
        assert visits[kinds.boundaries == turn].sum() <= visits[0] * (1 + 1e-6)


def test_flat_groups_alone_where_forks_cannot_help():
    moments = group_gradient.group_moments(*families.lock_case(4, 0.5))
    kinds = allocation.candidates(moments, tails=True)
    design = designs.least_variance(kinds)
    whole = allocation.variance_cost(allocation.flat(moments))
    assert design.value == pytest.approx(whole, rel=1e-4)
    assert design.tokens[0] > 0.99


def test_two_kinds_split_as_the_closed_form_says():
    """Two turns, each with a kind of its own and room for all groups: Cauchy-Schwarz."""
    precisions = np.array([[2.0, 0.0], [0.0, 0.5]])
    costs = np.array([3.0, 5.0])
    kinds = allocation.Candidates(precisions, costs, np.array([-1, 1]), np.array([8, 2]))
    split = rules.best_split(np.array([0.5, 2.0]), costs)
    # Groups over trajectories at that split: sqrt(2/5) / sqrt(.5/3) = 1.55, more than allowed.
    design = designs.least_variance(kinds)
    visits = design.tokens / costs
    assert visits[1] == pytest.approx(visits[0], rel=1e-5)
    assert design.value == pytest.approx((0.5 + 2.0) * 8.0, rel=1e-5)
    assert design.value > split.value * 1.01
    cheap = kinds._replace(costs=np.array([1.0, 50.0]))
    split = rules.best_split(np.array([0.5, 2.0]), cheap.costs)
    design = designs.least_variance(cheap)
    np.testing.assert_allclose(design.tokens, split.shares, atol=1e-3)
    assert design.value == pytest.approx(split.value, rel=1e-5)


def test_least_cost_of_a_cosine():
    moments = lucky()
    signals = np.asarray(moments.signals)
    kinds = allocation.candidates(moments, tails=True)
    paid = designs.least_cost_of_cosine(kinds, signals)
    free = designs.least_cost_of_cosine(kinds, signals, free_trunks=True)
    rates = kinds.precisions / kinds.costs[:, None]
    reached = allocation.squared_cosine(paid.value * paid.tokens @ rates, signals)
    assert reached == pytest.approx(0.5, rel=1e-6)
    assert free.value < paid.value < allocation.cost_of_cosine(allocation.flat(moments), signals)
    rng = np.random.default_rng(FRESH)
    for _ in range(100):
        with np.errstate(divide="ignore"):
            other = allocation.Schedule(1 / (random_feasible(rng, kinds) @ rates), 1.0)
        cost = allocation.cost_of_cosine(other, signals)
        assert cost > paid.value * (1 - 1e-5), f"seed={FRESH}"
        assert cost > paid.lower_bound


def test_one_turn_at_stake_and_free_trunks():
    """All signal in the last turn: the best fork is the one with most precision per turn."""
    moments = group_gradient.group_moments(*families.late_case(4, 1, 0.5))
    kinds = allocation.candidates(moments, tails=True)
    design = designs.least_cost_of_cosine(kinds, moments.signals, free_trunks=True)
    rates = kinds.precisions[:, -1] / kinds.costs
    assert design.value == pytest.approx(1 / rates.max() / float(moments.signals[-1]), rel=1e-5)


def test_shared_trajectories_by_simulation():
    """8 flat episodes of a lock of 3; 4 of them forked at turn 1 (n = 4), 6 at turn 2 (n = 8)."""
    rng = np.random.default_rng(FRESH)
    p, count, num = 0.7, 60_000, 8
    moments = group_gradient.group_moments(*families.lock_case(3, p), noise=0.0)
    kinds = allocation.candidates(moments, tails=True)
    visits = np.zeros(len(kinds.costs))
    visits[0] = num
    forks = {(1, 4): 4, (2, 8): 6}
    for (turn, size), groups in forks.items():
        visits[(kinds.boundaries == turn) & (kinds.sizes == size)] = groups
    precisions = visits[:, None] * kinds.precisions
    tokens = visits * kinds.costs
    design = designs.Design(
        0.0, 0.0, tokens / tokens.sum(), allocation.Schedule(tokens.sum() / precisions.sum(0), 1.0)
    )
    shared = np.asarray(group_variance.shared_trunk_covariance(moments))
    exact = designs.correlated_variance(kinds, design, shared) / tokens.sum()

    right = rng.random((count, num, 3)) < p
    estimate = weighted(right, np.ones((count, num)), 0, p) * precisions[0] / precisions.sum(0)
    for (turn, size), groups in forks.items():
        row = (kinds.boundaries == turn) & (kinds.sizes == size)
        chosen = np.argsort(rng.random((count, num)), axis=1)[:, :groups]
        alive = np.take_along_axis(right[:, :, :turn].all(2), chosen, axis=1)
        tail = rng.random((count, groups, size, 3)) < p
        found = sum(
            weighted(tail[:, group], alive[:, group, None] * np.ones(size), turn, p)
            for group in range(groups)
        )
        estimate += found / groups * precisions[row][0] / precisions.sum(0)
    mean = p**3 * (1 - p)
    squares = (2.0 * (estimate - mean) ** 2).sum(1)
    error = squares.std() / count**0.5
    assert abs(squares.mean() - exact) < 5 * error, f"seed={FRESH}"
    apart = (1 / precisions.sum(0)).sum()
    assert exact > 1.02 * apart
    assert squares.mean() - apart > 5 * error, f"seed={FRESH}"


def test_shared_trajectories_pair_by_pair():
    """Var sum_i w_i C_i from the full covariance matrix of all kinds, for a random mixture."""
    rng = np.random.default_rng(FRESH)
    moments = lucky()
    kinds = allocation.candidates(moments, tails=True)
    shared = np.asarray(group_variance.shared_trunk_covariance(moments))
    visits = rng.random(len(kinds.costs)) + 0.1
    tokens = visits * kinds.costs / (visits @ kinds.costs)
    visits = tokens / kinds.costs
    precisions = visits[:, None] * kinds.precisions
    total = 0.0
    for turn in range(4):
        used = np.flatnonzero(precisions[:, turn])
        weights = precisions[used, turn] / precisions[used, turn].sum()
        matrix = np.diag(1 / precisions[used, turn])
        for i, first in enumerate(used):
            for j, second in enumerate(used):
                early, late = sorted((kinds.boundaries[first], kinds.boundaries[second]))
                if early != late:  # -1 is a flat row, which meets a fork at the fork's boundary
                    matrix[i, j] = shared[late if early == -1 else early, turn] / visits[0]
        total += weights @ matrix @ weights
    schedule = allocation.Schedule(1 / precisions.sum(0), 1.0)
    design = designs.Design(0.0, 0.0, tokens, schedule)
    found = designs.correlated_variance(kinds, design, shared)
    assert found == pytest.approx(total, rel=1e-10), f"seed={FRESH}"


def weighted(right, alive, turn, p):
    """Leave-one-out estimates [N, 3] of a lock's gradient from groups [N, n, 3] forked at a turn."""
    size = right.shape[1]
    outcome = alive * right[:, :, turn:].all(2)
    advantages = size / (size - 1) * (outcome - outcome.mean(1, keepdims=True))
    estimates = (advantages[:, :, None] * (right - p)).mean(1)
    return estimates * (np.arange(3) >= turn)


def test_a_turn_that_nothing_trains_is_refused():
    kinds = allocation.candidates(lucky(), tails=True, flat_rows=False)
    with pytest.raises(ValueError, match="turn 0 is trained by no kind"):
        designs.least_variance(kinds)
