"""Counterexamples to sentences of RTPO's Theorem 2, found and named, for `theorem_credit`."""

import itertools
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import tabular
from experiments.theory.claims import Claim, Counterexample, at_least, mdp_arrays
from rtpo_jax import core
from tabular import TurnMDP
from tabular.estimation import estimators
from tabular.estimation.accuracy import (
    accuracy,
    boundary_variances,
    sibling_error,
    trajectory_error,
)
from tabular.estimation.groups import group_statistics, return_laws, sign_rates

over_deviation = partial(core.group_relative, scale="group")  # ddof 1, epsilon 1e-6


def measure(
    mdp: TurnMDP, policy: jax.Array, turn: int, group_size: int, num_siblings: int
) -> dict[str, float]:
    """Everything Theorem 2(b) is about at one turn, in closed form and by enumerating all groups.

    The last numbers are of action 0 in state 0: its advantage, and what both groups expect for it,
    siblings also when their estimates are divided by the deviation of the group.
    """
    sizes = (("siblings", num_siblings), ("episodes", group_size))
    whole, to_go = (return_laws(mdp, policy, to_go=flag) for flag in (False, True))
    laws = {
        "siblings": (to_go.values, to_go.action, to_go.state[:, :, None]),
        "episodes": (whole.values, whole.action, whole.episode[:, None, None]),
    }
    listed = [group_statistics(core.group_relative, *laws[kind], size) for kind, size in sizes]
    # As a stack of one, which is how the tables call the same programs.
    stack = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], (mdp, policy))
    estimates = [statistics.estimate for statistics in listed]
    exact = jax.vmap(partial(_closed, estimates=estimates, sizes=sizes))(*stack)
    parts, truth, weights, found = jax.tree.map(lambda leaf: np.asarray(leaf)[0], exact)
    numbers = {
        "sigma_v_squared": parts.upstream[turn],
        "sigma_a_squared": parts.turn[turn],
        "sigma_q_squared": parts.downstream[turn],
    }
    for (kind, _), statistics, (closed, enumerated) in zip(sizes, listed, found, strict=True):
        numbers[f"mse_{kind}"] = closed.mse[turn]
        numbers[f"mse_{kind}_enumerated"] = enumerated.mse[turn]
        numbers[f"correlation_squared_{kind}"] = closed.correlation_squared[turn]
        numbers[f"wrong_sign_{kind}"] = sign_rates(statistics, truth, weights).wrong[turn]
    scaled = group_statistics(over_deviation, *laws["siblings"], num_siblings)
    numbers["advantage_of_action_0"] = truth[turn, 0, 0]
    for (kind, _), statistics in zip(sizes, listed, strict=True):
        numbers[f"expected_{kind}"] = statistics.mean[turn, 0, 0]
    numbers["expected_over_deviation"] = scaled.mean[turn, 0, 0]
    return {name: float(number) for name, number in numbers.items()}


def _closed(mdp, policy, estimates, sizes):
    """Variances, true advantages, their measure, and accuracy in closed form and as enumerated."""
    makers = {"siblings": estimators.sibling_group, "episodes": estimators.trajectory_group}
    found = [
        [accuracy(mdp, policy, makers[kind](mdp, policy, size)), accuracy(mdp, policy, estimate)]
        for (kind, size), estimate in zip(sizes, estimates, strict=True)
    ]
    weights = tabular.occupancy(mdp, policy)[:, :, None] * policy
    return boundary_variances(mdp, policy), tabular.advantages(mdp, policy), weights, found


def replay(counterexample: Counterexample) -> dict[str, float]:
    """The numbers of a saved counterexample, computed again from its arrays and settings."""
    settings = counterexample.settings
    return measure(
        counterexample.mdp,
        counterexample.arrays["policy"],
        settings["turn"],
        settings["group_size"],
        settings["num_siblings"],
    )


def record(
    statement: str,
    mdp: TurnMDP,
    policy: jax.Array,
    *,
    turn: int,
    group_size: int,
    num_siblings: int,
) -> Counterexample:
    """A counterexample with the numbers of `measure`."""
    numbers = measure(mdp, policy, turn, group_size, num_siblings)
    settings = {"turn": turn, "group_size": group_size, "num_siblings": num_siblings}
    arrays = {**mdp_arrays(mdp), "policy": policy}
    return Counterexample(statement=statement, arrays=arrays, settings=settings, numbers=numbers)


def smallest(max_denominator: int) -> tuple[Counterexample, int]:
    """Search for the simplest MDP in which siblings have the larger error (n = 2, G = 3, turn 1).

    Two turns, two states, two actions, nothing random but the policy: the first action is the
    state of turn 1, which pays 0 or 1 for each action. Policy probabilities are i/d; all instances
    with d = 2..max_denominator and sigma_V^2 > 0.

    Returns:
      among the violations of the smallest d the one with the largest margin, and how many instances
      were looked at.

    Raises:
      ValueError: there is none up to `max_denominator`.
    """
    grid = [
        (d, *choice)
        for d in range(2, max_denominator + 1)
        for choice in itertools.product(range(1, d), range(d + 1), range(d + 1), range(16))
    ]
    rewards = np.zeros((len(grid), 2, 2, 2))
    rewards[:, 1] = [_bits(pattern) for *_, pattern in grid]
    rights = np.array([[share / d, 0.5, a / d, b / d] for d, share, a, b, _ in grid])
    policies = np.stack([rights, 1.0 - rights], axis=-1).reshape(-1, 2, 2, 2)
    transitions = np.zeros((len(grid), 2, 2, 2, 2))
    transitions[:, 0] = np.eye(2)
    start = np.tile([1.0, 0.0], (len(grid), 1))
    mdps = jax.vmap(TurnMDP)(transitions, rewards, start)
    parts = jax.vmap(boundary_variances)(mdps, policies)
    gain = np.asarray(trajectory_error(parts, 3) - sibling_error(parts, 2))[:, 1]
    gain = np.where(np.asarray(parts.upstream)[:, 1] > 1e-9, gain, np.inf)
    denominators = np.array([d for d, *_ in grid])
    if not (gain < -1e-9).any():
        raise ValueError(f"max_denominator is {max_denominator}: no violation, search further")
    d = denominators[gain < -1e-9].min()
    best = int(np.where(denominators == d, gain, np.inf).argmin())
    _, share, a, b, pattern = grid[best]
    statement = (
        "RTPO's Theorem 2(b) with n = G-1 = 2: two deterministic turns, the first action is the next "
        f"state (state 0 with probability {share}/{d}), action 0 has probability {a}/{d} in state 0 "
        f"and {b}/{d} in state 1, outcomes {_bits(pattern).tolist()}. sigma_V^2 > 0 and yet siblings "
        "have the larger mean squared error. No such MDP has probabilities with a smaller denominator."
    )
    mdp = TurnMDP(transitions[best], rewards[best], start[best])
    found = record(statement, mdp, policies[best], turn=1, group_size=3, num_siblings=2)
    return found, int(np.isfinite(gain).sum())


def _bits(pattern):
    return np.array([[pattern >> 3 & 1, pattern >> 2 & 1], [pattern >> 1 & 1, pattern & 1]])


def _two_turn_worlds():
    """MDPs of two turns, states and actions by name: chance alone leads to the state of turn 1."""
    nothing = np.zeros((2, 2))
    # State 1 is never reached; turn 0 ends the episode after action 0.
    stop, gamble = np.zeros((2, 2, 2, 2, 2))
    stop[0, :, 1, 0] = 1.0
    gamble[0, :, 1] = 0.3, 0.7
    even = np.full((2, 2, 2, 2), 0.5)
    return {
        "chance": TurnMDP(
            np.tile([0.3, 0.7], (2, 2, 2, 1)), [nothing, [[0, 1], [0, 1]]], [1.0, 0.0]
        ),
        "early": TurnMDP(stop, [[[0.5, 0.0]] * 2, [[0.0, 1.0]] * 2], [1.0, 0.0]),
        "prizes": TurnMDP(gamble, [[[0.2, 0.0]] * 2, [[1.0, 1.0], [0.0, 0.0]]], [1.0, 0.0]),
        "luck": TurnMDP(even, [nothing, [[0.8, 1.0], [0.0, 0.0]]], [1.0, 0.0]),
    }


def named() -> dict[str, Counterexample]:
    """The counterexamples that are constructed, not searched for."""
    chance, early, prizes, luck = _two_turn_worlds().values()
    rows = jnp.array([[[0.5, 0.5], [0.5, 0.5]], [[0.5, 0.5], [0.45, 0.55]]])
    even = jnp.broadcast_to(jnp.array([[[0.5, 0.5]], [[0.4, 0.6]]]), (2, 2, 2))
    two, four = tabular.lock(2), tabular.lock(4)
    return {
        "two_states": record(
            "Theorem 2(b) with n = 2, G = 3: chance (.3, .7) leads to one of two states, which pay "
            "(0, 1) for their actions; policies (.5, .5) and (.45, .55). Nothing is left to chance "
            "after the action, so the larger group wins.",
            chance, rows, turn=1, group_size=3, num_siblings=2,
        ),
        "rare_lock": record(
            "Theorem 2(b) with n = 2, G = 3: last turn of a two-turn lock opened with probability "
            ".1 a turn. Every two-turn lock with p < 1/(G-1)^2 does it.",
            two, tabular.lock_policy(two, 0.1), turn=1, group_size=3, num_siblings=2,
        ),
        "early_end": record(
            "Equal group sizes n = G = 3 and sigma_V^2 > 0: turn 0 ends the episode with reward 1/2 "
            "or goes on to a choice between 0 and 1 taken with (.4, .6). Episodes that ended are a "
            "quieter baseline than siblings, whose returns all vary.",
            early, even, turn=1, group_size=3, num_siblings=3,
        ),
        "zero_wins": record(
            "Four-turn lock, p = .6, turn 0: estimating 0 has mean squared error sigma_A^2, less than "
            "a fifth of that of either estimate. Mean squared error rewards shrinking.",
            four, tabular.lock_policy(four, 0.6), turn=0, group_size=3, num_siblings=2,
        ),
        "deviation": record(
            "Siblings over the deviation of their group (n = 2): action 0 pays .2, action 1 gets 1 "
            "with probability .3. Action 1 is better, but action 0 wins more comparisons, and with "
            "two siblings a scaled estimate counts only who won: it expects the wrong sign.",
            prizes, tabular.uniform_policy(prizes), turn=0, group_size=3, num_siblings=2,
        ),
        "upstream": record(
            "Chance (.5, .5) leads to a rich state, which pays .8 and 1, or a poor one, which pays 0. "
            "Action 0 is the worse one of the rich state, A = -.1, and yet episodes expect a positive "
            "estimate for it, 2/3 (A + V(S) - mu): the state is better than the average.",
            luck, tabular.uniform_policy(luck), turn=1, group_size=3, num_siblings=2,
        ),
        "wrong_sign": record(
            "Four-turn lock, p = .6, turn 2, equal groups of 3: where an action matters and the "
            "estimate is not 0, the sibling estimate has the wrong sign more often.",
            four, tabular.lock_policy(four, 0.6), turn=2, group_size=3, num_siblings=3,
        ),
    }  # fmt: skip


def violations(max_denominator: int) -> tuple[list[Claim], dict[str, Any]]:
    """Claims that fail, with the counterexamples that show it."""
    found, looked_at = smallest(max_denominator)
    examples = {"smallest": found, **named()}

    def fails(claim, name, better, worse, count=1):
        numbers = examples[name].numbers
        return at_least(claim, f"counterexample {name}", count, numbers[worse] - numbers[better],
                        0.0, expected=False, counterexample=name)  # fmt: skip

    printed = "RTPO Thm 2(b) as printed, n = G-1: MSE(A^traj) - MSE(A^H) > 0 whenever sV > 0"
    both = ("mse_siblings", "mse_episodes")
    claims = [
        fails(printed, "smallest", *both, looked_at),
        fails(printed, "two_states", *both),
        fails(printed, "rare_lock", *both),
        fails("RTPO Thm 2(b) at equal group size where episodes may end early", "early_end", *both),
        fails("RTPO, read into Thm 2: siblings have the wrong sign less often, A and estimate not 0",
              "wrong_sign", "wrong_sign_siblings", "wrong_sign_episodes"),
    ]  # fmt: skip
    zero = examples["zero_wins"].numbers
    worst = zero["sigma_a_squared"] - zero["mse_siblings"]
    claims.append(
        at_least("RTPO, read into Thm 2(b): sibling estimates have a lower MSE than estimating 0",
                 "counterexample zero_wins", 1, worst, 0.0, expected=False, counterexample="zero_wins")
    )  # fmt: skip
    scaled = examples["deviation"].numbers
    product = scaled["advantage_of_action_0"] * scaled["expected_over_deviation"]
    claims.append(
        at_least("RTPO's siblings over their deviation (GRPO) expect the sign of A (product of both)",
                 "counterexample deviation", 1, product, 0.0, expected=False,
                 counterexample="deviation")
    )  # fmt: skip
    return claims, examples
