"""All episodes as one batch: with exact probabilities as weights, a sample mean is an expectation.

`tabular.trajectories` lists the episodes of one concrete MDP that have positive probability. Here the
list depends on sizes only, so that everything after it is jitted and mapped over hundreds of MDPs; the
episodes that cannot happen have probability 0. Rows are episodes and columns are turns, the layout of
`rtpo_jax.core`: any loss of the language-model code can be computed in expectation.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tabular.mdp import SUM_TOLERANCE, TurnMDP, check_integer, check_policy, is_concrete


class Paths(NamedTuple):
    """M episodes, as numpy arrays.

    Attributes:
      states: [M, H] int, state at each turn; 0 where `turn_mask` is False.
      actions: [M, H] int, action at each turn; 0 where `turn_mask` is False.
      turn_mask: [M, H] bool, True on turns that happened.
    """

    states: np.ndarray
    actions: np.ndarray
    turn_mask: np.ndarray


def all_paths(
    num_turns: int, num_states: int, num_actions: int, *, early_end: bool, limit: int = 200_000
) -> Paths:
    """List every sequence of states and actions, whether or not an MDP can produce it.

    Args:
      num_turns: H.
      num_states: S.
      num_actions: A.
      early_end: list also the episodes that end before turn H-1, as transition rows with a sum
        below 1 make possible.
      limit: the largest M that is built.

    Returns:
      `Paths` with M = (S A)^H rows, or with early_end the sum of (S A)^h over h = 1..H.

    Raises:
      ValueError: a size below 1, or M above `limit`.
    """
    for name, size in (("turns", num_turns), ("states", num_states), ("actions", num_actions)):
        check_integer(f"num_{name}", size, 1)
    branches = num_states * num_actions
    lengths = range(1, num_turns + 1) if early_end else [num_turns]
    count = sum(branches**length for length in lengths)
    if count > limit:
        raise ValueError(f"limit is {limit} but there are {count} paths: use a smaller MDP")
    parts = []
    for length in lengths:
        steps = np.indices((branches,) * length).reshape(length, -1).T
        parts.append(np.pad(steps, ((0, 0), (0, num_turns - length)), constant_values=-1))
    steps = np.concatenate(parts)
    mask = steps >= 0
    states, actions = np.divmod(np.where(mask, steps, 0), num_actions)
    return Paths(states, actions, mask)


def path_probabilities(mdp: TurnMDP, policy: jax.Array, paths: Paths) -> jax.Array:
    """Probability of each episode under a policy, [M].

        start(s_0) prod_h pi_h(a_h | s_h) prod_h P_h(s_{h+1} | s_h, a_h),

    times 1 - sum_s' P_l(s' | s_l, a_l) if the episode ends at a turn l before the last. As in
    `tabular.trajectories`, a row whose sum is within `SUM_TOLERANCE` of 1 never ends it.

    Raises:
      ValueError: malformed policy; or, where values are concrete, probabilities that do not sum to
        1, because the MDP ends episodes early and `paths` has only full ones.
    """
    policy = check_policy(mdp, policy)
    turns = np.arange(mdp.num_turns)
    reached = mdp.transitions[turns[:-1], paths.states[:, :-1], paths.actions[:, :-1]]
    following = np.where(paths.turn_mask[:, 1:], paths.states[:, 1:], 0)
    moved = jnp.take_along_axis(reached, following[..., None], axis=-1)[..., 0]
    deficit = 1.0 - reached.sum(-1)
    ended = jnp.where(deficit > SUM_TOLERANCE, deficit, 0.0)
    here, then = paths.turn_mask[:, :-1], paths.turn_mask[:, 1:]
    steps = jnp.where(then, moved, jnp.where(here, ended, 1.0))
    chosen = along(policy, paths, fill=1.0)
    found = mdp.start[paths.states[:, 0]] * chosen.prod(-1) * steps.prod(-1)
    if is_concrete(found) and abs(float(found.sum()) - 1.0) > 1e-8:
        raise ValueError(
            f"paths have probability {float(found.sum())} in all: list them with early_end=True"
        )
    return found


def path_rewards(mdp: TurnMDP, paths: Paths) -> jax.Array:
    """Reward after each action, [M, H]; 0 where the episode has ended."""
    return along(mdp.rewards, paths)


def along(table: jax.Array, paths: Paths, fill: float = 0.0) -> jax.Array:
    """Entries [M, H] of a table [H, S, A] at the turn, state and action of each path.

    Gradients flow into `table`. `fill` stands where the episode has ended.
    """
    turns = np.arange(table.shape[0])[None, :]
    return jnp.where(paths.turn_mask, table[turns, paths.states, paths.actions], fill)


def at_states(table: jax.Array, paths: Paths, fill: float = 0.0) -> jax.Array:
    """Entries [M, H] of a table [H, S] or [H+1, S] at the turn and state of each path."""
    turns = np.arange(paths.states.shape[1])[None, :]
    return jnp.where(paths.turn_mask, table[turns, paths.states], fill)


def path_ratios(policy: jax.Array, behavior: jax.Array, paths: Paths) -> jax.Array:
    """Product over each path of policy / behavior, [M]; 1 for actions the behavior never takes."""
    seen = behavior > 0
    ratios = jnp.where(seen, policy / jnp.where(seen, behavior, 1.0), 1.0)
    return along(ratios, paths, fill=1.0).prod(-1)


def group_by_step(values: jax.Array, paths: Paths, shape: tuple[int, int, int]) -> jax.Array:
    """Sum [M, H] values over all paths into a table [H, S, A] by turn, state and action."""
    turns = np.broadcast_to(np.arange(shape[0]), paths.states.shape)
    kept = jnp.where(paths.turn_mask, values, 0.0)
    return jnp.zeros(shape, kept.dtype).at[turns, paths.states, paths.actions].add(kept)
