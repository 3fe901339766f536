"""Advantages by comparison: returns against the mean of rows that share a group or a state.

All functions here agree on the special cases: a group of one gets 0, a group whose returns are
equal gets exactly 0, and a row with id -1 belongs to no group, gets 0 and influences nothing. Ids
outside -1..num-1 raise a ValueError, except under `jax.jit` and `jax.vmap`, where values cannot be
inspected and such a row counts as -1.
"""

import math
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp

from rtpo_jax.core import _checks
from rtpo_jax.core._masking import keep
from rtpo_jax.core._segments import members, segment_counts, segment_peak, segment_sum, spread


def group_relative(
    returns: jax.Array,
    group_ids: jax.Array,
    num_groups: int,
    *,
    scale: Literal["group", "batch"] | None = None,
    ddof: int = 1,
    epsilon: float = 1e-6,
) -> jax.Array:
    """Return minus the mean of its group (itself included), optionally over a deviation.

    A_i = r_i - mean_g(i),  divided by std + epsilon if a scale is named, where std is that of the
    row's group (GRPO) or of the centred returns of the whole batch (SeeUPO, section 4).

    Args:
      returns: [N].
      group_ids: [N] int, -1 = no group.
      num_groups: number of groups, static.
      scale: None, "group" or "batch".
      ddof: 1 for the sample, 0 for the population standard deviation.
      epsilon: added to the standard deviation, in units of return.

    Returns:
      [N] in units of return, dimensionless if scaled. A NaN return makes its group NaN (with
      scale="batch" the batch), never a row of another group.

    Raises:
      ValueError: wrong rank, shape or dtype kind, ids out of range, unknown scale or ddof.

    >>> group_relative([3.0, 1.0, 7.0], [0, 0, 1], 2).tolist()
    [1.0, -1.0, 0.0]
    """
    returns, group_ids, num_groups = _grouped(returns, group_ids, num_groups)
    if ddof not in (0, 1):
        raise ValueError(f"ddof={ddof!r}: use 1 (sample) or 0 (population)")
    if scale not in (None, "group", "batch"):
        raise ValueError(f"scale={scale!r}: use None, 'group' or 'batch'")
    epsilon = _checks.scalar(returns, 0.0, math.inf, epsilon=epsilon)
    centred = _centred(returns, group_ids, num_groups)
    if scale is None:
        return centred
    cells, num_cells = group_ids, num_groups
    if scale == "batch":
        cells, num_cells = jnp.where(members(group_ids, num_groups), 0, -1), 1
    return _scaled(centred, cells, num_cells, ddof, epsilon)


def leave_one_out(returns: jax.Array, group_ids: jax.Array, num_groups: int) -> jax.Array:
    """Return minus the mean of the other members of its group (RLOO).

    A_i = r_i - (1 / (n - 1)) sum_{j != i} r_j = n / (n - 1) (r_i - mean),  n = group size.

    Args:
      returns: [N].
      group_ids: [N] int, -1 = no group.
      num_groups: number of groups, static.

    Returns:
      [N] in units of return.

    Raises:
      ValueError: wrong rank, shape or dtype kind, ids out of range.

    >>> leave_one_out([3.0, 1.0, 7.0], [0, 0, 1], 2).tolist()
    [2.0, -2.0, 0.0]
    """
    returns, group_ids, num_groups = _grouped(returns, group_ids, num_groups)
    sizes = segment_counts(group_ids, num_groups).astype(returns.dtype)
    factors = sizes / jnp.maximum(sizes - 1, 1)
    return spread(factors, group_ids) * _centred(returns, group_ids, num_groups)


def sibling_relative(returns: jax.Array, sibling_ids: jax.Array, num_boundaries: int) -> jax.Array:
    """Return minus the mean over the siblings of one boundary state, itself included.

    A_jk = R_j - (1 / n) sum_j' R_j' over the n = G - 1 siblings of boundary k (RTPO, section 3.2;
    its Theorem 2(a): the expectation is (n - 1) / n times the true advantage). The difference to
    `group_relative` is what shares an id: rows that acted from the same state, not the same task.

    Args:
      returns: [N] or [N, H].
      sibling_ids: same shape, int, -1 = no sibling group.
      num_boundaries: number of boundary states, static.

    Returns:
      shape of `returns`, in units of return.

    Raises:
      ValueError: unequal shapes, wrong dtype kind, ids out of range.

    >>> sibling_relative([[1.0, 5.0], [0.0, 5.0]], [[0, 1], [0, 1]], 2).tolist()
    [[0.5, 0.0], [-0.5, 0.0]]
    """
    num_boundaries = _checks.count(num_boundaries=num_boundaries)
    (returns,) = _checks.floats(returns=returns)
    (sibling_ids,) = _checks.ids(limit=num_boundaries, sibling_ids=sibling_ids)
    _checks.same_shape(returns=returns, sibling_ids=sibling_ids)
    flat = group_relative(returns.ravel(), sibling_ids.ravel(), num_boundaries)
    return flat.reshape(returns.shape)


def has_no_signal(returns: jax.Array, group_ids: jax.Array, num_groups: int) -> jax.Array:
    """Whether all returns of a group are equal, so that every advantage in it is 0.

    Args:
      returns: [N].
      group_ids: [N] int, -1 = no group.
      num_groups: number of groups, static.

    Returns:
      [num_groups] bool: True for a group of one; False for a group without members, so that it
      does not count as a useless group, and for a group with a NaN return.

    Raises:
      ValueError: wrong rank, shape or dtype kind, ids out of range.

    >>> has_no_signal([1.0, 1.0, 0.0, 1.0], [0, 0, 1, 1], 3).tolist()
    [True, False, False]
    """
    returns, group_ids, num_groups = _grouped(returns, group_ids, num_groups)
    peaks = spread(segment_peak(returns, group_ids, num_groups), group_ids)
    differing = segment_sum((returns != peaks).astype(jnp.int32), group_ids, num_groups)
    return (differing == 0) & (segment_counts(group_ids, num_groups) > 0)


def whiten(
    values: jax.Array, mask: jax.Array, *, ddof: int = 1, epsilon: float = 1e-6
) -> jax.Array:
    """Shift the kept values to mean 0 and scale them to standard deviation 1.

    (x - mean) / (std + epsilon) over the kept elements of all axes.

    Args:
      values: any shape.
      mask: same shape, bool, True = keep.
      ddof: 1 for the sample, 0 for the population standard deviation.
      epsilon: added to the standard deviation.

    Returns:
      shape of `values`, dimensionless; 0 at dropped places, whatever stood there, and exactly 0
      everywhere when the kept values are equal or fewer than two.

    Raises:
      ValueError: unequal shapes, wrong dtype kind, unknown ddof.

    >>> whiten([1.0, 3.0, 99.0], [True, True, False], ddof=0, epsilon=0.0).tolist()
    [-1.0, 1.0, 0.0]
    """
    (values,), (mask,) = _checks.floats(values=values), _checks.masks(mask=mask)
    _checks.same_shape(values=values, mask=mask)
    ids = jnp.where(mask, 0, -1).ravel()
    flat = group_relative(values.ravel(), ids, 1, scale="group", ddof=ddof, epsilon=epsilon)
    return flat.reshape(values.shape)


def to_tokens(turn_values: jax.Array, turn_ids: jax.Array) -> jax.Array:
    """Give every token the value of its own turn.

    y_nt = x_{n, turn_ids[n, t]}

    Args:
      turn_values: [N, H].
      turn_ids: [N, T] int in -1..H-1, -1 outside actions.

    Returns:
      [N, T]; 0 where the turn id is -1.

    Raises:
      ValueError: wrong rank, dtype kind or number of rows, ids out of range.

    >>> to_tokens([[5.0, 7.0]], [[-1, 0, 0, 1]]).tolist()
    [[0.0, 5.0, 5.0, 7.0]]
    """
    (turn_values,) = _checks.floats(2, turn_values=turn_values)
    num_turns = turn_values.shape[1]
    (turn_ids,) = _checks.ids(2, limit=num_turns, turn_ids=turn_ids)
    _checks.has_shape((turn_values.shape[0], turn_ids.shape[1]), turn_ids=turn_ids)
    inside = members(turn_ids, num_turns)
    own = jnp.take_along_axis(turn_values, jnp.where(inside, turn_ids, 0), axis=1)
    return keep(inside, own)


def _grouped(
    returns: jax.Array, group_ids: jax.Array, num_groups: int
) -> tuple[jax.Array, jax.Array, int]:
    num_groups = _checks.count(num_groups=num_groups)
    (returns,) = _checks.floats(1, returns=returns)
    (group_ids,) = _checks.ids(1, limit=num_groups, group_ids=group_ids)
    _checks.same_shape(returns=returns, group_ids=group_ids)
    return returns, group_ids, num_groups


@partial(jax.jit, static_argnums=2)
def _centred(returns: jax.Array, group_ids: jax.Array, num_groups: int) -> jax.Array:
    # Subtracting a member before averaging makes equal returns exactly 0 and keeps the signal of
    # nearly equal ones: their float32 mean alone can be off by one unit in the last place. The
    # subtracted member cancels, hence no gradient through the choice.
    peaks = jax.lax.stop_gradient(segment_peak(returns, group_ids, num_groups))
    inside = members(group_ids, num_groups)
    shifted = keep(inside, returns) - spread(peaks, group_ids)
    sizes = jnp.maximum(segment_counts(group_ids, num_groups), 1).astype(returns.dtype)
    means = segment_sum(shifted, group_ids, num_groups) / sizes
    return shifted - spread(means, group_ids)


@partial(jax.jit, static_argnums=(2, 3))
def _scaled(
    centred: jax.Array, cells: jax.Array, num_cells: int, ddof: int, epsilon: jax.Array
) -> jax.Array:
    degrees = jnp.maximum(segment_counts(cells, num_cells) - ddof, 1).astype(centred.dtype)
    variances = spread(segment_sum(centred**2, cells, num_cells) / degrees, cells)
    flat = variances == 0
    deviations = jnp.sqrt(jnp.where(flat, 1, variances))
    return keep(~flat, centred / (deviations + epsilon))
