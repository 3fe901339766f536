"""Cells of a table of guarantees: one update, by one method, of one policy class, exactly.

SeeUPO (arXiv 2602.06554, Table 1) asks of every pair of advantage and update whether performance can
fall. Here the pair is made of numbers, an `Estimator` and an `Update`, so that hundreds of MDPs times
all pairs run through a few compiled programs: `maximise` here, where every turn and state has a row
of its own and the clipped surrogate is maximised exactly (`gradient` takes one softmax gradient step,
REINFORCE, instead); `tabular.guarantees.tied_updates` for shared parameters and for one ratio per
episode; and `tabular.guarantees.finite_groups` for sampled batches.

Turns are updated in stages: all in the first stage (PPO, GRPO), or the last turn first, carrying the
ratios of the turns already updated (SeeUPO, Eqs. 6-8) or sampling anew from the policy as it stands
(`fresh`, RTPO, arXiv 2608.18682, Algorithm 1).

Discounts: gamma^h r_h in place of r_h makes any return from turn 0 on the discounted one. A value
based advantage is divided by gamma^h again, as implementations do.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tabular.exact import performance, values
from tabular.instances import random_mdp
from tabular.mdp import TurnMDP
from tabular.objectives import (
    credit,
    maximise_surrogate,
    mean_credit,
    merge_contexts,
)
from tabular.paths import Paths, path_probabilities, path_ratios
from tabular.updates import group_advantages, value_advantages


class Case(NamedTuple):
    """An MDP, a policy on it, and how its rows are tied.

    Attributes:
      mdp: the MDP.
      policy: [H, S, A] the policy before the update.
      features: [H, S, A, D]; a step theta makes the policy proportional to
        policy exp(features @ theta). A policy of the log-linear class stays in it.
      contexts: [H, S] int, what the policy sees; equal numbers at a turn look alike.
      noise: [H, S] what a noisy critic adds to the value of each state.
    """

    mdp: TurnMDP
    policy: jax.Array
    features: jax.Array
    contexts: jax.Array
    noise: jax.Array


class Estimator(NamedTuple):
    """How advantages are estimated, as numbers.

    Attributes:
      group: True for return minus its mean over the task, at every turn; False for a generalised
        advantage estimate from the values of the policy.
      scale: True to divide the group's by its standard deviation.
      noisy: how much of the case's noise is added to the values.
      trace_decay: lambda of the generalised advantage estimate.
      discount: gamma.
    """

    group: bool | jax.Array = False
    scale: bool | jax.Array = False
    noisy: float | jax.Array = 0.0
    trace_decay: float | jax.Array = 1.0
    discount: float | jax.Array = 1.0


class Update(NamedTuple):
    """Which turns move when, and how far.

    Attributes:
      stages: [H, H] bool, the turns that each stage updates.
      fresh: True to estimate each stage from the policy as it stands, False to carry ratios.
      gradient: True for one gradient step in place of the maximiser.
      mean: True for the geometric mean of an episode's ratios, False for their product.
      clip: clip_low and clip_high.
      steps: [K] step sizes of gradient ascent; the gradient step has size sum(steps).
    """

    stages: jax.Array
    fresh: bool | jax.Array
    gradient: bool | jax.Array
    mean: bool | jax.Array
    clip: float | jax.Array
    steps: jax.Array


class Result(NamedTuple):
    """An update and what decided it.

    Attributes:
      policy: [H, S, A] the new policy.
      slope: cosine between the first step and the gradient of performance; below 0 the update
        lowers performance however small the step. NaN for a maximiser.
      discounted_slope: the same for the performance discounted as the estimator is.
      gain: by how much the surrogate rose; NaN where turns have surrogates of their own.
    """

    policy: jax.Array
    slope: jax.Array
    discounted_slope: jax.Array
    gain: jax.Array


def all_at_once(num_turns: int) -> np.ndarray:
    """Stages [H, H] that update every turn in the first one."""
    return np.broadcast_to(np.arange(num_turns)[:, None] == 0, (num_turns, num_turns))


def last_first(num_turns: int) -> np.ndarray:
    """Stages [H, H] that update one turn each, from the last to the first."""
    return np.eye(num_turns, dtype=bool)[::-1]


def discounted(mdp: TurnMDP, discount: float | jax.Array) -> TurnMDP:
    """The MDP with rewards gamma^h r_h: its performance is the discounted one."""
    powers = discount ** jnp.arange(mdp.num_turns)
    return TurnMDP(mdp.transitions, powers[:, None, None] * mdp.rewards, mdp.start)


def value_estimates(case: Case, policy: jax.Array, rows: Paths, how: Estimator) -> jax.Array:
    """Generalised advantage estimates [M, H] of a policy's episodes, from its values plus noise."""
    scaled = discounted(case.mdp, how.discount)
    powers = how.discount ** jnp.arange(case.mdp.num_turns)
    noise = jnp.pad(how.noisy * powers[:, None] * case.noise, ((0, 1), (0, 0)))
    estimates = value_advantages(scaled, rows, values(scaled, policy).V + noise, how.trace_decay)
    return estimates / powers[None, :]


def estimates(case: Case, policy: jax.Array, paths: Paths, how: Estimator) -> jax.Array:
    """Advantages [M, H] of every episode in the limit of unbounded groups."""
    scaled = discounted(case.mdp, how.discount)
    grouped = group_advantages(scaled, policy, paths)
    normal = group_advantages(scaled, policy, paths, scale=True)
    by_value = value_estimates(case, policy, paths, how)
    return jnp.where(how.group, jnp.where(how.scale, normal, grouped), by_value)


def maximise(paths: Paths, case: Case, how: Estimator, update: Update) -> Result:
    """Per-turn tables: maximise the exact expected clipped surrogate, stage by stage."""

    def batch(source, _):
        return (
            paths,
            path_probabilities(case.mdp, source, paths),
            estimates(case, source, paths, how),
        )

    unused = jnp.zeros(update.stages.shape[0])
    policy, _ = staged(case, update, batch, unused, len(paths.states))
    return Result(policy, jnp.nan, jnp.nan, jnp.nan)


def staged(case: Case, update: Update, batch, drawn, num_rows: int):
    """Update per-turn tables in stages from batches of episodes, exact or sampled.

    Args:
      case: the case.
      update: the update.
      batch: from the policy that samples and a stage's part of `drawn` to (rows, weights [M],
        advantages [M, H]).
      drawn: pytree with a leading axis of stages, handed to `batch`.
      num_rows: M.

    Returns:
      the new policy [H, S, A], and the rows of all stages.
    """
    old = case.policy

    def stage(carry, inputs):
        current, carried = carry
        turns, numbers = inputs
        source = jnp.where(update.fresh, current, old)
        rows, weights, advantages = batch(source, numbers)
        found = credit(rows, weights, advantages * carried[:, None], old.shape)
        found = merge_contexts(found, case.contexts)
        best = maximise_surrogate(old, found, update.clip, update.clip)
        stepped = _gradient_step(old, found, update.steps.sum())
        improved = jnp.where(update.gradient, stepped, best)
        current = jnp.where(turns[:, None, None], improved, current)
        return (current, carried * carried_factor(current, old, turns, rows, update)), rows

    inputs = (update.stages, drawn)
    (policy, _), rows = jax.lax.scan(stage, (old, jnp.ones(num_rows)), inputs)
    return policy, rows


@jax.jit
@jax.vmap
def monotone_gain(mdp: TurnMDP, policy: jax.Array) -> jax.Array:
    """Change of performance by one exact proximal update of each of N MDPs, [N]; never below 0.

    The update maximises the clipped surrogate of the true advantages at all turns, clip 0.2. Takes a
    stack of MDPs and their policies [N, H, S, A].
    """
    state_values, action_values = values(mdp, policy)
    found = mean_credit(mdp, policy, action_values - state_values[:-1, :, None])
    improved = maximise_surrogate(policy, found, 0.2, 0.2)
    return performance(mdp, improved) - mdp.start @ state_values[0]


def proximal_case(key: jax.Array, num_turns: int, num_states: int, num_actions: int):
    """A random MDP with rewards in (0, 1), and a policy [H, S, A] with uniform rows."""
    first, second = jax.random.split(key)
    mdp = random_mdp(first, num_turns, num_states, num_actions)
    shape = mdp.rewards.shape
    # Normalised exponentials are uniform on the simplex and compile faster than a Dirichlet draw.
    flat = jax.random.exponential(second, (mdp.rewards.size,), dtype=jnp.float64).reshape(shape)
    return mdp, flat / flat.sum(-1, keepdims=True)


def _gradient_step(policy, found, step):
    """Softmax tables after one step along the gradient of the expected unclipped surrogate."""
    pull = found.gain - found.loss
    direction = pull - policy * pull.sum(-1, keepdims=True)
    return _normalised(policy * jnp.exp(step * direction))


def carried_factor(
    current: jax.Array, old: jax.Array, turns: jax.Array, rows: Paths, update: Update
) -> jax.Array:
    """Factor [M] by which a stage multiplies the carried ratios; 1 if estimates are fresh."""
    moved = jnp.where(turns[:, None, None], current, old)
    return jnp.where(update.fresh, 1.0, path_ratios(moved, old, rows))


def _normalised(rows):
    return rows / rows.sum(-1, keepdims=True)
