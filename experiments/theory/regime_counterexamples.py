"""Instances of the regimes experiment that violate a claim, and their numbers computed again."""

from experiments.theory import regime_tables as tables
from experiments.theory.claims import Counterexample, mdp_arrays
from experiments.theory.regime_families import FAMILIES, critical_case
from tabular.regimes import allocation
from tabular.regimes.families import Case
from tabular.regimes.group_gradient import group_moments


def counterexamples(num_turns: int, critical: int, luck: float) -> dict[str, Counterexample]:
    """One per violated claim; the arguments name the cell of phase map 2 that gains most."""
    late_case = critical_case(num_turns, critical, luck)
    lock = FAMILIES["lock K5 p.7"].make()
    return {
        "rtpo_on_a_lock": _saved(
            "A lock of five turns, p = 0.7: RTPO with G = 4 at every turn needs 2.6 times the "
            "generated turns of flat groups of 8 for the same variance.",
            lock, kind="rtpo", size=4, noise=1.0,
        ),
        "tails_share_a_trunk": _saved(
            "The same lock, 8 siblings at every turn with their later turns trained: the groups "
            "share a trunk, and the variance is larger than for independent ones.",
            lock, kind="tails", size=8, noise=1.0,
        ),
        "rtpo_beyond_its_rule": _saved(
            "A lock of five turns, the first three safe (p = 0.99), the last two hard, luck +-2: "
            "RTPO at every turn gains 5.2, its closed form says at most 1.7, because flat rows bring "
            "the luck into turns that have nothing to learn.",
            critical_case(5, 2, 2.0), kind="rtpo", size=4, noise=0.0,
        ),
        "gain_beyond_k_over_k1": _saved(
            "Early turns that hardly vary and a hard end with luck: one fork there gains more than "
            "K/k1, which holds only for turns that are equally noisy.",
            late_case, kind="fork", size=num_turns - critical, noise=0.0,
        ),
    }  # fmt: skip


def replay(counterexample: Counterexample) -> dict[str, float]:
    """Costs and ratios of a counterexample, computed from its MDP and policy."""
    settings = counterexample.settings
    case = Case(counterexample.mdp, counterexample.arrays["policy"])
    return _numbers(case, settings["kind"], int(settings["size"]), float(settings["noise"]))


def _saved(statement, case, *, kind, size, noise):
    return Counterexample(
        statement=statement,
        arrays={**mdp_arrays(case.mdp), "policy": case.policy},
        settings={"kind": kind, "size": size, "noise": noise},
        numbers=_numbers(case, kind, size, noise),
    )


def _numbers(case, kind, size, noise):
    """`size` is a group size, for kind "fork" the turn forked at."""
    moments = group_moments(*case, noise=noise)
    flat = tables.flat_cost(moments)
    if kind == "rtpo":
        found = {"rtpo_cost": allocation.rtpo(moments, size, trunk=True)}
    elif kind == "tails":
        exact, independent = allocation.rtpo_with_tails(moments, size)
        found = {"tails_cost": exact, "tails_cost_if_independent": independent}
    else:
        found = {"fork_cost": allocation.fork_once(moments, size)}
    costs = {name: allocation.variance_cost(schedule) for name, schedule in found.items()}
    ratios = {name.replace("cost", "ratio"): flat / cost for name, cost in costs.items()}
    return {"flat_cost": flat, **costs, **ratios}
