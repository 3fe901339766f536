"""Episodes as immutable records of turns, and finished episodes as arrays."""

import dataclasses
from collections.abc import Hashable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from rtpo_jax.rollouts.buckets import power_of_two
from rtpo_jax.rollouts.templates import TokenIds


@dataclasses.dataclass(frozen=True)
class Turn:
    """One decision and what came of it."""

    state: Hashable  # environment state at the boundary, before the action
    context: TokenIds  # exactly what the policy was given
    action: TokenIds  # exactly what it sampled
    log_probs: np.ndarray  # [len(action)] under the policy that sampled it
    observation: str  # the environment's reply; "" at the end of the episode
    reward: float  # paid after the action
    policy_version: int  # optimiser steps behind the sampling policy


@dataclasses.dataclass(frozen=True)
class Episode:
    """An episode so far. Immutable, so a fork can never alias the trunk it came from."""

    task: Any
    group: int  # index of the task in its batch
    question: str
    state: Hashable  # environment state now
    turns: tuple[Turn, ...] = ()
    ended: bool = False
    boundary: int = -1  # id of the boundary state it was forked at; -1 = started afresh
    tree: int = -1  # episodes that were forked from one start share it; -1 = nobody asked

    def at_boundary(self, turn: int) -> "Episode":
        """The episode as it stood before `turn`: same prefix, same environment state."""
        if not self.realised(turn):
            raise ValueError(f"turn={turn}: this episode has {len(self.turns)} turns")
        return dataclasses.replace(
            self, turns=self.turns[:turn], state=self.turns[turn].state, ended=False
        )

    def realised(self, turn: int) -> bool:
        """Whether the episode acted at `turn`."""
        return 0 <= turn < len(self.turns)

    def generated_tokens(self) -> int:
        """Tokens that the policy sampled."""
        return sum(len(turn.action) for turn in self.turns)


@dataclasses.dataclass(frozen=True)
class EpisodeBatch:
    """Finished episodes with their per-turn arrays (M episodes, padded to a power of two; H turns).

    Padding entries have group and sibling id -1; the id counts are upper bounds (unused ids are
    empty groups), so that array functions see few shapes.
    """

    episodes: tuple[Episode, ...]
    horizon: int
    discount: float = 1.0
    weights: tuple[float, ...] | None = None  # exact measure of each episode; None = Monte Carlo

    @property
    def num_groups(self) -> int:
        """Upper bound on the number of task groups."""
        return power_of_two(1 + max((episode.group for episode in self.episodes), default=0))

    @property
    def num_boundaries(self) -> int:
        """Upper bound on the number of boundary states; 0 when no episode was forked."""
        return self._padded if any(e.boundary >= 0 for e in self.episodes) else 0

    @cached_property
    def rewards(self) -> np.ndarray:
        """[M, H] after each turn's action; 0 at turns that did not happen."""
        rewards = np.zeros((self._padded, self.horizon), self._dtype)
        for row, episode in enumerate(self.episodes):
            rewards[row, : len(episode.turns)] = [turn.reward for turn in episode.turns]
        return rewards

    @cached_property
    def discounts(self) -> np.ndarray:
        """[M, H] `discount` between two turns of an episode, 0 after its last one."""
        lasts = np.array([len(e.turns) - 1 for e in self.episodes] + [0] * self._padding)
        continues = np.arange(self.horizon)[None, :] < lasts[:, None]
        return np.where(continues, self.discount, 0.0).astype(self._dtype)

    @cached_property
    def group_ids(self) -> np.ndarray:
        """[M] index of the episode's task."""
        return self._ids([episode.group for episode in self.episodes])

    @cached_property
    def sibling_ids(self) -> np.ndarray:
        """[M] id of the boundary state the episode was forked at."""
        return self._ids([episode.boundary for episode in self.episodes])

    @cached_property
    def tree_ids(self) -> np.ndarray:
        """[M] episodes forked, at any depth, from one episode share its id."""
        return self._ids([episode.tree for episode in self.episodes])

    @cached_property
    def turn_mask(self) -> np.ndarray:
        """[M, H] bool, turns that happened."""
        return self.node_ids >= 0

    @cached_property
    def node_ids(self) -> np.ndarray:
        """[M, H] decisions, numbered: a turn that forks share is one; -1 = no turn."""
        return self._turn_ids(lambda _, turn: id(turn))

    @cached_property
    def state_ids(self) -> np.ndarray:
        """[M, H] states as the policy sees them, numbered: same task, same context; -1 = no turn."""
        return self._turn_ids(lambda episode, turn: (episode.group, turn.context))

    def joined(self, *others: "EpisodeBatch") -> "EpisodeBatch":
        """These and other episodes in one batch, compared by task; trees of others stay apart."""
        episodes = list(self.episodes)
        for other in others:
            shift = 1 + max((episode.tree for episode in episodes), default=-1)
            episodes += [dataclasses.replace(e, tree=e.tree + shift) for e in other.episodes]
        return self._leaves(episodes)

    def grown(self, branches: "EpisodeBatch") -> "EpisodeBatch":
        """These and continuations that were forked from them: the leaves of their trees."""
        return self._leaves([*self.episodes, *branches.episodes])

    def _leaves(self, episodes) -> "EpisodeBatch":
        leaves = tuple(dataclasses.replace(episode, boundary=-1) for episode in episodes)
        return dataclasses.replace(self, episodes=leaves)

    def _turn_ids(self, identity) -> np.ndarray:
        found, ids = {}, np.full((self._padded, self.horizon), -1, np.int32)
        for row, episode in enumerate(self.episodes):
            for column, turn in enumerate(episode.turns):
                name = identity(episode, turn)
                ids[row, column] = found.setdefault(name, len(found))
        return ids

    @cached_property
    def row_weights(self) -> np.ndarray | None:
        """[M] exact measure, or None for Monte-Carlo samples."""
        if self.weights is None:
            return None
        return np.array(self.weights + (0.0,) * self._padding, np.float64)

    @property
    def _padded(self) -> int:
        return power_of_two(len(self.episodes))

    @property
    def _padding(self) -> int:
        return self._padded - len(self.episodes)

    @property
    def _dtype(self):
        return np.float32 if self.weights is None else np.float64

    def _ids(self, ids: Sequence[int]) -> np.ndarray:
        return np.array(list(ids) + [-1] * self._padding, np.int32)
