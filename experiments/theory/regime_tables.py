"""Rows of the regimes experiment: ratios of exact costs by dynamic programming, and closed forms."""

from typing import Any

import numpy as np

from experiments.theory.regime_families import FAMILIES, critical_case, phase_case
from tabular.regimes import allocation, designs, group_gradient, group_variance, rules
from tabular.regimes.families import Case, late_case, with_additive_luck
from tabular.regimes.group_gradient import GroupMoments

Row = dict[str, Any]


def flat_cost(moments: GroupMoments) -> float:
    """M1 of flat groups of 8, what every ratio compares with."""
    return allocation.variance_cost(allocation.flat(moments))


def family_row(name: str) -> Row:
    """Every measure of one family; ratios are flat groups of 8 over the method, high is good."""
    moments = group_gradient.group_moments(*FAMILIES[name].make())
    turns = len(moments.signals)
    row = {"family": name, "kind": FAMILIES[name].kind, "turns": turns}
    row |= _schedules(moments) | _mixtures(moments) | _low_signal(moments) | _cosines(moments)
    within = np.asarray(group_variance.within_share(moments))
    rule = rules.rtpo_rule(within)
    return row | {
        "mean_within": float(within.mean()),
        "rtpo_rule": rule,
        "rtpo_over_rule": row["rtpo_4"] / rule,
        "split_gain": _split_gain(moments),
    }


def phase_row(num_turns: int, turn: int, luck: float) -> Row:
    """Phase map 1: luck of one size after one turn of a lock."""
    moments = group_gradient.group_moments(*phase_case(num_turns, turn, luck))
    row = {"turns": num_turns, "luck_after": turn, "luck": luck}
    return row | _map_ratios(moments, turn + 1) | {"siblings_best": _best_siblings(moments)}


def critical_row(num_turns: int, critical: int, luck: float) -> Row:
    """Phase map 2: luck after turn 0 of a lock whose last turns are hard, no irrelevant tokens."""
    moments = group_gradient.group_moments(*critical_case(num_turns, critical, luck), noise=0.0)
    row = {"turns": num_turns, "critical": critical, "luck": luck}
    return row | _map_ratios(moments, max(num_turns - critical, 1))


def variant_rows(name: str) -> list[Row]:
    """RTPO by group size: trunk left out (the paper) or counted, and tails trained as well."""
    moments = group_gradient.group_moments(*FAMILIES[name].make())
    whole = flat_cost(moments)
    rows = []
    for size in (2, 3, 4, 7, 8):
        more = allocation.rtpo(moments, size + 1, trunk=True)
        counted = allocation.rtpo(moments, size, trunk=True)
        tails = allocation.rtpo_with_tails(moments, size)
        excluded = allocation.rtpo(moments, size)
        costs = [
            allocation.variance_cost(schedule) for schedule in (excluded, counted, more, *tails)
        ]
        ratios = dict(zip(("excluded", "counted", "same_cost", "tails", "tails_independent"),
                          (whole / cost for cost in costs), strict=True))  # fmt: skip
        rows.append({"family": name, "size": size} | ratios)
    return rows


def fork_row(name: str, case: Case, turn: int, noise: float = 1.0) -> Row:
    """One fork with tails: the exact best split, the split of the closed form, and the form."""
    moments = group_gradient.group_moments(*case, noise=noise)
    whole = flat_cost(moments)
    within = float(group_variance.within_share(moments)[turn])
    fraction = turn / len(moments.signals)
    share = rules.fork_share(fraction, within)
    best = allocation.fork_once(moments, turn)
    early = allocation.flat(moments).variances
    return {
        "case": name,
        "fork": turn,
        "kappa": fraction,
        "within": within,
        "break_even": rules.break_even(fraction),
        "exact": whole / allocation.variance_cost(best),
        "rule_share": whole
        / allocation.variance_cost(allocation.fork_once(moments, turn, share=share)),
        "rule": rules.fork_rule(fraction, within),
        "turn_bound": 1.0 / fraction,
        "variance_bound": float(early.sum() / early[:turn].sum()),
    }


def signal_row(name: str) -> Row:
    """The low-signal rule against the best single boundary of the exact tables (M2)."""
    moments = group_gradient.group_moments(*FAMILIES[name].make())
    schedule = allocation.flat(moments)
    rule = rules.signal_rule(moments, schedule.variances * 8)[1:]
    kinds = allocation.candidates(moments, tails=True)
    exact = _rates(moments, kinds)
    turns = len(moments.signals)
    by_turn = np.array([exact[kinds.boundaries[1:] == turn].max() for turn in range(1, turns)])
    return {
        "family": name,
        "exact_turn": int(by_turn.argmax()) + 1,
        "rule_turn": int(rule.argmax()) + 1,
        "exact": float(by_turn.max()),
        "rule": float(rule.max()),
        "kept": float(by_turn[rule.argmax()] / by_turn.max()),
    }


def to_go_row(name: str, case: Case, variances: np.ndarray | None = None) -> Row:
    """Rewards paid on the way: what return to go gains for flat groups, and what forks add to it.

    `variances` [H, S, A] of the rewards enter as luck that is paid at once.
    """
    total = group_gradient.group_moments(*case, reward_variances=variances)
    later = group_gradient.group_moments(*case, returns="to_go", reward_variances=variances)
    whole = flat_cost(later)
    best = designs.least_variance(allocation.candidates(later, tails=True))
    return {
        "case": name,
        "to_go": flat_cost(total) / whole,
        "rtpo_4_over_to_go": whole
        / allocation.variance_cost(allocation.rtpo(later, 4, trunk=True)),
        "flat_tails_best_over_to_go": whole / best.value,
    }


def late_row(num_turns: int, critical: int, luck: float) -> Row:
    """RTPO on the critical last turns alone, G = 8, against its count of rows (M2)."""
    case = with_additive_luck(late_case(num_turns, critical, 0.5), 0, luck)
    moments = group_gradient.group_moments(*case)
    first = num_turns - critical
    schedule = allocation.rtpo(moments, 8, trunk=True, turns=range(first, num_turns))
    within = float(group_variance.within_share(moments)[first])
    whole = allocation.information_rate(allocation.flat(moments), moments.signals)
    return {
        "turns": num_turns,
        "critical": critical,
        "luck": luck,
        "within": within,
        "exact": allocation.information_rate(schedule, moments.signals) / whole,
        "rule": rules.late_rule(num_turns, critical, 8, within),
    }


def critic_row(name: str) -> Row:
    """Flat groups with the exact value of the state as baseline, and the best mixture with forks."""
    moments = group_gradient.group_moments(*FAMILIES[name].make())
    whole = flat_cost(moments)
    variance = float(group_variance.value_baseline_variance(moments).sum())
    length = float((moments.occupancy * moments.turns_left).sum(1)[0])
    best = designs.least_variance(allocation.candidates(moments, tails=True))
    return {
        "family": name,
        "critic": whole / (variance * length),
        "flat_tails_best": whole / best.value,
    }


def _schedules(moments):
    whole = flat_cost(moments)
    schedules = {
        "paper_n2": allocation.rtpo(moments, 2),
        "rtpo_4": allocation.rtpo(moments, 4, trunk=True),
        "rtpo_8": allocation.rtpo(moments, 8, trunk=True),
        "rtpo_4_counted": allocation.rtpo(moments, 4, trunk=True, reach="counted"),
    }
    return {name: whole / allocation.variance_cost(x) for name, x in schedules.items()}


def _best_siblings(moments):
    kinds = allocation.candidates(moments, tails=False, flat_rows=False)
    return flat_cost(moments) / designs.least_variance(kinds).value


def _split_gain(moments):
    """Groups of 4 at every turn, trunks aside: equal numbers of them over the best numbers."""
    variances = np.diagonal(np.asarray(group_variance.boundary_variance(moments, 4)))
    costs = np.asarray((moments.occupancy * moments.turns_left).sum(1))
    return variances.sum() * costs.sum() / rules.best_split(variances, costs).value


def _mixtures(moments):
    whole = flat_cost(moments)
    row = {"siblings_best": _best_siblings(moments)}
    shared = np.asarray(group_variance.shared_trunk_covariance(moments))
    gaps, sharing = [], []
    for name, tails, oracle in (
        ("flat_siblings_best", False, False),
        ("flat_tails_best", True, False),
        ("oracle_tails_best", True, True),
    ):
        kinds = allocation.candidates(moments, tails=tails, oracle=oracle)
        design = designs.least_variance(kinds)
        row[name] = whole / design.value
        gaps.append(design.gap)
        if not oracle:
            sharing.append(designs.correlated_variance(kinds, design, shared) / design.value)
    return row | {"gap": max(gaps), "sharing": max(sharing)}


def _rates(moments, kinds):
    """M2 of every kind of fork over that of flat groups."""
    information = (np.asarray(moments.signals) ** 2 * kinds.precisions).sum(1) / kinds.costs
    whole = allocation.information_rate(allocation.flat(moments), moments.signals)
    return information[1:] / whole


def _low_signal(moments):
    row = {}
    for name, oracle in (("m2", False), ("m2_oracle", True)):
        both = []
        for tails in (False, True):
            kinds = allocation.candidates(moments, tails=tails, oracle=oracle)
            rates = _rates(moments, kinds)
            both.append((float(rates.max()), int(kinds.boundaries[1:][rates.argmax()])))
        row[name], row[f"{name}_turn"] = max(both)
    return row


def _cosines(moments):
    signals = moments.signals
    whole = allocation.cost_of_cosine(allocation.flat(moments), signals)
    row = {
        "m3_rtpo_4": whole
        / allocation.cost_of_cosine(allocation.rtpo(moments, 4, trunk=True), signals)
    }
    for name, oracle, free in (
        ("m3_flat_tails_best", False, False),
        ("m3_flat_tails_free_trunks", False, True),
        ("m3_oracle_tails_free_trunks", True, True),
    ):
        kinds = allocation.candidates(moments, tails=True, oracle=oracle)
        design = designs.least_cost_of_cosine(kinds, signals, free_trunks=free)
        row[name] = whole / design.value
    return row


def _map_ratios(moments, fork):
    whole = flat_cost(moments)
    within = np.asarray(group_variance.within_share(moments))
    fraction = fork / len(within)
    best = designs.least_variance(allocation.candidates(moments, tails=True))
    return {
        "rtpo_4": whole / allocation.variance_cost(allocation.rtpo(moments, 4, trunk=True)),
        "fork_tails": whole / allocation.variance_cost(allocation.fork_once(moments, fork)),
        "flat_tails_best": whole / best.value,
        "fork": fork,
        "mean_within": float(within.mean()),
        "rtpo_threshold": 2.0 / (len(within) + 1),
        "fork_within": float(within[fork]),
        "fork_threshold": rules.break_even(fraction),
        "rtpo_rule": rules.rtpo_rule(within),
        "fork_rule": rules.fork_rule(fraction, float(within[fork])),
    }
