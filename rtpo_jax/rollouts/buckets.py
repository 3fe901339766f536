"""Fixed shapes: lengths and counts are rounded up to a few sizes, so that few programs compile."""

from collections.abc import Sequence

import numpy as np


def bucket(size: int, buckets: Sequence[int], what: str) -> int:
    """The smallest bucket that holds `size`; ValueError when none does."""
    for capacity in sorted(buckets):
        if size <= capacity:
            return capacity
    raise ValueError(
        f"{what} of {size} does not fit the buckets {tuple(buckets)}: add a bucket of at least {size}"
    )


def power_of_two(size: int, least: int = 8) -> int:
    """The smallest power of two that is at least `size` and `least`."""
    return max(least, 1 << max(size - 1, 0).bit_length())


def pad_ragged(rows: Sequence[Sequence], shape: tuple[int, int], fill, dtype) -> np.ndarray:
    """Right-pad ragged rows into an array of `shape` [N, L]; rows beyond the given ones are fill."""
    padded = np.full(shape, fill, dtype)
    for index, row in enumerate(rows):
        padded[index, : len(row)] = row
    return padded
