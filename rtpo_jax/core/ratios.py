"""Probability ratios of the policy over the behaviour policy, by level, as logarithms first."""

import math

import jax
import jax.numpy as jnp

from rtpo_jax.core import _checks
from rtpo_jax.core._masking import keep, with_finite_gradient
from rtpo_jax.core._segments import segment_counts, segment_sum, turn_units


def token_log_ratios(
    log_probs: jax.Array, behavior_log_probs: jax.Array, action_mask: jax.Array
) -> jax.Array:
    """Log-ratio of each chosen token, log pi(a_t | c) - log pi_behavior(a_t | c) (RTPO, Eq. 5).

    Args:
      log_probs: [N, T] under the policy being trained, in nats.
      behavior_log_probs: [N, T] when the tokens were sampled, in nats.
      action_mask: [N, T] bool, True = chosen by the policy.

    Returns:
      [N, T] in nats; 0 with zero gradient at dropped places, also when the inputs there are NaN.

    Raises:
      ValueError: wrong rank or dtype kind, unequal shapes.

    >>> token_log_ratios([[-1.0, -2.0]], [[-1.5, 0.0]], [[True, False]]).tolist()
    [[0.5, 0.0]]
    """
    log_probs, behavior_log_probs = _checks.floats(
        2, log_probs=log_probs, behavior_log_probs=behavior_log_probs
    )
    (action_mask,) = _checks.masks(2, action_mask=action_mask)
    _checks.same_shape(
        log_probs=log_probs, behavior_log_probs=behavior_log_probs, action_mask=action_mask
    )
    return keep(action_mask, log_probs) - keep(action_mask, behavior_log_probs)


def turn_log_ratios(
    log_ratios: jax.Array, turn_ids: jax.Array, num_turns: int, *, mean: bool
) -> jax.Array:
    """Log-ratio of each turn: the sum of its tokens' log-ratios, or their mean.

    mean=False: log of the ratio of the whole action, sum_t l_t (SeeUPO, Eq. 8).
    mean=True: log of the geometric mean ratio, (1 / T_h) sum_t l_t (SORL, Eq. 4).

    Args:
      log_ratios: [N, T] in nats.
      turn_ids: [N, T] int in -1..num_turns-1, -1 outside actions.
      num_turns: H, static.
      mean: True for the geometric mean.

    Returns:
      [N, H] in nats; 0 (ratio 1) for turns without tokens. Places with id -1 are never read.

    Raises:
      ValueError: wrong rank, shape or dtype kind, ids out of range.

    >>> turn_log_ratios([[1.0, 3.0, 9.0]], [[0, 0, -1]], 2, mean=True).tolist()
    [[2.0, 0.0]]
    """
    num_turns = _checks.count(num_turns=num_turns)
    (log_ratios,) = _checks.floats(2, log_ratios=log_ratios)
    (turn_ids,) = _checks.ids(2, limit=num_turns, turn_ids=turn_ids)
    _checks.same_shape(log_ratios=log_ratios, turn_ids=turn_ids)
    units = turn_units(turn_ids, num_turns).ravel()
    shape = (log_ratios.shape[0], num_turns)
    sums = segment_sum(log_ratios.ravel(), units, math.prod(shape)).reshape(shape)
    if not mean:
        return sums
    counts = segment_counts(units, math.prod(shape)).reshape(shape)
    return sums / jnp.maximum(counts, 1).astype(sums.dtype)


def trajectory_log_ratios(
    log_ratios: jax.Array,
    action_mask: jax.Array,
    *,
    mean: bool,
    trajectory_ids: jax.Array | None = None,
) -> jax.Array:
    """Log-ratio of each row's trajectory: the sum over its chosen tokens, or their mean.

    mean=False: log of RTPO's omega (Eq. 4), sum_t l_t. mean=True: (1 / |y|) sum_t l_t (GSPO).

    Args:
      log_ratios: [N, T] in nats.
      action_mask: [N, T] bool, True = chosen by the policy.
      mean: True for the geometric mean.
      trajectory_ids: [N] int; rows with the same id make up one trajectory, as the turns of an
        episode that was acted under managed contexts do. -1 = padding row. None: one row each.

    Returns:
      [N] in nats, the same number on all rows of a trajectory; 0 (ratio 1) for trajectories without
      chosen tokens and for padding rows.

    Raises:
      ValueError: wrong rank or dtype kind, unequal shapes.

    >>> trajectory_log_ratios([[1.0, 3.0, 9.0]], [[True, True, False]], mean=True).tolist()
    [2.0]
    >>> two_rows = [[1.0], [3.0]], [[True], [True]]
    >>> trajectory_log_ratios(*two_rows, mean=True, trajectory_ids=[4, 4]).tolist()
    [2.0, 2.0]
    """
    (log_ratios,) = _checks.floats(2, log_ratios=log_ratios)
    (action_mask,) = _checks.masks(2, action_mask=action_mask)
    _checks.same_shape(log_ratios=log_ratios, action_mask=action_mask)
    sums = keep(action_mask, log_ratios).sum(axis=1)
    counts = action_mask.sum(axis=1).astype(sums.dtype)
    if trajectory_ids is not None:
        (ids,) = _checks.ids(1, limit=2**31 - 1, trajectory_ids=trajectory_ids)
        _checks.has_shape(action_mask.shape[:1], trajectory_ids=ids)
        same = (ids[:, None] == ids[None, :]) & (ids[:, None] >= 0)
        # Selected, not multiplied: a NaN stays in its own trajectory.
        sums, counts = (jnp.where(same, part[None, :], 0).sum(1) for part in (sums, counts))
    return sums / jnp.maximum(counts, 1) if mean else sums


def ratios(log_ratios: jax.Array, *, limit: float = 20.0) -> jax.Array:
    """Ratios from log-ratios, exp(clamp(l, -limit, limit)).

    The clamp is a deviation from the equations of all papers that keeps value and gradient finite:
    beyond the limit the ratio is constant and its gradient 0. At the default it acts on ratios
    above 4.9e8 or below 2.1e-9 only; `limit=math.inf` turns it off.

    Args:
      log_ratios: any shape, in nats.
      limit: clamp on the absolute log-ratio, in nats, at least 0.

    Returns:
      shape of `log_ratios`. NaN stays NaN, with zero gradient.

    Raises:
      ValueError: wrong dtype kind, or a negative limit.

    >>> ratios([0.0]).tolist()
    [1.0]
    """
    (log_ratios,) = _checks.floats(log_ratios=log_ratios)
    limit = _checks.scalar(log_ratios, 0.0, math.inf, limit=limit)
    return with_finite_gradient(
        lambda log_ratio: jnp.exp(jnp.clip(log_ratio, -limit, limit)), log_ratios
    )
