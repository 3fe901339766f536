"""All trajectories of a policy, one by one: the slow and obvious way to an expectation."""

import dataclasses

import jax
import numpy as np

from tabular.mdp import SUM_TOLERANCE, TurnMDP, check_integer, check_policy, is_concrete


@dataclasses.dataclass(frozen=True, eq=False)
class Trajectories:
    """The M different trajectories that have positive probability, as numpy arrays.

    Attributes:
      states: [M, H] int64 state at each turn; -1 where `turn_mask` is False.
      actions: [M, H] int64 action at each turn; -1 where `turn_mask` is False.
      turn_mask: [M, H] bool, True on turns that happened: False after the episode ended, and
        before the turn the enumeration starts from.
      rewards: [M, H] float64 reward after each action; 0 where `turn_mask` is False.
      probability: [M] float64, positive, sum 1.
    """

    states: np.ndarray
    actions: np.ndarray
    turn_mask: np.ndarray
    rewards: np.ndarray
    probability: np.ndarray


def trajectories(
    mdp: TurnMDP,
    policy: jax.Array,
    *,
    turn: int | None = None,
    state: int | None = None,
    limit: int = 1_000_000,
) -> Trajectories:
    """Enumerate every trajectory, whole or continued from one boundary.

        p = start(s_0) prod_h pi_h(a_h | s_h) P_h(s_{h+1} | s_h, a_h), the last factor being
        1 - sum_s' P_h(s' | s_h, a_h) where the episode ends before its last turn

    Two trajectories differ when a state, an action or the length differs. Rows are ordered by
    length, then by state, action, next state, and so on. A row of transitions whose sum is within
    `SUM_TOLERANCE` of 1 never ends the episode.

    Args:
      mdp: the MDP, concrete.
      policy: [H, S, A] action probabilities, concrete.
      turn: with `state`, start at this turn in that state with probability 1, reachable or not;
        arrays keep all H columns and columns before `turn` are masked.
      state: see `turn`.
      limit: the largest M that is built.

    Returns:
      `Trajectories` with M rows.

    Raises:
      ValueError: on a malformed policy, on traced arguments, when only one of `turn` and `state`
        is given or one is out of range, and when M would exceed `limit`.
    """
    if not all(is_concrete(leaf) for leaf in jax.tree.leaves((mdp, policy))):
        raise ValueError("mdp and policy are traced: call trajectories outside jit, grad and vmap")
    policy = np.asarray(check_policy(mdp, policy))
    first_turn, start = _boundary(mdp, turn, state)
    outcomes = _outcomes(mdp, policy)
    count = _count(outcomes, first_turn, start)
    if count > limit:
        raise ValueError(
            f"limit is {limit} but there are {count} trajectories: enumerate a smaller MDP or a "
            "later boundary, or raise limit"
        )
    return _collect(mdp, _enumerate(outcomes, first_turn, start))


def _boundary(mdp, turn, state):
    """The first turn and the distribution [S] of the state there."""
    if (turn is None) != (state is None):
        missing = "state" if state is None else "turn"
        raise ValueError(f"{missing} is None: give turn and state together, or neither of them")
    if turn is None:
        return 0, np.asarray(mdp.start)
    check_integer("turn", turn, 0, mdp.num_turns - 1)
    check_integer("state", state, 0, mdp.num_states - 1)
    return turn, np.eye(mdp.num_states)[state]


def _outcomes(mdp, policy):
    """Probability [H, S, A, S+1] of an action and what follows; the last column is the end."""
    transitions = np.asarray(mdp.transitions)
    end = 1.0 - transitions.sum(-1)
    end[end <= SUM_TOLERANCE] = 0.0
    following = np.concatenate([transitions, end[..., None]], axis=-1)
    following[-1] = np.eye(mdp.num_states + 1)[-1]
    return policy[..., None] * following


def _count(outcomes, first_turn, start):
    """The number of trajectories, in Python integers because it may exceed any machine integer."""
    continuations = np.full(start.size, 0, dtype=object)
    for possible in (outcomes[first_turn:] > 0)[::-1]:
        ways = np.append(continuations, 1)
        continuations = (possible.sum(1).astype(object) * ways[None, :]).sum(-1)
    return int(continuations[start > 0].sum())


def _enumerate(outcomes, first_turn, start):
    """Grow all prefixes turn by turn; return those that ended, as a list with one entry a turn."""
    num_turns, num_states = outcomes.shape[:2]
    here = np.flatnonzero(start > 0)
    probability = start[here]
    states = np.full((here.size, num_turns), -1)
    actions = states.copy()
    ended = []
    for turn in range(first_turn, num_turns):
        rows, action, following = _branch(outcomes[turn] > 0, here)
        probability = probability[rows] * outcomes[turn, here[rows], action, following]
        states, actions = states[rows], actions[rows]
        states[:, turn], actions[:, turn] = here[rows], action
        ends = following == num_states
        ended.append((states[ends], actions[ends], probability[ends]))
        here, probability = following[~ends], probability[~ends]
        states, actions = states[~ends], actions[~ends]
    return ended


def _branch(possible, here):
    """For prefixes in states `here`: (prefix, action, outcome) of every possible next step."""
    state, action, outcome = np.nonzero(possible)
    counts = np.bincount(state, minlength=len(possible))
    first = np.cumsum(counts) - counts
    rows = np.repeat(np.arange(here.size), counts[here])
    # Position of each new row among the branches of its own prefix.
    within = np.arange(rows.size) - np.repeat(np.cumsum(counts[here]) - counts[here], counts[here])
    branch = first[here[rows]] + within
    return rows, action[branch], outcome[branch]


def _collect(mdp, ended):
    states, actions, probability = (np.concatenate(parts) for parts in zip(*ended, strict=True))
    turn_mask = states >= 0
    paid = np.asarray(mdp.rewards)[np.arange(mdp.num_turns)[None, :], states, actions]
    rewards = np.where(turn_mask, paid, 0.0)
    return Trajectories(states, actions, turn_mask, rewards, probability)
