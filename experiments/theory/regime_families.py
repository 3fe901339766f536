"""The tasks of the regimes experiment, by name: where the variance of the return comes from."""

from collections.abc import Callable
from typing import NamedTuple

from tabular.regimes.families import (
    Case,
    chain_case,
    late_case,
    lock_case,
    paid_at_once_case,
    with_additive_luck,
    with_fate,
    with_luck,
    with_random_walk,
)

LOCK_FIVE = 0.7  # success probability of a turn in the five-turn locks with something added


class Family(NamedTuple):
    """A task and what it stands for.

    Attributes:
      kind: errors early ("lock"), errors recoverable ("chain"), variance fixed upstream and hidden
        ("luck", "fate"), variance downstream ("late", "noisy"), short failures ("ends"), rewards on
        the way ("paid").
      make: builds the case.
    """

    kind: str
    make: Callable[[], Case]


def _lucky(size: float) -> Family:
    return Family("luck", lambda: with_additive_luck(lock_case(5, LOCK_FIVE), 0, size))


def _fated(turn: int, doomed: float, won: float) -> Family:
    return Family("fate", lambda: with_fate(lock_case(5, LOCK_FIVE), turn, doomed, won))


def _scaled(probabilities: tuple[float, ...], scales: tuple[float, ...]) -> Family:
    zeros = (0.0,) * len(scales)
    return Family(
        "fate",
        lambda: with_luck(lock_case(5, LOCK_FIVE), 0, probabilities, shifts=zeros, scales=scales),
    )


FAMILIES = {
    "lock K5 p.5": Family("lock", lambda: lock_case(5, 0.5)),
    "lock K5 p.7": Family("lock", lambda: lock_case(5, 0.7)),
    "lock K5 p.9": Family("lock", lambda: lock_case(5, 0.9)),
    "lock K8 p.8": Family("lock", lambda: lock_case(8, 0.8)),
    "chain K8 of 4, stay": Family("chain", lambda: chain_case(8, 4, 0.5)),
    "chain K8 of 4, back 1": Family("chain", lambda: chain_case(8, 4, 0.5, setback=1)),
    "chain K8 of 2, stay": Family("chain", lambda: chain_case(8, 2, 0.5)),
    "chain K12 of 4, back 1": Family("chain", lambda: chain_case(12, 4, 0.5, setback=1)),
    "luck .25": _lucky(0.25),
    "luck .5": _lucky(0.5),
    "luck 1": _lucky(1.0),
    "luck 2": _lucky(2.0),
    "luck x success (0, 1)": _scaled((0.5, 0.5), (0.0, 1.0)),
    "luck x success (.1, 1, 10)": _scaled((1 / 3, 1 / 3, 1 / 3), (0.1, 1.0, 10.0)),
    "doomed .2, won .2": _fated(0, 0.2, 0.2),
    "doomed .4, won .4": _fated(0, 0.4, 0.4),
    "doomed .8": _fated(0, 0.8, 0.0),
    "doomed .4, won .4 after turn 2": _fated(2, 0.4, 0.4),
    "last turn of 8": Family("late", lambda: late_case(8, 1, 0.5)),
    "last turn of 16": Family("late", lambda: late_case(16, 1, 0.5)),
    "last turn of 32": Family("late", lambda: late_case(32, 1, 0.5)),
    "last turn of 8, doom .5": Family("late", lambda: late_case(8, 1, 0.5, doom=0.5)),
    "last turn of 16, doom .5": Family("late", lambda: late_case(16, 1, 0.5, doom=0.5)),
    "last turn of 32, doom .5": Family("late", lambda: late_case(32, 1, 0.5, doom=0.5)),
    "last 2 of 16, random walk": Family(
        "late", lambda: with_random_walk(late_case(16, 2, 0.5), 14, 0.5)
    ),
    "lock K5 p.7, ends at error": Family("ends", lambda: lock_case(5, 0.7, ends_at_error=True)),
    "lock K5 p.6, ends at error": Family("ends", lambda: lock_case(5, 0.6, ends_at_error=True)),
    "lock K8 p.6, ends at error": Family("ends", lambda: lock_case(8, 0.6, ends_at_error=True)),
    "noisy tools .1": Family("noisy", lambda: lock_case(5, LOCK_FIVE, tool_failure=0.1)),
    "noisy tools .3": Family("noisy", lambda: lock_case(5, LOCK_FIVE, tool_failure=0.3)),
    "paid at once K8": Family("paid", lambda: paid_at_once_case(8, 0.5)),
}


def phase_case(num_turns: int, turn: int, luck: float) -> Case:
    """Phase map 1: a lock with J = 0.3 and hidden luck drawn after a turn."""
    return with_additive_luck(lock_case(num_turns, 0.3 ** (1.0 / num_turns)), turn, luck)


def critical_case(num_turns: int, critical: int, luck: float) -> Case:
    """Phase map 2: a lock whose last turns are hard, p = 0.5 after p = 0.99, and luck after turn 0.

    With all turns critical it is the lock of phase map 1.
    """
    if critical == num_turns:
        return phase_case(num_turns, 0, luck)
    success = [0.99] * (num_turns - critical) + [0.5] * critical
    return with_additive_luck(lock_case(num_turns, success), 0, luck)
