"""Checks of settings and arguments: every failure names the field, its value and the fix."""

import operator


def check_integer(field: str, value: int, low: int, high: int | None = None) -> None:
    """Raise ValueError unless `value` is an integer with low <= value (<= high)."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{field} is {value!r}; give an integer")
    if value < low or (high is not None and value > high):
        limits = f"at least {low}" if high is None else f"from {low} to {high}"
        raise ValueError(f"{field} is {value}; give an integer {limits}")


def check_probability(field: str, value: float) -> None:
    """Raise ValueError unless 0 <= value <= 1 (NaN is refused too)."""
    if not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise ValueError(f"{field} is {value!r}; give a probability from 0 to 1")


def check_choice(field: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise ValueError unless `value` is one of `choices`."""
    if value not in choices:
        raise ValueError(f"{field} is {value!r}; choose one of {', '.join(map(repr, choices))}")


def check_seed(seed: int) -> int:
    """Return `seed` as a Python int (numpy integers are accepted); anything else: ValueError."""
    try:
        return operator.index(seed)
    except TypeError:
        raise ValueError(f"seed is {seed!r}; give an integer") from None
