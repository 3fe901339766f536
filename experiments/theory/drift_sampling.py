"""The exact errors of continuation estimates against sampled continuations; part of `theorem_drift`."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import tabular
from experiments.theory.claims import Claim, at_most
from experiments.theory.drift_continuations import Pair
from tabular.ratios.importance import clip_ratios, continuation_estimate, policy_ratios
from tabular.ratios.weight_distributions import clamped_estimate, continuation_distributions

CLAMP = (0.5, 2.0)


@partial(jax.jit, static_argnums=(3,))
def sample(
    pair: Pair, factors: jax.Array, key: jax.Array, count: int
) -> tuple[jax.Array, jax.Array]:
    """Weights and returns [count] of continuations after (turn 0, state 0, action 0).

    The behaviour samples turns 1.. and the weight is the product of `factors` along the way.
    """
    mdp = pair.mdp
    num_states = mdp.num_states

    def step(carry, inputs):
        states, running, weights, returns = carry
        key, transitions, rewards, probabilities, factor = inputs
        act, move = jax.random.split(key)
        actions = jax.random.categorical(act, jnp.log(probabilities)[states])
        weights = weights * jnp.where(running, factor[states, actions], 1.0)
        returns = returns + jnp.where(running, rewards[states, actions], 0.0)
        following = _move(move, transitions[states, actions])
        running = running & (following < num_states)
        return (jnp.where(running, following, 0), running, weights, returns), None

    first, *keys = jax.random.split(key, mdp.num_turns)
    states = _move(first, jnp.broadcast_to(mdp.transitions[0, 0, 0], (count, num_states)))
    running = states < num_states
    carry = (jnp.where(running, states, 0), running, jnp.ones(count), jnp.zeros(count))
    later = [table[1:] for table in (mdp.transitions, mdp.rewards, pair.behavior, factors)]
    (_, _, weights, returns), _ = jax.lax.scan(step, carry, (jnp.stack(keys), *later))
    return weights, returns


def _move(key, rows):
    """The next state, or S where the episode ends, for each row [N, S] of transitions."""
    end = jnp.maximum(1.0 - rows.sum(-1, keepdims=True), 0.0)
    return jax.random.categorical(key, jnp.log(jnp.concatenate([rows, end], axis=-1)))


def compare(pair: Pair, key: jax.Array, count: int) -> tuple[list[Claim], list[dict[str, Any]]]:
    """Sampled mean and variance of Q-hat in every mode, in standard errors from the exact ones."""
    ratios = policy_ratios(pair.mdp, pair.policy, pair.behavior)
    clipped = clip_ratios(ratios, 0.2, 0.2)
    distributions = continuation_distributions(pair.mdp, pair.behavior, ratios)
    fresh, ones = pair._replace(behavior=pair.policy), jnp.ones_like(ratios)
    clamped = clamped_estimate(pair.mdp, pair.policy, distributions, *CLAMP)
    modes = {"fresh": (fresh, ones), "stale": (pair, ones), "exact": (pair, ratios),
             "clipped": (pair, clipped), "clamped": (pair, ratios)}  # fmt: skip
    rows = []
    for number, (mode, (sampler, factors)) in enumerate(modes.items()):
        weights, returns = sample(sampler, factors, jax.random.fold_in(key, number), count)
        exact = clamped
        if mode == "clamped":
            weights = np.clip(np.asarray(weights), *CLAMP)
        else:
            exact = continuation_estimate(pair.mdp, pair.policy, sampler.behavior, factors)
        estimates = np.asarray(pair.mdp.rewards[0, 0, 0] + weights * returns)
        rows.append({"mode": mode, **_distance(pair, estimates, exact)})
    largest = max(abs(row[name]) for row in rows for name in ("mean_errors", "variance_errors"))
    where = f"one random MDP, 5 modes, {count} sampled continuations each"
    statement = "sampled mean and variance of Q-hat, in standard errors from the exact ones"
    return [at_most(statement, where, 10, largest, 5.0)], rows


def _distance(pair, sampled, exact):
    mean = float(exact.bias[0, 0, 0] + tabular.values(pair.mdp, pair.policy).Q[0, 0, 0])
    variance = float(exact.variance[0, 0, 0])
    squares = (sampled - sampled.mean()) ** 2
    scale = np.sqrt(sampled.size)
    return {
        "exact_mean": mean,
        "sampled_mean": float(sampled.mean()),
        "mean_errors": float((sampled.mean() - mean) / (sampled.std() / scale)),
        "exact_variance": variance,
        "sampled_variance": float(squares.mean()),
        "variance_errors": float((squares.mean() - variance) / (squares.std() / scale)),
    }
