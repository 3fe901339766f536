"""Exact values and one exact proximal update in plain numpy, one MDP after the other.

The same computation as `tabular.guarantees.cells.monotone_gain`, written from the definitions and
without any of its functions: an independent check, and the loop that vectorisation is compared with
for speed.
"""

import numpy as np

CLIP = 0.2


def values(
    transitions: np.ndarray, rewards: np.ndarray, policy: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """State values [H+1, S] and action values [H, S, A] of a policy."""
    num_turns, num_states, _ = rewards.shape
    state_values, action_values = np.zeros((num_turns + 1, num_states)), np.zeros_like(rewards)
    for turn in reversed(range(num_turns)):
        action_values[turn] = rewards[turn] + transitions[turn] @ state_values[turn + 1]
        state_values[turn] = (policy[turn] * action_values[turn]).sum(-1)
    return state_values, action_values


def maximiser(behavior: np.ndarray, advantages: np.ndarray) -> np.ndarray:
    """The row [A] that maximises sum_a behavior min(r A, clip(r) A), closest to `behavior` in KL.

    An action with A > 0 earns A for each unit of probability up to (1 + clip) behavior and nothing
    beyond, one with A < 0 costs |A| beyond (1 - clip) behavior and nothing before. So the best
    actions are filled up in turn; what is left over goes where it costs nothing, as one common ratio
    cut to what each action may take: at least its capacity for A > 0, at most for A < 0.
    """
    good = advantages > 0
    ceiling = (1.0 + CLIP) * behavior
    row = np.zeros_like(behavior)
    for action in sorted(np.flatnonzero(good), key=lambda a: -advantages[a]):
        row[action] = min(ceiling[action], 1.0 - row.sum())
    if 1.0 - row.sum() <= 1e-15:
        return row
    low = np.where(good, 1.0 + CLIP, 0.0)
    high = np.where(advantages < 0, 1.0 - CLIP, np.inf)

    def total(ratio):
        return (np.clip(ratio, low, high) * behavior).sum()

    below, above = 0.0, 1.0 / behavior.min()
    for _ in range(60):
        middle = 0.5 * (below + above)
        below, above = (middle, above) if total(middle) < 1.0 else (below, middle)
    row = np.clip(above, low, high) * behavior
    return row / row.sum()


def gain(
    transitions: np.ndarray, rewards: np.ndarray, start: np.ndarray, policy: np.ndarray
) -> float:
    """Change of performance when every row becomes its maximiser, all turns at once."""
    state_values, action_values = values(transitions, rewards, policy)
    improved = np.zeros_like(policy)
    for turn, state in np.ndindex(policy.shape[:2]):
        advantages = action_values[turn, state] - state_values[turn, state]
        improved[turn, state] = maximiser(policy[turn, state], advantages)
    after, _ = values(transitions, rewards, improved)
    return float(start @ (after[0] - state_values[0]))


def gains(
    transitions: np.ndarray, rewards: np.ndarray, start: np.ndarray, policies: np.ndarray
) -> np.ndarray:
    """`gain` of a stack of N MDPs and policies, [N]."""
    stacks = zip(transitions, rewards, start, policies, strict=True)
    return np.array([gain(*arrays) for arrays in stacks])


def performances(
    transitions: np.ndarray, rewards: np.ndarray, start: np.ndarray, policies: np.ndarray
) -> np.ndarray:
    """Performance of a stack of N MDPs and policies, [N]."""
    stacks = zip(transitions, rewards, start, policies, strict=True)
    return np.array([s @ values(t, r, p)[0][0] for t, r, s, p in stacks])
