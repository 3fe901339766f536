"""Two ways to keep non-finite numbers at dropped places out of losses and gradients."""

from collections.abc import Callable

import jax
import jax.numpy as jnp


def keep(mask: jax.Array, values: jax.Array) -> jax.Array:
    """Values where the mask is True, else 0 with zero gradient, whatever stood there."""
    return jnp.where(mask, values, jnp.zeros_like(values))


def with_finite_gradient(function: Callable[..., jax.Array], *arrays: jax.Array) -> jax.Array:
    """Elementwise function whose gradient is 0 where an input is not finite.

    The value is untouched, so a non-finite input still shows in any loss that gives it weight. The
    gradient must vanish there because a weight of 0 applied later cannot help: the chain rule would
    multiply that 0 by a derivative that is itself NaN.
    """
    finite = jnp.isfinite(arrays[0])
    for array in arrays[1:]:
        finite &= jnp.isfinite(array)
    regular = function(*(keep(finite, array) for array in arrays))
    return jnp.where(finite, regular, jax.lax.stop_gradient(function(*arrays)))
