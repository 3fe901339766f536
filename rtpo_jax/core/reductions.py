"""The objective is a weighted sum; the weights are a measure that the caller builds once.

Weights belong to the WHOLE batch: build them before cutting it into micro-batches, and gradients
of the parts add up to the gradient of the whole. By default a named measure is a mean and sums to
1, or to 0 if the batch has no action token at all. Units without an action token have weight 0 and
are not counted. `row_weights` replace the mean by a measure of the caller's, such as exact
trajectory probabilities; they are taken as they are, and each function says what its weights then
sum to.
"""

from functools import partial

import jax
import jax.numpy as jnp

from rtpo_jax.core import _checks
from rtpo_jax.core._masking import keep
from rtpo_jax.core._segments import members, segment_counts, spread, turn_units


def weighted_sum(values: jax.Array, weights: jax.Array) -> jax.Array:
    """Sum over all axes of weights times values, sum_i w_i x_i.

    Args:
      values: any shape.
      weights: same shape, non-negative.

    Returns:
      scalar, in units of values times what the weights sum to. Values of weight 0 reach neither
      the sum nor the gradient, even if they are NaN.

    Raises:
      ValueError: wrong dtype kind or unequal shapes.

    >>> weighted_sum([4.0, jnp.nan], [0.5, 0.0]).tolist()
    2.0
    """
    values, weights = _checks.floats(values=values, weights=weights)
    _checks.same_shape(values=values, weights=weights)
    return (keep(weights != 0, values) * weights).sum()


def token_mean_weights(
    action_mask: jax.Array, *, row_weights: jax.Array | None = None
) -> jax.Array:
    """Mean over all action tokens of the batch (DAPO): long rows count for more.

    w_nt = m_nt / sum_n' T_n',  or row_weights_n m_nt,  with T_n action tokens in row n.

    Args:
      action_mask: [N, T] bool, True = chosen by the policy.
      row_weights: [N] measure of the rows, non-negative.

    Returns:
      [N, T], default float or the dtype of row_weights. Sums to 1, or to sum_n row_weights_n T_n: the
      expected number of action tokens if row_weights are probabilities.

    Raises:
      ValueError: wrong rank, shape or dtype kind.

    >>> token_mean_weights([[True, True], [True, False], [True, False]]).tolist()
    [[0.25, 0.25], [0.25, 0.0], [0.25, 0.0]]
    """
    (action_mask,) = _checks.masks(2, action_mask=action_mask)
    if row_weights is None:
        total = jnp.maximum(action_mask.sum(), 1).astype(float)
        return action_mask.astype(float) / total
    return keep(action_mask, _row_measure(row_weights, action_mask))


def sequence_mean_weights(
    action_mask: jax.Array, *, row_weights: jax.Array | None = None
) -> jax.Array:
    """Mean over rows of the mean over the row's action tokens (GRPO): every row counts alike.

    w_nt = m_nt / (T_n R),  or row_weights_n m_nt / T_n,  with T_n action tokens in row n and R
    rows that have any.

    Args:
      action_mask: [N, T] bool, True = chosen by the policy.
      row_weights: [N] measure of the rows, non-negative.

    Returns:
      [N, T], default float or the dtype of row_weights. Sums to 1, or to the sum of row_weights over
      rows that have an action token.

    Raises:
      ValueError: wrong rank, shape or dtype kind.

    >>> sequence_mean_weights([[True, True], [True, False], [False, False]]).tolist()
    [[0.25, 0.25], [0.5, 0.0], [0.0, 0.0]]
    """
    (action_mask,) = _checks.masks(2, action_mask=action_mask)
    num_rows = action_mask.shape[0]
    rows = jnp.broadcast_to(jnp.arange(num_rows)[:, None], action_mask.shape)
    return _unit_mean_weights(action_mask, rows, num_rows, row_weights)


def turn_mean_weights(
    action_mask: jax.Array,
    turn_ids: jax.Array,
    num_turns: int,
    *,
    row_weights: jax.Array | None = None,
) -> jax.Array:
    """Mean over turns of the mean over the turn's action tokens: every turn counts alike.

    w_nt = m_nt / (T_nh U),  or row_weights_n m_nt / T_nh,  h = turn_ids[n, t], with T_nh action
    tokens in turn h of row n and U turns in the batch that have any.

    Args:
      action_mask: [N, T] bool, True = chosen by the policy.
      turn_ids: [N, T] int in -1..num_turns-1; -1 gets weight 0.
      num_turns: H, static.
      row_weights: [N] measure of the rows, non-negative.

    Returns:
      [N, T], default float or the dtype of row_weights. Sums to 1, or to sum_n row_weights_n times the
      number of turns of row n that have an action token: the expected number of turns if
      row_weights are trajectory probabilities.

    Raises:
      ValueError: wrong rank, shape or dtype kind, ids out of range.

    >>> turn_mean_weights([[True, True, True]], [[0, 0, 1]], 2).tolist()
    [[0.25, 0.25, 0.5]]
    """
    num_turns = _checks.count(num_turns=num_turns)
    (action_mask,) = _checks.masks(2, action_mask=action_mask)
    (turn_ids,) = _checks.ids(2, limit=num_turns, turn_ids=turn_ids)
    _checks.same_shape(action_mask=action_mask, turn_ids=turn_ids)
    num_units = action_mask.shape[0] * num_turns
    return _unit_mean_weights(action_mask, turn_units(turn_ids, num_turns), num_units, row_weights)


def trajectory_mean_weights(
    action_mask: jax.Array,
    trajectory_ids: jax.Array,
    num_trajectories: int,
    *,
    row_weights: jax.Array | None = None,
) -> jax.Array:
    """Mean over trajectories of the mean over a trajectory's action tokens, in any rows.

    w_nt = m_nt / (T_k J),  or row_weights_n m_nt / T_k,  k = trajectory_ids[n], with T_k action
    tokens in all rows of trajectory k and J trajectories that have any. With one row a trajectory
    this is `sequence_mean_weights`.

    Args:
      action_mask: [N, T] bool, True = chosen by the policy.
      trajectory_ids: [N] int in -1..num_trajectories-1; -1 (padding row) gets weight 0.
      num_trajectories: static.
      row_weights: [N] measure of the trajectories, the same number on all rows of one trajectory.

    Returns:
      [N, T], default float or the dtype of row_weights. Sums to 1, or to the measure of the
      trajectories that have an action token, each counted once.

    Raises:
      ValueError: wrong rank, shape or dtype kind, ids out of range.

    >>> trajectory_mean_weights([[True, True], [True, True], [True, False]], [0, 0, 1], 2).tolist()
    [[0.125, 0.125], [0.125, 0.125], [0.5, 0.0]]
    """
    num_trajectories = _checks.count(num_trajectories=num_trajectories)
    (action_mask,) = _checks.masks(2, action_mask=action_mask)
    (trajectory_ids,) = _checks.ids(1, limit=num_trajectories, trajectory_ids=trajectory_ids)
    _checks.has_shape(action_mask.shape[:1], trajectory_ids=trajectory_ids)
    units = jnp.broadcast_to(trajectory_ids[:, None], action_mask.shape)
    return _unit_mean_weights(action_mask, units, num_trajectories, row_weights)


@partial(jax.jit, static_argnums=2)
def _unit_mean_weights(
    action_mask: jax.Array,
    unit_ids: jax.Array,
    num_units: int,
    row_weights: jax.Array | None,
) -> jax.Array:
    """Token mean inside each unit, then the mean over units or the caller's measure of rows."""
    owners = jnp.where(action_mask & members(unit_ids, num_units), unit_ids, -1)
    lengths = segment_counts(owners.ravel(), num_units)
    if row_weights is None:
        num_filled = jnp.maximum((lengths > 0).sum(), 1).astype(float)
        measure = jnp.broadcast_to(1 / num_filled, action_mask.shape)
    else:
        measure = _row_measure(row_weights, action_mask)
    lengths = jnp.maximum(spread(lengths, owners), 1).astype(measure.dtype)
    return keep(owners >= 0, measure / lengths)


def _row_measure(row_weights: jax.Array, action_mask: jax.Array) -> jax.Array:
    (row_weights,) = _checks.floats(1, row_weights=row_weights)
    _checks.has_shape(action_mask.shape[:1], row_weights=row_weights)
    return jnp.broadcast_to(row_weights[:, None], action_mask.shape)
