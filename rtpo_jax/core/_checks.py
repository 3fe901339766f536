"""Entry checks: convert to jax arrays, or raise a ValueError that names field, value and fix."""

import operator

import chex
import jax
import jax.numpy as jnp

_FIXES = {
    float: "pass floating point values, e.g. jnp.asarray(x, jnp.float32)",
    bool: "pass booleans, True = keep, e.g. x > 0",
    int: "pass integer ids, -1 where there is none",
}


def _checked(kind: type, rank: int | None, arrays: dict[str, jax.Array]) -> tuple[jax.Array, ...]:
    arrays = {name: jnp.asarray(array) for name, array in arrays.items()}
    for name, array in arrays.items():
        fix = f"{name} has dtype {array.dtype}; {_FIXES[kind]}"
        chex.assert_type(array, kind, custom_message=fix, exception_type=ValueError)
        if rank is not None:
            fix = f"{name} has shape {array.shape}; pass an array of rank {rank}"
            chex.assert_rank(array, rank, custom_message=fix, exception_type=ValueError)
    return tuple(arrays.values())


def floats(rank: int | None = None, /, **arrays: jax.Array) -> tuple[jax.Array, ...]:
    """Named floating point arrays as jax arrays, all of the given rank (None: any).

    Integers and booleans (0/1 rewards) become JAX's default float; floats keep their dtype.
    """
    return _checked(float, rank, {name: _widened(array) for name, array in arrays.items()})


def _widened(array: jax.Array) -> jax.Array:
    array = jnp.asarray(array)
    exact = jnp.issubdtype(array.dtype, jnp.integer) or array.dtype == jnp.bool_
    return array.astype(float) if exact else array


def masks(rank: int | None = None, /, **arrays: jax.Array) -> tuple[jax.Array, ...]:
    """Named boolean arrays as jax arrays, all of the given rank (None: any)."""
    return _checked(bool, rank, arrays)


def ids(rank: int | None = None, /, *, limit: int, **arrays: jax.Array) -> tuple[jax.Array, ...]:
    """Named integer arrays as jax arrays with values in -1..limit-1.

    Arguments of a function under `jax.jit` or `jax.vmap` have no values yet and go unchecked; every
    function then treats an id outside the range like -1.
    """
    checked = _checked(int, rank, arrays)
    for (name, given), array in zip(arrays.items(), checked, strict=True):
        if isinstance(given, jax.core.Tracer) or array.size == 0:
            continue
        with jax.ensure_compile_time_eval():  # constants of a traced function do have values
            low, high = int(jnp.min(jnp.asarray(given))), int(jnp.max(jnp.asarray(given)))
        if low < -1 or high >= limit:
            raise ValueError(f"{name} spans {low}..{high}; use ids in -1..{limit - 1}")
    return checked


def same_shape(**arrays: jax.Array) -> None:
    """Raise unless all named arrays have one shape."""
    shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
    chex.assert_equal_shape(
        list(arrays.values()),
        custom_message=f"{shapes}: broadcast explicitly to one shape",
        exception_type=ValueError,
    )


def has_shape(shape: tuple[int, ...], /, **arrays: jax.Array) -> None:
    """Raise unless all named arrays have the given shape."""
    for name, array in arrays.items():
        fix = f"{name} has shape {array.shape}; pass shape {shape}"
        chex.assert_shape(array, shape, custom_message=fix, exception_type=ValueError)


def count(**sizes: int) -> int:
    """One named static size as a Python integer; raise unless it is an integer of at least 1."""
    ((name, size),) = sizes.items()
    if not hasattr(size, "__index__") or isinstance(size, jax.core.Tracer) or size < 1:
        raise ValueError(f"{name}={size!r}: use a Python integer of at least 1 (static in jit)")
    return operator.index(size)


def scalar(like: jax.Array, low: float, high: float, /, **scalars: float) -> jax.Array:
    """One named coefficient as an array of rank 0 with the dtype of `like`, in low..high.

    A traced coefficient goes unchecked.
    """
    ((name, given),) = scalars.items()
    value = jnp.asarray(given, like.dtype)
    fix = f"{name} has shape {value.shape}; pass one number"
    chex.assert_rank(value, 0, custom_message=fix, exception_type=ValueError)
    if not isinstance(given, jax.core.Tracer) and not low <= float(given) <= high:
        raise ValueError(f"{name}={given!r}: use a number in {low}..{high}")
    return value
