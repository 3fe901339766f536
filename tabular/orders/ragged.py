"""Normalising advantages over a turn pool when episodes have different lengths.

SeeUPO (arXiv 2602.06554, section 4) updates turn h from the pool of its actions and may normalise the
advantages of the pool, (A - mean) / std. Episodes that end before turn h have no action there. A
mask leaves them out. The authors' released code fills their place with placeholders whose advantage
is 0, which have no loss but are counted in mean and standard deviation.
"""

import jax
import jax.numpy as jnp

from tabular.paths import Paths


def pool_normalised(
    paths: Paths,
    weights: jax.Array,
    advantages: jax.Array,
    *,
    centre: bool,
    placeholders: bool = False,
) -> jax.Array:
    """Advantages of every turn over the statistics of its pool, [M, H].

        A~ = (A - mean_h) / std_h,   mean and population std over the pool of turn h

    A pool that is flat up to rounding gets 0. The statistics are exact expectations: the limit of a
    batch without bound, for which `core.whiten` is the finite one.

    Args:
      paths: M episodes.
      weights: [M] measure of the episodes, sum 1.
      advantages: [M, H]; entries of turns that did not happen are not read.
      centre: subtract the mean; False divides only.
      placeholders: count episodes that ended before turn h as members with advantage 0.

    Returns:
      [M, H], dimensionless; 0 where the turn did not happen.
    """
    measure = jnp.where(paths.turn_mask, weights[:, None], 0.0)
    members = jnp.where(placeholders, weights.sum(), measure.sum(0))
    members = jnp.where(members > 0, members, 1.0)
    kept = jnp.where(paths.turn_mask, advantages, 0.0)
    mean = (measure * kept).sum(0) / members
    # Placeholders lie at 0, a distance of the mean away. From deviations, not from squares, so that
    # a flat pool has a variance of rounding only.
    spread = (measure * (kept - mean[None]) ** 2).sum(0) + (members - measure.sum(0)) * mean**2
    variance = spread / members
    flat = variance <= 1e-24 * (measure * kept**2).sum(0) / members
    shift = mean if centre else jnp.zeros_like(mean)
    scaled = (kept - shift[None]) / jnp.sqrt(jnp.where(flat, 1.0, variance))[None]
    return jnp.where(paths.turn_mask & ~flat[None], scaled, 0.0)
