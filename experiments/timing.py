"""Wall times that can be compared: warmed up, waited for, medians."""

import statistics
import time
from collections.abc import Callable

import jax


def median_seconds(call: Callable, repetitions: int) -> float:
    """Median wall time of `call`, whose result is waited for; one warm-up call goes before."""
    jax.block_until_ready(call())
    times = []
    for _ in range(repetitions):
        started = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - started)
    return statistics.median(times)
