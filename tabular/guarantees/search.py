"""The smallest instance that breaks a claim: start from one that does, simplify while it still does.

Everything works on stacks of cases, leading axis N, as numpy arrays: which numbers a move touches is
drawn anew for every case of the stack, and whether a claim is still broken is asked of all at once.
"""

from collections.abc import Callable
from typing import Literal

import jax
import numpy as np

from tabular.guarantees.cells import Case

Ties = Literal["table", "hidden", "shared", "linear"]
GRID = 10  # rounded probabilities have this denominator before they are normalised


def reachable(case: Case) -> np.ndarray:
    """Which states a stack of cases can stand in under some policy, [N, H, S] bool."""
    possible = np.asarray(case.mdp.transitions) > 0
    found = np.zeros(possible.shape[:3], bool)
    found[:, 0] = np.asarray(case.mdp.start) > 0
    for turn in range(1, found.shape[1]):
        found[:, turn] = (possible[:, turn - 1] & found[:, turn - 1, :, None, None]).any((1, 2))
    return found


def complexity(case: Case) -> np.ndarray:
    """How much there is to write down about each case of a stack, [N] int.

    Counts, where something can happen: states by turn, rewards that are not 0, transition rows that
    are not certain, policy rows that are not uniform, values with noise, all of these a second time
    if they are not round; and a start that is not certain.
    """
    here = reachable(case)
    rewards, policy, noise = (np.asarray(a) for a in (case.mdp.rewards, case.policy, case.noise))
    random = ~_is_certain(np.asarray(case.mdp.transitions))
    random[:, -1] = False
    uneven = np.ptp(policy, axis=-1) > 1e-12
    odd = uneven & ~_is_round(policy * GRID).all(-1)
    counts = here.astype(int) + uneven + odd + (noise != 0) + ~_is_round(2 * noise)
    actions = (rewards != 0).astype(int) + ~_is_round(2 * rewards) + random
    total = (here * (counts + actions.sum(-1))).sum((1, 2))
    return total + ~_is_certain(np.asarray(case.mdp.start))


def simplify(
    rng: np.random.Generator, case: Case, ties: Ties = "table", *, keep_tree: bool = False
) -> Case:
    """One or more random moves on each case of a stack, each to something no less simple.

    Moves: rewards to 0 or to a multiple of 1/2, transition rows or the start to their most likely
    outcome, policy rows to uniform or to tenths, noise to 0 or to a multiple of 1/2.

    Args:
      rng: numpy generator.
      case: stack of cases.
      ties: which policies belong to the class of the features: any for "table", equal in states that
        share a context for "hidden", equal at all turns for "shared"; for "linear" uniform is the
        only one that is known to.
      keep_tree: True leaves transitions alone, as a token tree needs.
    """
    count = len(case.policy)

    def some(shape, share):
        """Entries of `shape` to move: none for most cases, of the others a random part."""
        chosen = rng.random((count,) + (1,) * (len(shape) - 1)) < 0.4
        return chosen & (rng.random(shape) < share * rng.random((count,) + (1,) * (len(shape) - 1)))

    rewards, policy, noise = (np.asarray(a) for a in (case.mdp.rewards, case.policy, case.noise))
    rewards = np.where(some(rewards.shape, 1.0), 0.0, rewards)
    rewards = np.where(some((count, 1, 1, 1), 1.0), np.round(2 * rewards) / 2, rewards)
    noise = np.where(some(noise.shape, 1.0), 0.0, noise)
    noise = np.where(some((count, 1, 1), 1.0), np.round(2 * noise) / 2, noise)
    transitions, start = np.asarray(case.mdp.transitions), np.asarray(case.mdp.start)
    if not keep_tree:
        rows = some((*transitions.shape[:-1], 1), 1.0)
        transitions = np.where(rows, _most_likely(transitions), transitions)
    start = np.where(some((count, 1), 1.0), _most_likely(start), start)
    num_turns, num_states = policy.shape[1:3]
    free = {"table": (1, 1), "hidden": (1, 0), "shared": (0, 1), "linear": (0, 0)}[ties]
    rows = (num_turns if free[0] else 1, num_states if free[1] else 1)
    policy = np.where(some((count, *rows, 1), 1.0), 1.0 / policy.shape[-1], policy)
    if ties != "linear":
        tenths = np.maximum(np.round(GRID * policy), 1.0)
        tenths = tenths / tenths.sum(-1, keepdims=True)
        policy = np.where(some((count, *rows, 1), 1.0), tenths, policy)
    mdp = jax.tree.unflatten(jax.tree.structure(case.mdp), [transitions, rewards, start])
    return case._replace(mdp=mdp, policy=policy, noise=noise)


def shrink(
    rng: np.random.Generator,
    found: Case,
    drops: Callable[[Case, np.ndarray], np.ndarray],
    floors: np.ndarray,
    *,
    num_candidates: int,
    num_rounds: int,
    ties: Ties = "table",
    keep_tree: bool = False,
) -> Case:
    """Simplify each case of a stack as far as its claim stays broken.

    Args:
      rng: numpy generator.
      found: C cases that break their claims.
      drops: from a stack of C num_candidates cases, and the index [C num_candidates] of the case
        in `found` that each stems from, to how much each breaks its claim, positive if it does.
      floors: [C] a candidate is accepted only if it breaks the claim by more than this.
      num_candidates: tried per case and round.
      num_rounds: rounds; each keeps the simplest candidate.
      ties: see `simplify`.
      keep_tree: see `simplify`.

    Returns:
      C cases, none more complex than it was.
    """
    count = len(floors)
    owners = np.repeat(np.arange(count), num_candidates)
    for _ in range(num_rounds):
        candidates = simplify(rng, take(found, owners), ties, keep_tree=keep_tree)
        kept = drops(candidates, owners) > floors[owners]
        # A case that no candidate improves stays: it competes with its own complexity.
        sizes = np.where(kept, complexity(candidates), np.iinfo(int).max)
        sizes = sizes.reshape(count, num_candidates)
        best = sizes.argmin(1)
        better = sizes[np.arange(count), best] < complexity(found)
        place = np.arange(count)
        both = jax.tree.map(lambda *leaves: np.concatenate(leaves), found, candidates)
        found = take(both, np.where(better, count + place * num_candidates + best, place))
    return found


def take(case: Case, index: np.ndarray | int) -> Case:
    """The cases of a stack at the given places."""
    return jax.tree.map(lambda leaf: np.asarray(leaf)[index], case)


def _most_likely(rows):
    """One-hot at the largest entry of a row, or nothing if what is missing to 1 is larger."""
    best = np.eye(rows.shape[-1])[rows.argmax(-1)]
    ends = 1.0 - rows.sum(-1, keepdims=True)
    return np.where(ends > rows.max(-1, keepdims=True), 0.0, best)


def _is_certain(rows):
    return ((rows == 0) | (rows == 1)).all(-1)


def _is_round(numbers):
    return np.abs(numbers - np.round(numbers)) < 1e-12
