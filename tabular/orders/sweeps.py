"""Sweeps through the turns of an episode in any order, and how fast repeated sweeps improve.

`tabular.updates` has one iteration from given data. Here an iteration is a function of the policy
alone, with data of unlimited size, so that it can be repeated and orders be compared (SeeUPO, arXiv
2602.06554, Table 4: natural, random and reverse order).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from tabular.exact import performance, policy_gradient, values
from tabular.mdp import TurnMDP
from tabular.paths import Paths, path_probabilities, path_ratios
from tabular.updates import group_advantages, reverse_order, sequential, simultaneous


class Clip(NamedTuple):
    """Distances of the bounds of the ratio from 1, as in `core.clipped_surrogate`."""

    low: float
    high: float


# No bound at all: the maximiser is the greedy policy, as far as data show it.
GREEDY = Clip(1.0, jnp.inf)


def group_sweep(
    mdp: TurnMDP,
    policy: jax.Array,
    paths: Paths,
    order: jax.Array,
    clip: Clip,
    contexts: jax.Array | None = None,
    *,
    compound: bool = True,
) -> jax.Array:
    """One SeeUPO iteration with groups without bound: every turn in order, from one set of data.

    Args:
      mdp: the MDP.
      policy: [H, S, A], samples the data of the whole sweep.
      paths: all episodes.
      order: [H] int, turns in the order of their updates.
      clip: bounds of the ratio.
      contexts: [H, S] what the policy sees, None for everything.
      compound: False is the same data without carried ratios (M = A). The turns then do not
        influence each other: all orders are one and the same simultaneous update (PPO, GRPO).

    Returns:
      [H, S, A] the new policy.
    """
    weights = path_probabilities(mdp, policy, paths)
    found = group_advantages(mdp, policy, paths)
    return sequential(policy, paths, weights, found, order, *clip, contexts, compound=compound)


def regrouped_sweep(
    mdp: TurnMDP, policy: jax.Array, paths: Paths, order: jax.Array, clip: Clip
) -> jax.Array:
    """The proximal update with group advantages turn by turn, data sampled again before each turn.

    No ratio is carried because none is needed; the price is H times the episodes. Arguments and
    result as `group_sweep`.
    """

    def step(current, turn):
        weights = path_probabilities(mdp, current, paths)
        found = group_advantages(mdp, current, paths)
        improved = simultaneous(current, paths, weights, found, *clip)
        here = (jnp.arange(policy.shape[0]) == turn)[:, None, None]
        return jnp.where(here, improved, current), None

    return jax.lax.scan(step, policy, order)[0]


def partial_sweep(
    mdp: TurnMDP, policy: jax.Array, paths: Paths, num_sequential: jax.Array, clip: Clip
) -> jax.Array:
    """SeeUPO with only the last turns one by one, and all earlier ones at once after them.

    The compound ratio of the last `num_sequential` turns is carried to the rest, so an iteration
    costs num_sequential + 1 updates instead of H. 0 is the simultaneous update, H - 1 and H the
    full reverse sweep. Other arguments and result as `group_sweep`.
    """
    weights = path_probabilities(mdp, policy, paths)
    found = group_advantages(mdp, policy, paths)
    num_turns = policy.shape[0]
    # Going backward, what a turn becomes does not depend on the turns before it.
    full = sequential(policy, paths, weights, found, reverse_order(num_turns), *clip)
    late = (jnp.arange(num_turns) >= num_turns - num_sequential)[:, None, None]
    carried = path_ratios(jnp.where(late, full, policy), policy, paths)
    early = simultaneous(policy, paths, weights, found * carried[:, None], *clip)
    return jnp.where(late, full, early)


def exploring_sweep(mdp: TurnMDP, policy: jax.Array, order: jax.Array) -> jax.Array:
    """Policy iteration: each turn becomes greedy in every state, visited or not.

        for h in order:  pi_h(. | s) <- argmax_a Q_h(s, a) of the current policy

    What on-policy data cannot do, because states and actions that are never tried have no credit.
    Ties go to the lowest action. In natural order no turn sees a later one improved, so that order
    is the same as all turns at once, and N sweeps make the last N turns optimal.

    Args:
      mdp: the MDP.
      policy: [H, S, A].
      order: [H] int, turns in the order of their updates.

    Returns:
      [H, S, A] the new policy, one-hot.
    """

    def step(current, turn):
        best = values(mdp, current).Q.argmax(-1)
        greedy = jax.nn.one_hot(best, mdp.num_actions, dtype=policy.dtype)
        here = (jnp.arange(policy.shape[0]) == turn)[:, None, None]
        return jnp.where(here, greedy, current), None

    return jax.lax.scan(step, policy, order)[0]


def gradient_sweep(
    mdp: TurnMDP, logits: jax.Array, order: jax.Array, learning_rate: float
) -> jax.Array:
    """One step of gradient ascent per turn, each at the policy that the turns before it left.

        for h in order:  logits_h += learning_rate dJ / dlogits_h at the current logits

    What SeeUPO's surrogate does with one gradient step a turn: at r_h = 1 the gradient of
    E_old[r_h M_{h+1}] is that of performance at the policy with the updated turns in it, in any order
    (derived here; the clip has no effect at r = 1).

    Args:
      mdp: the MDP.
      logits: [H, S, A] of one softmax for every turn and state.
      order: [H] int, turns in the order of their updates.
      learning_rate: size of the step, in logits per unit of reward.

    Returns:
      [H, S, A] the new logits.
    """

    def step(current, turn):
        gradient = policy_gradient(mdp, jax.nn.softmax(current))
        here = (jnp.arange(logits.shape[0]) == turn)[:, None, None]
        return current + learning_rate * jnp.where(here, gradient, 0.0), None

    return jax.lax.scan(step, logits, order)[0]


def performances(
    mdp: TurnMDP,
    policy: jax.Array,
    sweep: Callable[[jax.Array, jax.Array], jax.Array],
    schedule: jax.Array,
) -> jax.Array:
    """Performance before and after each of K sweeps, [K+1].

    Args:
      mdp: the MDP.
      policy: [H, S, A] to start from.
      sweep: from a policy and an entry of the schedule to the next policy.
      schedule: K entries along the first axis, orders [K, H] in most uses.
    """

    def step(current, entry):
        improved = sweep(current, entry)
        return improved, performance(mdp, improved)

    reached = jax.lax.scan(step, policy, schedule)[1]
    return jnp.concatenate([performance(mdp, policy)[None], reached])
