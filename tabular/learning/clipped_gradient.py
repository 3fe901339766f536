"""The update RTPO really runs: gradient ascent on the clipped surrogate, stage after stage.

For each stage of turn k (arXiv 2608.18682, Eq. 6 and Algorithm 1)

    J_k(theta) = E[min(r_k A_k, clip(r_k, 1 - low, 1 + high) A_k)],   r_k = pi_theta / pi_stage,

with boundary states as the trunk policy of the sweep's start meets them, actions of the policy at the
start of the stage, and continuations of that same policy. `ascent_sweep` takes the expectation exactly,
with siblings of unbounded number; `sampled_sweep` draws trunks and n siblings at every boundary.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rtpo_jax import core
from tabular.exact import values
from tabular.instances import Instance, uniform_policy
from tabular.learning.sampling import (
    check_outcomes,
    pick_action,
    returns_from,
    trunk_states,
    uniform,
)
from tabular.mdp import TurnMDP, check_integer, require_float64_mode
from tabular.objectives import Credit, expected_surrogate, mean_credit
from tabular.policy_classes import PolicyClass
from tabular.updates import ascend


class Ascent(NamedTuple):
    """How a stage ascends: `clip_low`, `clip_high` as in the core, `learning_rate` of plain ascent."""

    clip_low: float
    clip_high: float
    learning_rate: float


def ascent_sweep(
    mdp: TurnMDP,
    policy_class: PolicyClass,
    params: jax.Array,
    order: jax.Array,
    ascent: Ascent,
    num_epochs: int,
    *,
    fresh: bool = True,
) -> jax.Array:
    """One sweep of stages on the exact expectation of J_k.

    With n siblings and ratio 1 the expected gradient is (n - 1) / n times this one (RTPO, Eq. 64),
    a factor of the learning rate.

    Args:
      mdp: the MDP.
      policy_class: what parameters mean. With one table per turn a stage moves its own turn only,
        and later turns are frozen exactly; shared parameters move the other turns too.
      params: parameters at the start of the sweep.
      order: [L] int turns in the order of their stages.
      ascent: clip bounds and learning rate.
      num_epochs: gradient steps of each stage.
      fresh: False takes ratios, actions and continuations of the start of the sweep in all stages:
        the turns are updated simultaneously.

    Returns:
      parameters after the sweep.
    """
    trunk = policy_class.policy(params)
    turns = jnp.arange(trunk.shape[0])[:, None, None]

    def stage(current, turn):
        here = turns == turn
        behavior = policy_class.policy(current) if fresh else trunk
        # Up to the turn the measure is the trunk's, at the turn the policy's that acts there.
        measure = jnp.where(here, behavior, trunk)
        action_values = values(mdp, behavior).Q
        baseline = (behavior * action_values).sum(-1, keepdims=True)
        advantages = jnp.where(here, action_values - baseline, 0.0)
        found = mean_credit(mdp, measure, advantages)
        return _ascend(policy_class, current, behavior, found, ascent, num_epochs), None

    return jax.lax.scan(stage, params, order)[0]


def sampled_sweep(
    key: jax.Array,
    mdp: TurnMDP,
    policy_class: PolicyClass,
    params: jax.Array,
    order: jax.Array,
    ascent: Ascent,
    num_epochs: int,
    *,
    num_trunks: int,
    num_siblings: int,
) -> jax.Array:
    """One sweep of stages from sampled trunks and siblings (RTPO, Algorithm 1).

    Trunks are drawn once, by the policy at the start of the sweep. At each stage every trunk that is
    still running gets n siblings, drawn and continued by the current policy, with 0-or-1 rewards;
    their advantages are `core.sibling_relative`, and the stage ascends the sum of the surrogate over
    all siblings, divided by trunks times n.

    Args:
      key: JAX random key.
      mdp: the MDP, rewards in 0..1.
      policy_class: see `ascent_sweep`.
      params: parameters at the start of the sweep.
      order: [L] int turns in the order of their stages.
      ascent: clip bounds and learning rate.
      num_epochs: gradient steps of each stage on its siblings.
      num_trunks: T, episodes of the sweep.
      num_siblings: n = G - 1 of the paper; 1 has no signal.

    Returns:
      parameters after the sweep. Raises ValueError on rewards outside 0..1 or a size below 1.
    """
    check_outcomes(mdp)
    check_integer("num_trunks", num_trunks, 1)
    check_integer("num_siblings", num_siblings, 1)
    num_turns, num_rows = mdp.num_turns, num_trunks * num_siblings
    sizes = [num_trunks * (2 * num_turns + 1), order.shape[0] * (3 * num_turns + 1) * num_rows]
    reach, follow = jnp.split(uniform(key, (sum(sizes),)), sizes[:1])
    trunk = policy_class.policy(params)
    trunks = trunk_states(reach.reshape(-1, num_trunks), mdp, trunk)

    def stage(current, inputs):
        turn, draws = inputs
        behavior = policy_class.policy(current)
        found = _sampled_credit(draws, mdp, behavior, turn, trunks[:, turn])
        return _ascend(policy_class, current, behavior, found, ascent, num_epochs), None

    stages = (order, follow.reshape(-1, 3 * num_turns + 1, num_rows))
    return jax.lax.scan(stage, params, stages)[0]


def slow_branch() -> Instance:
    """Two turns where even reverse sweeps of the clipped maximiser lose the best branch.

    The action of turn 0 is the state of turn 1. States 0 and 1 pay 0.7 whatever is done, state 2
    pays 1 for its last action and 0 otherwise. From the uniform policy state 2 is worth 1/3 and,
    with a clip of 0.2, 0.467, 0.573 and 0.688 as turn 1 improves by one stage a sweep. Meanwhile
    turn 0 moves away from it and after three sweeps has nothing left there: 0.7 for ever, though the
    recursive optimum is 1 (derived here).

    Returns:
      `Instance` with the uniform policy; every state is its own context.
    """
    require_float64_mode()
    transitions = np.zeros((2, 3, 3, 3))
    transitions[0] = np.eye(3)[None]
    rewards = np.zeros((2, 3, 3))
    rewards[1, :2] = 0.7
    rewards[1, 2, 2] = 1.0
    mdp = TurnMDP(transitions, rewards, np.array([1.0, 0.0, 0.0]))
    return Instance(mdp, uniform_policy(mdp), jnp.broadcast_to(jnp.arange(3), (2, 3)))


def _sampled_credit(draws, mdp, behavior, turn, boundaries):
    """Credit of siblings at the boundaries [T] (S where ended) from draws [3 H + 1, T n]."""
    num_trunks, num_rows = boundaries.shape[0], draws.shape[1]
    ids, states = (
        jnp.repeat(per_trunk, num_rows // num_trunks)
        for per_trunk in (jnp.arange(num_trunks), boundaries)
    )
    running = states < mdp.num_states
    rows = jnp.where(running, states, 0)
    actions = pick_action(behavior[turn, rows], draws[0])
    continuation = draws[1:].reshape(mdp.num_turns, 3, num_rows)
    returns = returns_from(continuation, mdp, behavior, turn, states, actions)
    groups = jnp.where(running, ids, -1)
    advantages = core.sibling_relative(returns, groups, num_trunks) / num_rows
    empty = jnp.zeros_like(behavior)
    gain = empty.at[turn, rows, actions].add(jnp.where(advantages > 0, advantages, 0.0))
    loss = empty.at[turn, rows, actions].add(jnp.where(advantages < 0, -advantages, 0.0))
    return Credit(gain, loss)


def _ascend(policy_class, params, behavior, found, ascent, num_epochs):
    def objective(current):
        policy = policy_class.policy(current)
        return expected_surrogate(policy, behavior, found, ascent.clip_low, ascent.clip_high)

    return ascend(objective, params, ascent.learning_rate, num_epochs)
