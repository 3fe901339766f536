"""Discounted returns and generalised advantage estimation, scanned backwards over the last axis.

Index convention: reward r_h comes after action h; discount d_h multiplies everything after it and
is 0 where the episode ended, so nothing beyond an end is ever read, finite or not.
"""

import jax
import jax.numpy as jnp

from rtpo_jax.core import _checks
from rtpo_jax.core._masking import keep


def discounted_returns(
    rewards: jax.Array, discounts: jax.Array, *, mask: jax.Array | None = None
) -> jax.Array:
    """Discounted sum of the rewards from each position on.

    G_h = r_h + d_h G_{h+1},  G_H = 0.

    Args:
      rewards: [N, H] reward after each action.
      discounts: [N, H] in [0, 1], 0 where the episode ended.
      mask: [N, H] bool for token-level use, True = action. At a dropped position (tool output,
        padding) the return passes through with discount 1 and the reward there is added, so
        rewards of padding must be 0; what its discount holds does not matter.

    Returns:
      [N, H], in units of reward; 0 at dropped positions.

    Raises:
      ValueError: wrong rank, dtype kind or unequal shapes.

    >>> discounted_returns([[0.0, 0.0, 1.0]], [[0.5, 0.5, 0.0]]).tolist()
    [[0.25, 0.5, 1.0]]
    """
    rewards, discounts = _checks.floats(2, rewards=rewards, discounts=discounts)
    _checks.same_shape(rewards=rewards, discounts=discounts)
    if mask is None:
        return _accumulate(rewards, discounts, jnp.zeros_like(rewards[:, 0]))
    (mask,) = _checks.masks(2, mask=mask)
    _checks.same_shape(rewards=rewards, mask=mask)
    discounts = jnp.where(mask, discounts, 1)
    return keep(mask, _accumulate(rewards, discounts, jnp.zeros_like(rewards[:, 0])))


def gae(
    rewards: jax.Array,
    discounts: jax.Array,
    values: jax.Array,
    trace_decay: float,
    *,
    mask: jax.Array | None = None,
) -> jax.Array:
    """Generalised advantage estimates (Schulman et al. 2016, Eq. 16) with per-position discounts.

    delta_h = r_h + d_h V_{h+1} - V_h,  A_h = delta_h + d_h lambda A_{h+1},  A_H = 0.

    Args:
      rewards: [N, H] reward after each action.
      discounts: [N, H] in [0, 1], 0 where the episode ended.
      values: [N, H + 1] value before each action and after the last one.
      trace_decay: lambda in [0, 1]; 1 gives returns - values, 0 the one-step error.
      mask: [N, H] bool for token-level use, True = action. The successor of an action is then the
        next action: V_{h+1} is its value (or `values[:, H]` when none follows) plus the rewards
        passed on the way. Values and discounts at dropped positions are never read.

    Returns:
      [N, H] advantages, in units of reward; 0 at dropped positions.

    Raises:
      ValueError: wrong rank, shape or dtype kind, or a trace_decay outside [0, 1].

    >>> gae([[0.0, 1.0]], [[1.0, 0.0]], [[0.25, 0.5, 9.0]], 1.0).tolist()
    [[0.75, 0.5]]
    """
    rewards, discounts, values = _checks.floats(
        2, rewards=rewards, discounts=discounts, values=values
    )
    _checks.same_shape(rewards=rewards, discounts=discounts)
    _checks.has_shape((rewards.shape[0], rewards.shape[1] + 1), values=values)
    trace_decay = _checks.scalar(rewards, 0.0, 1.0, trace_decay=trace_decay)
    if mask is not None:
        (mask,) = _checks.masks(2, mask=mask)
        _checks.same_shape(rewards=rewards, mask=mask)
    return _gae(rewards, discounts, values, trace_decay, mask)


@jax.jit
def _gae(
    rewards: jax.Array,
    discounts: jax.Array,
    values: jax.Array,
    trace_decay: jax.Array,
    mask: jax.Array | None,
) -> jax.Array:
    current, following, decays = values[:, :-1], values[:, 1:], discounts * trace_decay
    if mask is not None:
        discounts = jnp.where(mask, discounts, 1)
        current = keep(mask, current)
        # Value seen by an observer at h: that of the action at h, or of the next action plus the
        # rewards on the way to it. A reward on a tool token belongs to the action that caused it.
        reached = _accumulate(
            jnp.where(mask, current, rewards), jnp.where(mask, 0, discounts), values[:, -1]
        )
        following = jnp.concatenate([reached[:, 1:], values[:, -1:]], axis=1)
        decays = jnp.where(mask, discounts * trace_decay, 1)
    errors = rewards + _after(discounts, following) - current
    errors = errors if mask is None else keep(mask, errors)
    advantages = _accumulate(errors, decays, jnp.zeros_like(errors[:, 0]))
    return advantages if mask is None else keep(mask, advantages)


def _after(discounts: jax.Array, following: jax.Array) -> jax.Array:
    return discounts * jnp.where(discounts == 0, 0, following)


def _accumulate(increments: jax.Array, decays: jax.Array, last: jax.Array) -> jax.Array:
    """Solve x_h = increments_h + decays_h x_{h+1}, x_H = last; [N, H], [N, H], [N] -> [N, H]."""
    dtype = jnp.result_type(increments, decays, last)
    columns = (increments.T.astype(dtype), decays.T.astype(dtype))
    _, solution = jax.lax.scan(_step, last.astype(dtype), columns, reverse=True)
    return solution.T


# At module level, so that calls outside jit find the loop already compiled.
def _step(following: jax.Array, column: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
    increment, decay = column
    current = increment + _after(decay, following)
    return current, current
