"""Theorem 1 of RTPO without its assumptions: unvisited states, merged contexts, incomplete classes.

The third part of `experiments.theorem_convergence`, which says what is checked.
"""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import tabular
from experiments.theory.claims import Counterexample, Findings, at_most, mdp_arrays
from experiments.theory.convergence_learning import take
from tabular.learning.clipped_gradient import Ascent, ascent_sweep
from tabular.learning.q_learning import Steps, turnwise
from tabular.learning.restricted import (
    absent_minded,
    best_deterministic,
    best_stochastic,
    greedy_sweep,
    number_by_turn,
)

CLEAR = np.array([[0, 1], [0, 1]])  # every state of two turns is its own context
LAST_MERGED = np.array([[0, 1], [0, 0]])
# Contexts of three turns and three states in which some states look alike.
SOME_MERGED = np.array([[0, 0, 1], [0, 1, 1], [0, 0, 1]])


def instances() -> dict[str, Counterexample]:
    """One small instance for every assumption that a greedy reverse pass needs."""
    toy = tabular.toy_reverse_order()
    uniform, everything = np.asarray(toy.policy), np.ones((2, 2, 2), dtype=int)
    blind, forbidden = uniform.copy(), everything.copy()
    blind[0] = [1.0, 0.0]
    forbidden[1, 1, 1] = 0
    opposite = _two_turns(np.eye(2), keep=True)
    tied = _two_turns(smallest_tied())
    return {
        "unvisited_state": _instance(
            "The trunk never visits state 1 of turn 1, whose table stays at its start: one reverse "
            "pass gets 0.5, the optimum is 0.9.", toy.mdp, blind, CLEAR, everything),
        "stale_continuations": _instance(
            "Continuations of the policy before the pass make state 0 look better (0.5 against "
            "0.45): 0.5 instead of 0.9.", toy.mdp, uniform, CLEAR, everything, fresh=False),
        "merged_context": _instance(
            "Two states of turn 1 need opposite actions and look alike: every policy that sees "
            "psi only gets 0.5, one that sees the state 1.", opposite, uniform, LAST_MERGED,
            everything),
        "tied_states": _instance(
            "Two states of turn 1 share a row. Reverse order settles the row by the states a "
            "uniform trunk meets; the best policy of the class chooses row and state together.",
            tied, uniform, LAST_MERGED, everything),
        "forbidden_action": _instance(
            "The class of turn 1 lacks the best action of state 1: the recursive optimum is that "
            "of the class, 0.5, and not 0.9.", toy.mdp, uniform, CLEAR, forbidden),
    }  # fmt: skip


def natural_order() -> Counterexample:
    """One greedy pass in natural order, on a toy whose first turn then decides too early."""
    toy = tabular.toy_reverse_order()
    return _instance(
        "One greedy pass in natural order: turn 0 compares .5 with .45 before turn 1 has learned and "
        "gets 0.5. In reverse order the same pass gets 0.9.", toy.mdp, np.asarray(toy.policy), CLEAR,
        np.ones((2, 2, 2), dtype=int), natural=True)  # fmt: skip


def sweep_numbers(arrays: dict, settings: dict) -> dict[str, float]:
    """Performance of the limit of turn-wise learning, of the best in its class, of the optimum."""
    mdp = tabular.TurnMDP(*(arrays[name] for name in ("transitions", "rewards", "start")))
    contexts = np.asarray(arrays["contexts"])
    allowed = jnp.asarray(arrays["allowed"]).astype(bool)
    policy = _limit(mdp, jnp.asarray(arrays["trunk"]), jnp.asarray(contexts), allowed,
                    settings["fresh"], settings["natural"])  # fmt: skip
    _, best = best_deterministic(mdp, number_by_turn(contexts), allowed)
    return {
        "performance_limit": float(tabular.performance(mdp, policy)),
        "performance_best_of_class": float(best),
        "performance_optimal": float(mdp.start @ tabular.optimal_values(mdp)[0]),
    }


def smallest_tied(largest: int = 5) -> np.ndarray:
    """Smallest whole rewards [2, 2] over their bound for which tying two states loses in reverse.

    Turn 1 has one row for both states. A trunk that visits both equally makes reverse order choose
    the action with the larger sum, strictly; the best policy chooses the largest entry.
    """
    for bound in range(1, largest + 1):
        for entries in itertools.product(range(bound + 1), repeat=4):
            rewards = np.array(entries).reshape(2, 2)
            sums, peaks = rewards.sum(0), rewards.max(0)
            if sums[0] > sums[1] and peaks[0] < peaks[1]:
                return rewards / bound
    raise ValueError(f"largest={largest}: no instance with rewards up to it, raise it")


def violations(key: jax.Array, num_seeds: int, num_samples: int) -> Findings:
    """Each assumption violated, exactly; sampled learners end at the same wrong policies."""
    found = instances()
    texts = {
        "unvisited_state": "RTPO Thm 1, A7 violated (a state the trunk never visits): V^rec = V*",
        "stale_continuations": "RTPO Thm 1, A5 violated (continuations not those frozen): V^rec = V*",
        "merged_context": "RTPO Thm 1, A11 violated (psi hides the state): the best on psi gets V*",
        "tied_states": "RTPO Thm 1(c), class incomplete (two states tied): recursive = best of it",
        "forbidden_action": "RTPO Thm 1(c), class incomplete (an action missing): V^rec = V*",
    }
    claims = []
    for name, text in texts.items():
        n = found[name].numbers
        over = "performance_best_of_class" if name == "tied_states" else "performance_optimal"
        claims.append(at_most(text, "2 turns, 2 states, 2 actions; exact loss", 1,
                              n[over] - n["performance_limit"], 0.05, expected=False,
                              counterexample=name))  # fmt: skip
    rows, distances = [], []
    for name, example in found.items():
        row = {"instance": name, **example.numbers}
        if name != "forbidden_action":
            ends = learned_performance(jax.random.fold_in(key, len(rows)), example, num_seeds,
                                       num_samples)  # fmt: skip
            distances.append(np.abs(ends - example.numbers["performance_limit"]).max())
            row["performance_learned"] = ends.mean()
        else:
            row["performance_learned"] = float("nan")
        rows.append(row)
    claims.append(at_most("RTPO Thm 1: Q-learners end at the performance the exact limit says",
                          f"4 instances, {num_seeds} seeds, {num_samples} episodes a turn",
                          4 * num_seeds, max(distances), 1e-12))  # fmt: skip
    return Findings(claims=claims, tables={"violations": rows}, counterexamples=found)


def learned_performance(
    key: jax.Array, example: Counterexample, num_seeds: int, num_samples: int
) -> np.ndarray:
    """Performance of the policies that sampled Q-learning ends with, [R]."""
    arrays, fresh = example.arrays, example.settings["fresh"]
    trunk, contexts = jnp.asarray(arrays["trunk"]), jnp.asarray(arrays["contexts"])
    return np.asarray(_learned(jax.random.split(key, num_seeds), example.mdp, trunk, contexts,
                               num_samples, fresh))  # fmt: skip


def merged(key: jax.Array, mdps: tabular.TurnMDP, num_searched: int) -> Findings:
    """Random MDPs whose policy sees merged contexts: exact gaps, and whether randomising helps."""
    num_mdps = mdps.start.shape[0]
    numbers = number_by_turn(SOME_MERGED)
    full, seen, limit = map(np.asarray, _merged_gaps(mdps))
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    gains = {"by turn": [], "across turns": []}
    for index in range(num_searched):
        mdp = take(mdps, index)
        for name, contexts in (("by turn", numbers), ("across turns", SOME_MERGED)):
            starts = rng.dirichlet(np.ones(3), size=(8, contexts.max() + 1))
            _, best = best_stochastic(mdp, contexts, starts)
            gains[name].append(best - float(best_deterministic(mdp, contexts)[1]))
    gains = {name: np.array(gain) for name, gain in gains.items()}
    where = f"{num_mdps} random MDPs, 3 turns, 6 contexts for 9 states"
    search = f"{num_searched} of them, search from 8 starts"
    rows = [
        {"gap": "optimum minus best that sees psi", **_spread(full - seen)},
        {"gap": "best that sees psi minus limit of reverse learning", **_spread(seen - limit)},
        *({"gap": f"stochastic minus deterministic, rows shared {name}", **_spread(gain)}
          for name, gain in gains.items()),
    ]  # fmt: skip
    claims = [
        at_most("RTPO Thm 1 without A11: reverse greedy on psi reaches the best policy that sees "
                "psi", where, num_mdps, (seen - limit).max(), 1e-3, expected=False,
                counterexample="merged_states"),
        at_most("randomising helps a policy with a row per turn and context (derived here: never)",
                search, num_searched, gains["by turn"].max(), 1e-9),
    ]  # fmt: skip
    mdp = take(mdps, int((seen - limit).argmax()))
    worst = _instance(
        "The random MDP, seen through merged contexts, on which reverse greedy decisions end furthest "
        "below the best policy that sees the same: each row is settled by the states of a uniform "
        "trunk.", mdp, np.asarray(tabular.uniform_policy(mdp)), SOME_MERGED,
        np.ones(mdp.rewards.shape, dtype=int))  # fmt: skip
    return Findings(claims=claims, tables={"contexts": rows},
                    counterexamples={"merged_states": worst})  # fmt: skip


def forgetful() -> Counterexample:
    """The absent-minded instance, where only a stochastic policy is best."""
    instance = absent_minded()
    arrays = {**mdp_arrays(instance.mdp), "contexts": instance.contexts}
    settings = {"kind": "stochastic", "learning_rate": 0.05, "sweeps": 500, "clip": 0.2}
    return Counterexample(
        statement="Two turns that psi cannot tell apart: the best deterministic policy gets 1/4, "
        "the best stochastic one 1/3, one that sees the turn 1. Reverse sweeps of clipped ascent on "
        "shared logits settle near 1/3.",
        arrays=arrays,
        settings=settings,
        numbers=stochastic_numbers(arrays, settings),
    )


def stochastic_numbers(arrays: dict, settings: dict) -> dict[str, float]:
    """Best deterministic, best stochastic, what ascent on shared logits ends with, the optimum."""
    mdp = tabular.TurnMDP(*(arrays[name] for name in ("transitions", "rewards", "start")))
    contexts = np.asarray(arrays["contexts"])
    shared = tabular.shared_logits(mdp.rewards.shape)
    settled = Ascent(settings["clip"], settings["clip"], settings["learning_rate"])

    @jax.jit
    def learn():
        def sweep(params, _):
            order = tabular.reverse_order(mdp.num_turns)
            return ascent_sweep(mdp, shared, params, order, settled, 4), None

        params = jax.lax.scan(sweep, jnp.zeros(shared.shape), length=settings["sweeps"])[0]
        return tabular.performance(mdp, shared.policy(params))

    starts = np.full((1, contexts.max() + 1, mdp.num_actions), 1.0 / mdp.num_actions)
    return {
        "performance_deterministic": float(best_deterministic(mdp, contexts)[1]),
        "performance_stochastic": best_stochastic(mdp, contexts, starts)[1],
        "performance_ascent": float(learn()),
        "performance_optimal": float(mdp.start @ tabular.optimal_values(mdp)[0]),
    }


def shared_rows() -> Findings:
    """Rows shared across turns: randomising helps, and clipped ascent finds it."""
    example = forgetful()
    n = example.numbers
    where = "absent-minded instance, exact"
    claims = [
        at_most("randomising never helps if rows are shared across turns (SeeUPO, RTPO share them)",
                where, 1, n["performance_stochastic"] - n["performance_deterministic"], 0.05,
                expected=False, counterexample="absent_minded"),
        at_most("reverse clipped ascent (RTPO) on shared logits ends at the best stochastic policy",
                f"{where}; distance after {example.settings['sweeps']} sweeps", 1,
                abs(n["performance_ascent"] - n["performance_stochastic"]), 1e-3),
    ]  # fmt: skip
    return Findings(claims=claims, counterexamples={"absent_minded": example})


def _instance(statement, mdp, trunk, contexts, allowed, *, fresh=True, natural=False):
    arrays = {**mdp_arrays(mdp), "trunk": trunk, "contexts": contexts, "allowed": allowed}
    settings = {"kind": "sweep", "fresh": fresh, "natural": natural}
    return Counterexample(statement=statement, arrays=arrays, settings=settings,
                          numbers=sweep_numbers(arrays, settings))  # fmt: skip


def _two_turns(last_rewards, *, keep=False):
    """Turn 0 chooses the state of turn 1, or keeps a state drawn at the start; turn 1 pays."""
    transitions, rewards = np.zeros((2, 2, 2, 2)), np.zeros((2, 2, 2))
    transitions[0] = np.eye(2)[:, None] if keep else np.eye(2)[None]
    rewards[1] = last_rewards
    start = np.array([0.5, 0.5] if keep else [1.0, 0.0])
    return tabular.TurnMDP(transitions, rewards, start)


@jax.jit
def _limit(mdp, trunk, contexts, allowed, fresh, natural):
    order = tabular.reverse_order(mdp.num_turns)
    order = jnp.where(natural, order[::-1], order)
    return greedy_sweep(mdp, trunk, order, contexts, allowed, fresh=fresh)


@partial(jax.jit, static_argnames="num_samples")
def _learned(keys, mdp, trunk, contexts, num_samples, fresh):
    def one(key):
        learned = turnwise(key, mdp, trunk, tabular.reverse_order(2), contexts, Steps(), 0.0,
                           num_samples=num_samples, fresh=fresh)  # fmt: skip
        return tabular.performance(mdp, learned.policy)

    return jax.vmap(one)(keys)


@jax.jit
@jax.vmap
def _merged_gaps(mdp):
    """Performance of the optimum, of the best policy on psi, and of the limit of reverse learning."""
    order, trunk = tabular.reverse_order(3), tabular.uniform_policy(mdp)
    limit = greedy_sweep(mdp, trunk, order, jnp.asarray(SOME_MERGED))
    seen = best_deterministic(mdp, number_by_turn(SOME_MERGED))[1]
    return mdp.start @ tabular.optimal_values(mdp)[0], seen, tabular.performance(mdp, limit)


def _spread(gaps):
    return {"instances": gaps.size, "share_above_1e-3": (gaps > 1e-3).mean(), "mean": gaps.mean(),
            "largest": gaps.max()}  # fmt: skip
