"""What flat methods share: groups of whole trajectories of a task, all turns in one batch.

A method that differs from another in its advantages or its measure says only that: it overrides
`advantages` (of a trajectory, or of each of its turns) or `weights`.
"""

import dataclasses

import numpy as np

from rtpo_jax import core
from rtpo_jax.algorithms.engine import Collected, Context, Trajectories
from rtpo_jax.algorithms.method import (
    Method,
    require_count,
    require_one_of,
    to_action_tokens,
)
from rtpo_jax.algorithms.rows import Batch, Rows


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flat(Method):
    """`group_size` trajectories per task; each token has the advantage of its trajectory or turn."""

    group_size: int = 8  # trajectories per task, G
    context: Context = "recorded"  # what the training pass is conditioned on

    def __post_init__(self):
        super().__post_init__()
        require_count("group_size", self.group_size, 1)
        require_one_of("context", self.context, ("recorded", "full_history"))

    def collect(self, engine, policy, tasks, key):
        """Roll out `group_size` trajectories of every task."""
        return Collected(engine.rollout(policy, tasks, self.group_size, key))

    def batch(self, engine, policy, collected, stage, key, carry):
        """Rows of the stage's turns of all trajectories; None when no trajectory has them."""
        del policy, key, carry
        rows = engine.rows(collected.trunks, self.context, stage.turns)
        if not rows.action_mask.any():
            return None
        advantages = to_action_tokens(self.advantages(collected.trunks), rows)
        return Batch(rows, advantages, self.weights(rows, len(collected.trunks.group_ids)))

    def advantages(self, trajectories: Trajectories) -> np.ndarray:
        """[M] of every trajectory, or [M, H] of every turn."""
        raise NotImplementedError(f"{type(self).__name__} has to define advantages()")

    def weights(self, rows: Rows, num_trajectories: int) -> np.ndarray:
        """[N, T] mean over a trajectory's tokens, then over trajectories."""
        return core.trajectory_mean_weights(
            rows.action_mask, rows.trajectory_ids, num_trajectories, row_weights=rows.row_weights
        )


def returns_to_go(trajectories: Trajectories) -> np.ndarray:
    """[M, H] discounted return from each turn on."""
    return np.asarray(core.discounted_returns(trajectories.rewards, trajectories.discounts))
