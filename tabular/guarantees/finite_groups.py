"""The updates of `tabular.guarantees.cells` from sampled batches: B tasks, G chains each, or trunks
and siblings.

Each sample is an update with an exact new performance, so what a finite group does to a guarantee is
counted without noise of evaluation. The sampled episodes come back with the update; given again they
reproduce it.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from rtpo_jax import core
from tabular.guarantees.cells import Case, Estimator, Update, discounted, staged, value_estimates
from tabular.guarantees.tied_updates import climb_sequence
from tabular.mdp import TurnMDP
from tabular.paths import Paths, path_probabilities, path_rewards


class Sampled(NamedTuple):
    """A new policy and the episodes it was made from.

    Attributes:
      policy: [H, S, A].
      rows: states, actions and turn_mask, [N, H] each; for siblings [stages, N, H].
    """

    policy: jax.Array
    rows: Paths


def chains(uniforms: jax.Array, mdp: TurnMDP, policy: jax.Array, paths: Paths) -> Paths:
    """Sample B tasks from the start and G episodes of each; the rows of a task adjoin.

    Args:
      uniforms: [B, 1 + G] uniform numbers, the first of a row for the task.
      mdp: the MDP.
      policy: [H, S, A].
      paths: all episodes.

    Returns:
      `Paths` with B G rows.
    """
    probabilities = path_probabilities(mdp, policy, paths)
    tasks = jnp.asarray(paths.states[:, 0])
    first = _pick(uniforms[:, 0], probabilities[None, :])
    same = tasks[None, :] == tasks[first][:, None]
    chosen = _pick(uniforms[:, 1:], jnp.where(same, probabilities[None, :], 0.0)[:, None, :])
    return _take(paths, chosen.ravel())


def group_estimates(
    case: Case, policy: jax.Array, rows: Paths, how: Estimator, num_tasks: int
) -> jax.Array:
    """Advantages [N, H] of sampled chains, by `core.group_relative` or from the policy's values."""
    returns = path_rewards(discounted(case.mdp, how.discount), rows).sum(-1)
    ids = jnp.repeat(jnp.arange(num_tasks), len(returns) // num_tasks)
    plain = core.group_relative(returns, ids, num_tasks)
    normal = core.group_relative(returns, ids, num_tasks, scale="group")
    grouped = jnp.where(rows.turn_mask, jnp.where(how.scale, normal, plain)[:, None], 0.0)
    return jnp.where(how.group, grouped, value_estimates(case, policy, rows, how))


def update_from_chains(
    rows: Paths, num_tasks: int, case: Case, how: Estimator, update: Update
) -> jax.Array:
    """The new policy [H, S, A] of per-turn tables, from sampled chains [B G, H]."""
    count = rows.states.shape[0]
    weights = jnp.full(count, 1.0 / count)

    def batch(source, _):
        del source
        return rows, weights, group_estimates(case, case.policy, rows, how, num_tasks)

    return staged(case, update, batch, jnp.zeros(update.stages.shape[0]), count)[0]


def sequence_update_from_chains(
    rows: Paths, num_tasks: int, case: Case, how: Estimator, update: Update
) -> jax.Array:
    """The new policy [H, S, A] by ascent with one ratio per episode, from sampled chains."""
    count = rows.states.shape[0]
    advantages = group_estimates(case, case.policy, rows, how, num_tasks)[:, 0]
    weights = jnp.full(count, 1.0 / count)
    return climb_sequence(case, how.discount, rows, weights, advantages, update).policy


def update_from_siblings(
    trunks: Paths,
    drawn: jax.Array | Paths,
    paths: Paths,
    case: Case,
    how: Estimator,
    update: Update,
) -> Sampled:
    """Per-turn tables from sampled siblings of the boundaries of B trunks (RTPO).

        A_j = G_j - mean over the siblings of G,   G_j the return from the boundary on

    Args:
      trunks: [B, H] episodes of the policy; only their boundary states are used.
      drawn: [H, H, B, n] uniform numbers: stage, boundary turn, trunk, sibling; or the rows
        [H, H B n, H] that came back from such a call.
      paths: all episodes.
      case: the case.
      how: gives the discount.
      update: the update; with `fresh` each stage samples from the policy as it stands.

    Returns:
      `Sampled` with rows [H, H B n, H]; of a sibling only the turns from its boundary on count.
    """
    num_turns, num_trunks = trunks.states.shape[1], trunks.states.shape[0]
    rows_per_stage = drawn.states.shape[1] if isinstance(drawn, Paths) else drawn[0].size
    num_siblings = rows_per_stage // (num_turns * num_trunks)
    boundary = jnp.repeat(jnp.arange(num_turns), num_trunks * num_siblings)
    reached = jnp.repeat(trunks.turn_mask.T.ravel(), num_siblings)
    ids = jnp.repeat(jnp.arange(num_turns * num_trunks), num_siblings)
    own = (boundary[:, None] == jnp.arange(num_turns)[None, :]) & reached[:, None]
    weights = jnp.full(rows_per_stage, 1.0 / (num_trunks * num_siblings))

    def batch(source, numbers):
        rows = numbers
        if not isinstance(drawn, Paths):
            rows = _siblings(numbers, case.mdp, source, paths, trunks)
        rewards = path_rewards(case.mdp, rows)
        ahead = core.discounted_returns(rewards, jnp.full_like(rewards, how.discount))
        returns = jnp.take_along_axis(ahead, boundary[:, None], axis=1)[:, 0]
        advantages = core.sibling_relative(
            returns, jnp.where(reached, ids, -1), num_turns * num_trunks
        )
        return rows, weights, jnp.where(own, advantages[:, None], 0.0)

    policy, rows = staged(case, update, batch, drawn, rows_per_stage)
    return Sampled(policy, rows)


def _siblings(uniforms, mdp, source, paths, trunks):
    """Episodes that pass the trunks' boundaries, [H B n, H]: what follows one has its distribution."""
    probabilities = path_probabilities(mdp, source, paths)
    at = trunks.states.T[:, :, None] == paths.states.T[:, None, :]
    possible = at & paths.turn_mask.T[:, None, :]
    conditional = jnp.where(possible, probabilities[None, None, :], 0.0)
    return _take(paths, _pick(uniforms, conditional[:, :, None, :]).ravel())


def _pick(uniforms, masses):
    """Index along the last axis of unnormalised masses, one for each uniform number."""
    edges = jnp.cumsum(masses, axis=-1)
    return (edges <= uniforms[..., None] * edges[..., -1:]).sum(-1)


def _take(paths, index):
    return Paths(*(jnp.asarray(part)[index] for part in paths))
