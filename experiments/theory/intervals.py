"""Confidence intervals of means over few seeds or MDPs."""

import numpy as np
from scipy import stats


def half_width(values: np.ndarray, level: float = 0.95) -> np.ndarray:
    """Half the width of the Student t interval of the mean over the first axis.

    Args:
      values: independent draws, [n, ...]; n of 2 or more, the degrees of freedom are n - 1.
      level: probability that the interval covers the mean.

    Returns:
      Half-widths, [...].

    Raises:
      ValueError: fewer than 2 draws.
    """
    values = np.asarray(values)
    count = len(values)
    if count < 2:
        raise ValueError(f"values has {count} draws: an interval needs 2 or more")
    quantile = stats.t.ppf(0.5 + level / 2.0, count - 1)
    return quantile * values.std(0, ddof=1) / count**0.5
