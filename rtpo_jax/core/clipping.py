"""What clipping takes out of a gradient, and scales that answer to it (SORL, arXiv 2511.20718)."""

from typing import Literal, get_args

import jax
import jax.numpy as jnp

from rtpo_jax.core import _checks
from rtpo_jax.core.surrogates import importance_weighted, is_clipped

ClippingScale = Literal["guarded", "literal", "damped", "capped", "relative"]

# Guard of the "capped" scale against a bias of 0.
_CAPPED_GUARD = 1e-8


def clipping_bias(
    ratios: jax.Array, advantages: jax.Array, clip_low: float, clip_high: float
) -> jax.Array:
    """Terms (1 - B) r A whose weighted sum has the clipping bias C as its gradient (Lemma 4.2).

    B is 0 where `is_clipped`, so the unclipped surrogate's gradient is that of the clipped one plus
    C.

    Args:
      ratios: any shape.
      advantages: same shape.
      clip_low: distance of the lower bound from 1, at least 0.
      clip_high: distance of the upper bound from 1, at least 0.

    Returns:
      that shape, in units of the advantages; 0 with gradient 0 where nothing is clipped.

    Raises:
      ValueError: wrong dtype kind, unequal shapes, negative clip_low or clip_high.

    >>> clipping_bias([2.0, 2.0, 1.0], [1.0, -1.0, 1.0], 0.5, 0.5).tolist()
    [2.0, 0.0, 0.0]
    """
    clipped = is_clipped(ratios, advantages, clip_low, clip_high)
    products = importance_weighted(ratios, advantages)
    return jnp.where(clipped, products, jnp.zeros_like(products))


def clipping_triggered_scale(
    gradient_norm: jax.Array, bias_norm: jax.Array, kind: ClippingScale
) -> jax.Array:
    """Factor on the gradient g of the clipped objective, from the norms of g and of the bias C.

    SORL divides g by the norm of C (S-PPO, SO-PPO). What happens where nothing is clipped is not
    published; these are readings of it, the first being the one that never enlarges a step:

        guarded    1 / max(1, |C|)
        literal    1 / |C| where something is clipped, else 1; enlarges the step while |C| < 1
        damped     1 / (1 + |C|)
        capped     1 / (1e-8 + |C|), then the gradient clipped to norm 1: 1 / max(1e-8 + |C|, |g|)
        relative   |g| / (|g| + |C|): scale-free. g is the part of the unclipped gradient g + C that
                   survives clipping, so this is the surviving share; 1 where nothing is clipped

    Args:
      gradient_norm: scalar, norm of g, at least 0.
      bias_norm: scalar, norm of C, at least 0.
      kind: the reading.

    Returns:
      scalar, positive; 0 only for "relative" where everything is clipped.

    Raises:
      ValueError: wrong dtype kind, not scalars, or an unknown kind.

    >>> clipping_triggered_scale(3.0, 4.0, "guarded").tolist()
    0.25
    """
    gradient_norm, bias_norm = _checks.floats(0, gradient_norm=gradient_norm, bias_norm=bias_norm)
    if kind not in get_args(ClippingScale):
        raise ValueError(
            f"kind={kind!r}: use one of {', '.join(map(repr, get_args(ClippingScale)))}"
        )
    clipped = bias_norm > 0
    if kind == "relative":
        total = jnp.where(clipped, gradient_norm + bias_norm, 1)
        return jnp.where(clipped, gradient_norm / total, 1)
    divisors = {
        "guarded": jnp.maximum(bias_norm, 1),
        "literal": jnp.where(clipped, bias_norm, 1),
        "damped": 1 + bias_norm,
        "capped": jnp.maximum(_CAPPED_GUARD + bias_norm, gradient_norm),
    }
    return 1 / divisors[kind]
