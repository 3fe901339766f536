"""Families of tasks that differ in where the variance of the return comes from, as MDPs.

Every constructor returns a `Case`. Action 0 is the right one, its probability may differ from turn
to turn but never from state to state: what a task hides (luck, doom) is in the state, so that a
restored state keeps it, and the policy does not see it. All rewards are deterministic given state
and action; what is random is in the transitions.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tabular.mdp import TurnMDP, check_integer

ALIVE, DEAD, RIGHT, WRONG = 0, 1, 0, 1


class Case(NamedTuple):
    """An MDP and a policy [H, S, A] that is the same in all states of a turn."""

    mdp: TurnMDP
    policy: jax.Array


def lock_case(
    num_turns: int,
    success: float | Sequence[float],
    *,
    ends_at_error: bool = False,
    tool_failure: float = 0.0,
) -> Case:
    """A combination lock: 1 at the last turn if every action was right.

    Args:
      num_turns: H.
      success: probability of the right action, one number or one per turn.
      ends_at_error: an error, or a failing tool, ends the episode; otherwise it goes on, dead, to
        the last turn.
      tool_failure: probability that a right action before the last turn fails all the same (a
        noisy tool call; the last action is an answer and calls none).

    Raises:
      ValueError: a probability outside 0..1 or not one per turn.
    """
    policy = _two_actions(num_turns, 2, success)
    _probability("tool_failure", tool_failure)
    transitions = np.zeros((num_turns, 2, 2, 2))
    transitions[:, ALIVE, RIGHT] = [1.0 - tool_failure, tool_failure]
    transitions[:, ALIVE, WRONG, DEAD] = transitions[:, DEAD, :, DEAD] = 1.0
    if ends_at_error:
        transitions[..., DEAD] = 0.0
    rewards = np.zeros((num_turns, 2, 2))
    rewards[-1, ALIVE, RIGHT] = 1.0
    return Case(TurnMDP(transitions, rewards, np.array([1.0, 0.0])), policy)


def chain_case(num_turns: int, goal: int, success: float, *, setback: int = 0) -> Case:
    """A task with slack: `goal` right actions needed in `num_turns` turns, errors recoverable.

    The state counts progress. A right action adds 1, a wrong one takes `setback` away (0: stay),
    never below 0. Reaching the goal pays 1 and ends the episode.

    Raises:
      ValueError: sizes below 1 (`setback`: 0) or a probability outside 0..1.
    """
    check_integer("goal", goal, 1)
    check_integer("setback", setback, 0)
    policy = _two_actions(num_turns, goal, success)
    transitions = np.zeros((num_turns, goal, 2, goal))
    rewards = np.zeros((num_turns, goal, 2))
    for state in range(goal):
        transitions[:, state, WRONG, max(state - setback, 0)] = 1.0
        if state + 1 < goal:
            transitions[:, state, RIGHT, state + 1] = 1.0
    rewards[:, goal - 1, RIGHT] = 1.0
    return Case(TurnMDP(transitions, rewards, np.eye(goal)[0]), policy)


def late_case(num_turns: int, critical: int, success: float, *, doom: float = 0.0) -> Case:
    """Only the last `critical` turns matter; before them every action does the same.

    The last turns are a lock. Before them the episode may be doomed by chance, with the same
    probability at every turn and `doom` in all, whatever the policy does; it goes on, dead.

    Raises:
      ValueError: `critical` outside 1..num_turns, a probability outside 0..1, or doom without a
        turn for it.
    """
    check_integer("critical", critical, 1, num_turns)
    _probability("doom", doom)
    free = num_turns - critical
    if doom and not free:
        raise ValueError(f"doom={doom} but all {num_turns} turns are critical: leave one free")
    lock = lock_case(num_turns, success)
    transitions = np.array(lock.mdp.transitions)
    hazard = 1.0 - (1.0 - doom) ** (1.0 / max(free, 1))
    transitions[:free, ALIVE] = [1.0 - hazard, hazard]
    return Case(TurnMDP(transitions, lock.mdp.rewards, lock.mdp.start), lock.policy)


def paid_at_once_case(num_turns: int, success: float) -> Case:
    """Every right action pays 1 at once; one state, nothing carries over.

    Raises ValueError for a probability outside 0..1.
    """
    rewards = np.zeros((num_turns, 1, 2))
    rewards[:, :, RIGHT] = 1.0
    mdp = TurnMDP(np.ones((num_turns, 1, 2, 1)), rewards, np.ones(1))
    return Case(mdp, _two_actions(num_turns, 1, success))


def with_luck(
    case: Case,
    turn: int,
    probabilities: Sequence[float],
    *,
    shifts: Sequence[float],
    scales: Sequence[float],
) -> Case:
    """Draw a hidden number after `turn`; the last reward becomes scale x reward + shift.

    The state becomes (state, luck), index state * J + luck; before the draw luck is 0. An episode
    that ends before the last turn never pays its shift.

    Args:
      case: the task without luck, its policy the same in all states of a turn.
      turn: the luck is drawn between this turn and the next, 0..H-2.
      probabilities: [J] of the values.
      shifts: [J], in units of reward.
      scales: [J].

    Raises:
      ValueError: `turn` out of range, unequal lengths, probabilities that do not sum to 1.
    """
    check_integer("turn", turn, 0, case.mdp.num_turns - 2)
    lengths = {len(probabilities), len(shifts), len(scales)}
    _probability("probabilities", probabilities)
    if len(lengths) != 1 or abs(sum(probabilities) - 1.0) > 1e-12:
        raise ValueError(
            f"probabilities={probabilities}, shifts={shifts}, scales={scales}: give lists of one "
            "length, the first with sum 1"
        )
    count = len(probabilities)
    steps = np.broadcast_to(np.eye(count), (case.mdp.num_turns, count, count)).copy()
    steps[turn] = np.asarray(probabilities)
    return _with_hidden(case, steps, np.eye(count)[0], np.asarray(shifts), np.asarray(scales))


def with_additive_luck(case: Case, turn: int, size: float) -> Case:
    """Add + or - `size`, each with probability 1/2, to the last reward; drawn after `turn`."""
    return with_luck(case, turn, (0.5, 0.5), shifts=(size, -size), scales=(1.0, 1.0))


def with_fate(case: Case, turn: int, doomed: float, won: float) -> Case:
    """After `turn` the outcome is 0 whatever follows with probability `doomed`, 1 with `won`."""
    live = 1.0 - doomed - won
    return with_luck(case, turn, (doomed, won, live), shifts=(0, 1, 0), scales=(0, 0, 1))


def with_random_walk(case: Case, turns: int, step: float) -> Case:
    """Add a hidden random walk to the last reward: + or - `step` after each of the first `turns`.

    Raises ValueError unless `turns` is in 1..H-1.
    """
    check_integer("turns", turns, 1, case.mdp.num_turns - 1)
    count = 2 * turns + 1
    steps = np.broadcast_to(np.eye(count), (case.mdp.num_turns, count, count)).copy()
    # Rows at the two ends are never reached before the walk is over; they stay where they are.
    walk = 0.5 * (np.eye(count, k=1) + np.eye(count, k=-1))
    walk[[0, -1]] = np.eye(count)[[0, -1]]
    steps[:turns] = walk
    shifts = step * (np.arange(count) - turns)
    return _with_hidden(case, steps, np.eye(count)[turns], shifts, np.ones(count))


def _with_hidden(case, steps, start, shifts, scales):
    """The product of a case with a hidden Markov chain [H, J, J] that acts on the last reward."""
    mdp, count = case.mdp, len(start)
    num_turns, num_states, num_actions = mdp.rewards.shape
    transitions = np.einsum("hsat,hjk->hsjatk", np.asarray(mdp.transitions), steps)
    rewards = np.repeat(np.asarray(mdp.rewards)[:, :, None], count, axis=2)
    rewards[-1] = rewards[-1] * scales[None, :, None] + shifts[None, :, None]
    size = num_states * count
    hidden = TurnMDP(
        transitions.reshape(num_turns, size, num_actions, size),
        rewards.reshape(num_turns, size, num_actions),
        np.outer(mdp.start, start).ravel(),
    )
    return Case(hidden, jnp.asarray(np.repeat(np.asarray(case.policy), count, axis=1)))


def _two_actions(num_turns, num_states, success):
    check_integer("num_turns", num_turns, 1)
    right = np.asarray(success, dtype=float)
    if right.ndim and right.shape != (num_turns,):
        raise ValueError(f"success={success}: give one probability, or one per turn ({num_turns})")
    _probability("success", right)
    rows = np.stack([right, 1.0 - right], axis=-1)
    rows = np.broadcast_to(rows[..., None, :], (*rows.shape[:-1], num_states, 2))
    return jnp.asarray(np.broadcast_to(rows, (num_turns, num_states, 2)).copy())


def _probability(name, value):
    if not np.all((np.asarray(value) >= 0.0) & (np.asarray(value) <= 1.0)):
        raise ValueError(f"{name}={value}: choose probabilities from 0 to 1")
