"""What a method may ask of the world: the policy, the rollout engine and finished episodes."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol

import jax
import numpy as np

from rtpo_jax.algorithms.rows import Rows, Scores

Context = Literal["recorded", "full_history"]


class Policy(NamedTuple):
    """Parameters and the number of optimiser steps that made them."""

    params: Any
    version: int = 0


class Collected(NamedTuple):
    """What an iteration starts from: trunks, and whatever else was sampled with them."""

    trunks: "Trajectories"
    others: tuple["Trajectories", ...] = ()


class Trajectories(Protocol):
    """Finished episodes, as the engine returns them (M episodes, H turns)."""

    rewards: np.ndarray  # [M, H]
    discounts: np.ndarray  # [M, H]
    group_ids: np.ndarray  # [M]
    num_groups: int  # upper bound on the ids; unused ids are empty groups
    sibling_ids: np.ndarray  # [M]
    num_boundaries: int  # upper bound on the ids; 0 = nothing was forked
    row_weights: np.ndarray | None  # [M] exact measure, None = Monte Carlo
    tree_ids: np.ndarray  # [M] episodes forked from one start share an id
    turn_mask: np.ndarray  # [M, H] turns that happened
    node_ids: np.ndarray  # [M, H] decisions; a turn that forks share is one; -1 = no turn
    state_ids: np.ndarray  # [M, H] same task and same context; -1 = no turn

    def joined(self, *others: "Trajectories") -> "Trajectories":
        """These and other episodes in one batch, compared by task."""

    def grown(self, branches: "Trajectories") -> "Trajectories":
        """These and continuations that were forked from them: the leaves of their trees."""


class Engine(Protocol):
    """What a method may ask of the rollout engine."""

    num_turns: int

    def rollout(self, policy: Policy, tasks: Sequence, copies: int, key: jax.Array) -> Trajectories:
        """Run `copies` episodes of every task from the start."""

    def continue_from(
        self,
        policy: Policy,
        trunks: Trajectories,
        turn: int,
        copies: int,
        key: jax.Array,
        *,
        include_trunks: bool = False,
    ) -> Trajectories:
        """Fork `copies` siblings at every trunk's boundary `turn` and run them to the end.

        With `include_trunks` the trunks that reached the boundary are members of its groups.
        """

    def branch(
        self,
        policy: Policy,
        trunks: Trajectories,
        points: Sequence[tuple[int, int]],
        key: jax.Array,
    ) -> Trajectories:
        """One continuation for every point (index of a trunk, turn), in their order."""

    def rows(
        self, trajectories: Trajectories, context: Context, turns: Sequence[int] | None = None
    ) -> Rows:
        """Pack the chosen turns of the episodes into training rows."""

    def score(self, policy: Policy, rows: Rows) -> Scores:
        """What `policy` says about the rows' chosen tokens, [N, T]; 0 outside action tokens."""
