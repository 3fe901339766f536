"""MDPs per second of two exact computations, vectorised and in a plain numpy loop.

Part of `experiments.benchmark`.
"""

import time
from collections.abc import Callable

import jax
import numpy as np

import tabular
from experiments import numpy_reference
from experiments.timing import median_seconds
from tabular.guarantees import cells

SHAPE = (3, 3, 2)  # turns, states, actions
SHARE = 16  # one MDP in so many goes through the numpy loop as well


def run(num_mdps: int, repetitions: int) -> list[dict]:
    """Both computations, one row each.

    Times are medians after a warm-up call, compilation excluded; the numpy loop is timed once over a
    sixteenth of the MDPs (at least 16), and has to give the same numbers to 1e-10.

    Raises:
      ArithmeticError: the two disagree.
    """
    keys = jax.random.split(jax.random.key(0), num_mdps)
    mdps, policies = jax.jit(jax.vmap(lambda key: cells.proximal_case(key, *SHAPE)))(keys)
    performance = jax.jit(jax.vmap(tabular.performance))
    share = slice(max(num_mdps // SHARE, min(num_mdps, SHARE)))
    arrays = [np.asarray(a)[share] for a in (mdps.transitions, mdps.rewards, mdps.start, policies)]
    return [
        _row("exact values", lambda: performance(mdps, policies),
             lambda: numpy_reference.performances(*arrays), num_mdps, repetitions),
        _row("exact proximal update", lambda: cells.monotone_gain(mdps, policies),
             lambda: numpy_reference.gains(*arrays), num_mdps, repetitions),
    ]  # fmt: skip


def _row(what: str, fast: Callable, loop: Callable, num_mdps: int, repetitions: int) -> dict:
    seconds = median_seconds(fast, repetitions)
    started = time.perf_counter()
    expected = loop()
    slow = (time.perf_counter() - started) / len(expected)
    worst = np.abs(np.asarray(fast())[: len(expected)] - expected).max()
    if not worst <= 1e-10:
        raise ArithmeticError(f"{what}: vectorised and numpy differ by {worst}")
    return {
        "what": what,
        "mdps": num_mdps,
        "mdps_per_second": num_mdps / seconds,
        "numpy_loop_mdps_per_second": 1.0 / slow,
        "speed_up": slow * num_mdps / seconds,
    }
