"""How fast the variance of a continuation weight grows with the horizon; parts of `theorem_drift`."""

import jax
import jax.numpy as jnp
import numpy as np

import tabular
from experiments.theory.claims import Claim, at_least, at_most
from experiments.theory.drift_continuations import Pair, full_length
from tabular.ratios.importance import policy_ratios, weight_moments

TOKENS, LENGTH = 2, 2  # an action is a string of two tokens, one of four
STATIONARY_TURNS = 40


@jax.jit
@jax.vmap
def bounds(pair: Pair) -> dict[str, jax.Array]:
    """log E[w^2] minus N log(1 + delta), smallest over turns and states; of a stack, [M] each.

    1 + delta is the smallest conditional second moment of a ratio: over the actions of a state
    ("turns"), or over the tokens after a prefix ("tokens"), the four actions being the strings of two
    tokens. "above" is N times the log of the largest over states, minus log E[w^2]. Episodes have full
    length, so that N is a number.
    """
    pair = full_length(pair)
    ratios = policy_ratios(pair.mdp, pair.policy, pair.behavior)
    logs = jnp.log(weight_moments(pair.mdp, pair.behavior, ratios).second)
    by_action = jnp.log((pair.behavior * ratios**2).sum(-1))
    num_turns = pair.mdp.num_turns
    turns = (num_turns - jnp.arange(num_turns + 1.0))[:, None]
    by_token = jnp.log(_token_moments(pair)).min()
    return {
        "turns": (logs - turns * by_action.min()).min(),
        "tokens": (logs - turns * LENGTH * by_token).min(),
        "above": (turns * by_action.max() - logs).min(),
    }


def _token_moments(pair):
    """E[ratio^2 of the next token | state, prefix] for all prefixes, [H, S, prefixes]."""
    shape = pair.policy.shape[:2]
    found = []
    for t in range(LENGTH):
        after = (*shape, TOKENS**t, TOKENS, TOKENS ** (LENGTH - t - 1))
        policy, behavior = (table.reshape(after).sum(-1) for table in (pair.policy, pair.behavior))
        policy, behavior = (p / p.sum(-1, keepdims=True) for p in (policy, behavior))
        found.append((policy**2 / behavior).sum(-1))
    return jnp.concatenate(found, axis=-1)


def two_ratios(ratio: float, num_turns: int) -> np.ndarray:
    """Var omega over N = 1..num_turns turns by the recursion, [num_turns]; one state.

    The behaviour is uniform over two actions whose ratios are `ratio` and 2 - ratio.
    """
    shape = (num_turns, 1, 2)
    mdp = tabular.TurnMDP(np.ones((*shape, 1)), np.zeros(shape), np.ones(1))
    behavior = tabular.uniform_policy(mdp)
    policy = np.broadcast_to([ratio / 2, 1.0 - ratio / 2], shape)
    moments = weight_moments(mdp, behavior, policy_ratios(mdp, policy, behavior))
    return np.asarray(moments.second - moments.first**2)[-2::-1, 0]


def fitted_rate(horizons: np.ndarray, variances: np.ndarray) -> tuple[float, float]:
    """Slope of the regression of log(1 + Var omega) on N, and its R^2."""
    logs = np.log1p(variances)
    slope, intercept = np.polyfit(horizons, logs, 1)
    residual = logs - slope * horizons - intercept
    return float(slope), 1.0 - float(residual.var() / logs.var())


@jax.jit
@jax.vmap
def stationary(pair: Pair) -> tuple[jax.Array, jax.Array]:
    """Var omega over N = 40, 39, .. turns, [H], and sum_a b ratio^2 P, [S, S]; with all turns alike."""
    pair = full_length(pair)
    transitions, rewards, behavior, policy = (
        jnp.broadcast_to(table[:1], (STATIONARY_TURNS, *table.shape[1:]))
        for table in (pair.mdp.transitions, pair.mdp.rewards, pair.behavior, pair.policy)
    )
    mdp = tabular.TurnMDP(transitions, rewards, pair.mdp.start)
    ratios = policy_ratios(mdp, policy, behavior)
    variances = weight_moments(mdp, behavior, ratios).second[:-1] @ mdp.start - 1.0
    return variances, jnp.einsum("sa,sat->st", (behavior * ratios**2)[0], transitions[0])


def claims(pairs: Pair) -> list[Claim]:
    """Bounds on Var omega, its closed form for two ratios, and the exponential rate."""
    count = len(pairs.policy)
    found = bounds(pairs)
    where = f"{count} random MDPs, 6 turns of 2 tokens, from every boundary"
    variances, matrices = (np.asarray(part) for part in stationary(pairs))
    half = STATIONARY_TURNS // 2
    fits = [fitted_rate(STATIONARY_TURNS - np.arange(half), v[:half]) for v in variances]
    rates = np.log(abs(np.linalg.eigvals(matrices)).max(-1))
    slopes, squares = np.array(fits).T
    closed, turns = two_ratios(1.2, 100), np.arange(1, 101)
    whole, _ = fitted_rate(turns, closed)
    return [
        at_least("log E[omega^2] - N log(1 + delta), N tokens (RTPO, Eqs. 100-102)",
                 where, count, found["tokens"].min(), -1e-12),
        at_least("log E[omega^2] - N log(1 + delta), N turns (RTPO, Eqs. 100-102)", where, count,
                 found["turns"].min(), -1e-12),
        at_least("N log(1 + largest delta) - log E[omega^2], N turns (derived here)",
                 where, count, found["above"].min(), -1e-12),
        at_most("ratios 1.2, 0.8: Var omega = 1.04^N - 1 (.480 at 10, 49.5 at 100; RTPO, Eqs. 100-102)",
                "one state, N = 1..100", 100, abs(closed / (1.04**turns - 1.0) - 1.0).max(), 1e-12),
        at_most("fitted rate of log(1 + Var omega) on N = log E[ratio^2] = log 1.04 (derived here)",
                "one state, N = 1..100", 100, abs(whole - np.log(1.04)), 1e-12),
        at_most("fitted rate = log spectral radius of b ratio^2 P (derived here), relative",
                f"{count} random stationary MDPs, N = 21..40", count,
                abs(slopes / rates - 1.0).max(), 1e-3),
        at_least("R^2 of that exponential fit (RTPO, Theorem 3)",
                 f"{count} random stationary MDPs, N = 21..40", count, squares.min(), 0.999),
    ]  # fmt: skip
