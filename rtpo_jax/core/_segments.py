"""Sums per id and back, where ids outside 0..num-1 (so -1) belong to nothing and leak nothing.

Private numerics of this package are compiled where they have many operations: a call outside jit
then compiles one program for a new shape instead of one an operation.
"""

from functools import partial

import jax
import jax.numpy as jnp

from rtpo_jax.core._masking import keep


def members(ids: jax.Array, num_segments: int) -> jax.Array:
    """True where an id names a segment."""
    return (ids >= 0) & (ids < num_segments)


@partial(jax.jit, static_argnums=2)
def segment_sum(values: jax.Array, ids: jax.Array, num_segments: int) -> jax.Array:
    """Sum of the values [M] of each segment, [num_segments]; 0 for a segment without members."""
    inside = members(ids, num_segments)
    # Outsiders go to one extra segment that is cut off: what a segment sum does with negative ids
    # is not relied upon.
    routed = jnp.where(inside, ids, num_segments)
    return jax.ops.segment_sum(keep(inside, values), routed, num_segments + 1)[:num_segments]


def segment_counts(ids: jax.Array, num_segments: int) -> jax.Array:
    """Number of members of each segment, [num_segments] int32."""
    return segment_sum(jnp.ones(ids.shape, jnp.int32), ids, num_segments)


@partial(jax.jit, static_argnums=2)
def segment_peak(values: jax.Array, ids: jax.Array, num_segments: int) -> jax.Array:
    """Largest value of each segment, [num_segments]; -inf for a segment without members."""
    inside = members(ids, num_segments)
    routed = jnp.where(inside, ids, num_segments)
    return jax.ops.segment_max(keep(inside, values), routed, num_segments + 1)[:num_segments]


@jax.jit
def spread(segment_values: jax.Array, ids: jax.Array) -> jax.Array:
    """Hand each id its segment's value, 0 where the id names no segment; shape of `ids`."""
    inside = members(ids, segment_values.shape[0])
    return keep(inside, segment_values[jnp.where(inside, ids, 0)])


@partial(jax.jit, static_argnums=1)
def turn_units(turn_ids: jax.Array, num_turns: int) -> jax.Array:
    """One id per (row, turn): n * H + turn_ids[n, t] in 0..N*H-1, -1 outside turns; [N, T]."""
    rows = jnp.arange(turn_ids.shape[0])[:, None]
    return jnp.where(members(turn_ids, num_turns), rows * num_turns + turn_ids, -1)
