"""Surrogate objectives to maximise, elementwise at whatever level ratios and advantages live."""

import math

import jax
import jax.numpy as jnp

from rtpo_jax.core import _checks
from rtpo_jax.core._masking import with_finite_gradient


def importance_weighted(ratios: jax.Array, advantages: jax.Array) -> jax.Array:
    """Unclipped surrogate r A, whose gradient at r = 1 is A times the gradient of log pi.

    Args:
      ratios: any shape.
      advantages: same shape.

    Returns:
      that shape, in units of the advantages. Where a factor is not finite the gradient is 0.

    Raises:
      ValueError: wrong dtype kind or unequal shapes.

    >>> importance_weighted([1.5], [2.0]).tolist()
    [3.0]
    """
    ratios, advantages = _paired(ratios, advantages)
    return with_finite_gradient(jnp.multiply, ratios, advantages)


def clipped_surrogate(
    ratios: jax.Array, advantages: jax.Array, clip_low: float, clip_high: float
) -> jax.Array:
    """Clipped surrogate of PPO (RTPO, Eq. 6; SeeUPO, Eq. 6; SORL, section 4).

    min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)

    Computed by cases on `is_clipped`, which gives the same values; the gradient with respect to r
    is A where the element is not clipped and 0 where it is, also when r sits exactly on a bound
    (differentiating minimum and clip at a tie would give a fraction of A).

    Args:
      ratios: any shape.
      advantages: same shape.
      clip_low: distance of the lower bound from 1, at least 0.
      clip_high: distance of the upper bound from 1, at least 0; DAPO clips higher than lower.

    Returns:
      that shape, in units of the advantages. Where a factor is not finite the gradient is 0.

    Raises:
      ValueError: wrong dtype kind, unequal shapes, negative clip_low or clip_high.

    >>> clipped_surrogate([2.0, 2.0, 0.0], [1.0, -1.0, -1.0], 0.5, 0.5).tolist()
    [1.5, -2.0, -0.5]
    """
    ratios, advantages = _paired(ratios, advantages)
    low, high = _bounds(ratios, clip_low, clip_high)

    def surrogate(ratio, advantage):
        bound = jnp.where(advantage < 0, low, high)
        return jnp.where(_beyond(ratio, advantage, low, high), bound, ratio) * advantage

    return with_finite_gradient(surrogate, ratios, advantages)


def is_clipped(
    ratios: jax.Array, advantages: jax.Array, clip_low: float, clip_high: float
) -> jax.Array:
    """Where the clipped surrogate is flat in the ratio.

    (A >= 0 and r > 1 + clip_high) or (A < 0 and r < 1 - clip_low): the complement of SORL's B_t
    (Lemma 4.2).

    Args:
      ratios: any shape.
      advantages: same shape.
      clip_low: distance of the lower bound from 1, at least 0.
      clip_high: distance of the upper bound from 1, at least 0.

    Returns:
      that shape, bool. A NaN ratio or advantage is not clipped.

    Raises:
      ValueError: wrong dtype kind, unequal shapes, negative clip_low or clip_high.

    >>> is_clipped([2.0, 2.0, 0.0], [1.0, -1.0, -1.0], 0.5, 0.5).tolist()
    [True, False, True]
    """
    ratios, advantages = _paired(ratios, advantages)
    return _beyond(ratios, advantages, *_bounds(ratios, clip_low, clip_high))


def _beyond(ratios: jax.Array, advantages: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
    return ((advantages >= 0) & (ratios > high)) | ((advantages < 0) & (ratios < low))


def _bounds(ratios: jax.Array, clip_low: float, clip_high: float) -> tuple[jax.Array, jax.Array]:
    low = 1 - _checks.scalar(ratios, 0.0, math.inf, clip_low=clip_low)
    return low, 1 + _checks.scalar(ratios, 0.0, math.inf, clip_high=clip_high)


def _paired(ratios: jax.Array, advantages: jax.Array) -> tuple[jax.Array, jax.Array]:
    ratios, advantages = _checks.floats(ratios=ratios, advantages=advantages)
    _checks.same_shape(ratios=ratios, advantages=advantages)
    return ratios, advantages
