"""Bias and variance of continuation estimates, by mode and horizon; parts of `theorem_drift`."""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

import tabular
from experiments.theory.claims import Claim, Counterexample, at_most, mdp_arrays
from tabular.ratios.importance import (
    ContinuationError,
    clip_ratios,
    continuation_estimate,
    policy_ratios,
    weight_moments,
)
from tabular.ratios.weight_distributions import clamped_estimate, continuation_distributions

CLAMPS = ((0.8, 1.2), (0.5, 2.0), (0.1, 10.0))


class Pair(NamedTuple):
    """An MDP with the recorded policy and the one it has become; a pytree, also stacked."""

    mdp: tabular.TurnMDP
    behavior: jax.Array
    policy: jax.Array


def random_mdps(
    rng: np.random.Generator, count: int, sizes: tuple[int, int, int], termination: float
) -> tabular.TurnMDP:
    """A stack of MDPs as `tabular.random_mdp` draws them, with numpy: nothing to compile."""
    rows = rng.dirichlet(np.ones(sizes[1]), (count, *sizes))
    rows *= 1.0 - termination * rng.random((count, *sizes, 1))
    start = rng.dirichlet(np.ones(sizes[1]), count)
    return jax.vmap(tabular.TurnMDP)(rows, rng.random((count, *sizes)), start)


def random_pairs(
    rng: np.random.Generator, count: int, sizes: tuple[int, int, int], drift: float
) -> Pair:
    """A stack of random MDPs whose episodes may end early, with two policies each.

    Logits of the policy are the behaviour's, standard normal, plus drift times N(0, 1).
    """
    mdps = random_mdps(rng, count, sizes, 0.3)
    here = rng.normal(size=(count, *sizes))
    there = here + drift * rng.normal(size=(count, *sizes))
    return Pair(mdps, *(jnp.asarray(special.softmax(x, axis=-1)) for x in (here, there)))


def full_length(pair: Pair) -> Pair:
    """The same pair without early ends; also of a stack."""
    rows = pair.mdp.transitions
    rows = rows / rows.sum(-1, keepdims=True)
    return pair._replace(mdp=dataclasses.replace(pair.mdp, transitions=rows))


def first_turns(pair: Pair, num_turns: int) -> Pair:
    """The same pair with episodes cut after `num_turns` turns."""
    transitions, rewards, behavior, policy = (
        table[:num_turns]
        for table in (pair.mdp.transitions, pair.mdp.rewards, pair.behavior, pair.policy)
    )
    return Pair(tabular.TurnMDP(transitions, rewards, pair.mdp.start), behavior, policy)


def member(pairs: Pair, index: int) -> Pair:
    """One pair of a stack."""
    return jax.tree.map(lambda leaf: leaf[index], pairs)


def estimates(
    pair: Pair, clip: float, reward_variances: jax.Array | None = None
) -> dict[str, ContinuationError]:
    """The continuation estimates whose weight is a product over turns, by mode."""
    ratios = policy_ratios(pair.mdp, pair.policy, pair.behavior)
    ones = jnp.ones_like(ratios)
    estimate = partial(continuation_estimate, pair.mdp, pair.policy)
    return {
        "fresh": estimate(pair.policy, ones, reward_variances),
        "stale": estimate(pair.behavior, ones, reward_variances),
        "exact": estimate(pair.behavior, ratios, reward_variances),
        "clipped": estimate(pair.behavior, clip_ratios(ratios, clip, clip), reward_variances),
    }


@jax.jit
def _measure(pair, clip):
    found = estimates(pair, clip)
    ratios = policy_ratios(pair.mdp, pair.policy, pair.behavior)
    of_behavior = tabular.values(pair.mdp, pair.behavior).Q
    gap = of_behavior - tabular.values(pair.mdp, pair.policy).Q
    largest = {mode: abs(estimate.bias).max() for mode, estimate in found.items()}
    off = abs(found["stale"].bias - gap).max()
    weight = abs(weight_moments(pair.mdp, pair.behavior, ratios).first - 1.0).max()
    return {**largest, "stale - gap": off, "weight": weight}


def unbiasedness(pairs: Pair, clip: float) -> tuple[list[Claim], dict[str, Counterexample]]:
    """Fresh and exactly weighted continuations have no bias, stale ones the difference of values."""
    found = jax.vmap(_measure, in_axes=(0, None))(pairs, clip)
    worst = {name: float(values.max()) for name, values in found.items()}
    count = int(found["fresh"].size)
    where = f"{count} random MDPs, every turn, state and action"
    claims = [
        at_most("fresh continuations are unbiased (RTPO, Theorem 3(a))",
                where, count, worst["fresh"], 1e-12),
        at_most("bias of stale continuations = F of theta_0 - F of theta_>k (RTPO, Theorem 3)",
                where, count, worst["stale - gap"], 1e-12),
        at_most("stale continuations are unbiased (RTPO, Theorem 3, says not)", where, count,
                worst["stale"], 1e-2, expected=False, counterexample="bias_stale"),
        at_most("exact weight: E[omega] = 1 (RTPO, Eq. 4)", where, count, worst["weight"], 1e-10),
        at_most("stale continuations with the exact weight are unbiased (RTPO, Eq. 105 unclamped)",
                where, count, worst["exact"], 1e-10),
        at_most("stale continuations, product of clipped ratios: unbiased (RTPO, Eq. 103, says not)",
                where, count, worst["clipped"], 1e-2, expected=False,
                counterexample="bias_clipped"),
    ]  # fmt: skip
    saved = {}
    for mode in ("stale", "clipped"):
        saved[f"bias_{mode}"] = biased(member(pairs, int(found[mode].argmax())), mode, clip)
    return claims, saved


def counterexample(
    statement: str,
    arrays: dict[str, Any],
    settings: dict[str, Any],
    replay: Callable[[Counterexample], dict[str, float]],
) -> Counterexample:
    """A counterexample whose numbers are those that `replay` computes from the rest of it."""
    rest = Counterexample(statement=statement, arrays=arrays, settings=settings, numbers={})
    return dataclasses.replace(rest, numbers=replay(rest))


def pair_arrays(pair: Pair) -> dict[str, Any]:
    """The arrays of a pair by name; `saved_pair` reads them back."""
    return {**mdp_arrays(pair.mdp), "behavior": pair.behavior, "policy": pair.policy}


def saved_pair(saved: Counterexample) -> Pair:
    """The pair of a counterexample."""
    behavior, policy = (jnp.asarray(saved.arrays[name]) for name in ("behavior", "policy"))
    return Pair(saved.mdp, behavior, policy)


def biased(pair: Pair, mode: str, clip: float) -> Counterexample:
    """The largest bias of one mode on one MDP as a counterexample."""
    statement = f"Continuation estimates of mode {mode!r} have a bias of this size."
    settings = {"kind": "bias", "mode": mode, "clip": clip}
    return counterexample(statement, pair_arrays(pair), settings, replay_bias)


def replay_bias(saved: Counterexample) -> dict[str, float]:
    """The number of `biased` computed again."""
    found = estimates(saved_pair(saved), saved.settings["clip"])[saved.settings["mode"]]
    return {"largest bias": float(abs(found.bias).max())}


def by_horizon(world: str, pairs: list[Pair], clip: float) -> list[dict[str, Any]]:
    """Error of every mode against the number of turns that follow, means over pairs, states, actions.

    Args:
      world: name of the first column.
      pairs: MDPs of one size whose rewards are probabilities of a Bernoulli outcome.
      clip: distance of the ratio clip from 1.

    Returns:
      A row for every mode and turn.
    """
    errors: dict[str, list[np.ndarray]] = {}
    for pair in pairs:
        for mode, found in all_estimates(pair, clip, CLAMPS).items():
            bias, variance = np.asarray(found.bias), np.asarray(found.variance)
            of_turn = np.stack([abs(bias), variance, bias**2 + variance]).mean((2, 3))
            errors.setdefault(mode, []).append(of_turn)
    rows = []
    for mode, found in errors.items():
        for turn, numbers in enumerate(np.mean(found, 0).T):
            remaining = pairs[0].mdp.num_turns - 1 - turn
            rows.append({"world": world, "mode": mode, "remaining_turns": remaining,
                         **_error_columns(numbers)})  # fmt: skip
    return rows


def _error_columns(numbers):
    bias, variance, square = (float(number) for number in numbers)
    return {"mean_abs_bias": bias, "mean_variance": variance, "rmse": math.sqrt(square)}


def by_clamp(pairs: list[Pair], widths: tuple[float, ...]) -> list[dict[str, Any]]:
    """Error at the first turn against the clamp [1 / width, width], means over pairs."""
    errors: dict[float, list[list[float]]] = {}
    for pair in pairs:
        clamps = tuple((1.0 / width, width) for width in widths)
        found = list(all_estimates(pair, 0.2, clamps).values())[-len(widths) :]
        for width, (bias, variance) in zip(widths, found, strict=True):
            bias, variance = np.asarray(bias[0]), np.asarray(variance[0])
            error = [abs(bias).mean(), variance.mean(), (bias**2 + variance).mean()]
            errors.setdefault(width, []).append(error)
    remaining = pairs[0].mdp.num_turns - 1
    return [
        {"clamp_high": width, "remaining_turns": remaining, **_error_columns(np.mean(found, 0))}
        for width, found in errors.items()
    ]


def all_estimates(
    pair: Pair, clip: float, clamps: tuple[tuple[float, float], ...]
) -> dict[str, ContinuationError]:
    """Estimates by mode for Bernoulli rewards, also those that clamp the whole product."""
    noise = pair.mdp.rewards * (1.0 - pair.mdp.rewards)
    found = _estimates(pair, clip, noise)
    ratios = policy_ratios(pair.mdp, pair.policy, pair.behavior)
    distributions = continuation_distributions(pair.mdp, pair.behavior, ratios, noise)
    for low, high in clamps:
        found[f"clamped {low:g}-{high:g}"] = clamped_estimate(
            pair.mdp, pair.policy, distributions, low, high, noise
        )
    return found


def two_ratio_pair(rng: np.random.Generator, num_turns: int, ratio: float) -> Pair:
    """A random MDP with three states where only the outcome pays, and two policies.

    In every state the behaviour is uniform over two actions and the policy gives them ratios `ratio`
    and 2 - ratio. Then Var omega = (1 + (ratio - 1)^2)^N - 1, and the product of N ratios takes N + 1
    values, so that a clamp is evaluated exactly at any horizon.
    """
    shape = (num_turns, 3, 2)
    rewards = np.zeros(shape)
    rewards[-1] = rng.random(shape[1:])
    mdp = tabular.TurnMDP(rng.dirichlet(np.ones(3), shape), rewards, rng.dirichlet(np.ones(3)))
    first = np.where(rng.random(shape[:2]) < 0.5, ratio, 2.0 - ratio)
    policy = np.stack([first, 2.0 - first], axis=-1) / 2.0
    return Pair(mdp, jnp.full(shape, 0.5), jnp.asarray(policy))


def lock_pair(num_turns: int, ratio: float) -> Pair:
    """The combination lock, where every later turn matters; the right action has ratio `ratio`."""
    mdp = tabular.lock(num_turns)
    return Pair(mdp, tabular.uniform_policy(mdp), tabular.lock_policy(mdp, ratio / 2))


_estimates = jax.jit(estimates)
