"""REINFORCE and RLOO on multi-turn episodes: the score-function gradient, without clipping.

For G trajectories of a task with returns R_i::

    J = mean_i sum_t r_it A_i,   A_i = R_i - b_i
    baseline "leave_one_out"   b_i = mean of the other G - 1 returns of the task      (RLOO)
    baseline "batch"           b_i = mean over the batch, A over its standard deviation
                               (REINFORCE++)
    baseline "none"            b_i = 0                                                (REINFORCE)

r is the ratio of `ratio`, 1 before the first step, where the gradient of J is the sum over tokens of
A_i times the gradient of their log-probability. With more than one epoch or minibatch the data are
off-policy, and `ratio="trajectory", ratio_mean=False` makes J an importance-weighted estimate.

Differs from grpo.py: no clip, no division by a group's deviation, and tokens are summed, not
averaged, within a trajectory, as the gradient of the expected return asks for. The sums are divided
by a constant, `tokens`, that every trajectory shares (Dr. GRPO's normaliser).
"""

import dataclasses
from typing import Literal

import numpy as np

from rtpo_jax import core
from rtpo_jax.algorithms.flat import Flat, returns_to_go
from rtpo_jax.algorithms.method import require_count, require_one_of, trajectory_sum_weights


@dataclasses.dataclass(frozen=True, kw_only=True)
class REINFORCE(Flat):
    """Score-function gradient; see the module docstring for the equations."""

    baseline: Literal["leave_one_out", "batch", "none"] = "leave_one_out"
    tokens: int = 64  # constant that the sum over a trajectory's tokens is divided by

    def __post_init__(self):
        super().__post_init__()
        require_one_of("baseline", self.baseline, ("leave_one_out", "batch", "none"))
        require_count("group_size", self.group_size, 2 if self.baseline == "leave_one_out" else 1)
        require_count("tokens", self.tokens, 1)

    def advantages(self, trajectories):
        """[M] return of every trajectory minus its baseline."""
        returns, groups = returns_to_go(trajectories)[:, 0], trajectories.group_ids
        if self.baseline == "leave_one_out":
            return core.leave_one_out(returns, groups, trajectories.num_groups)
        if self.baseline == "batch":
            return core.whiten(returns, np.asarray(groups) >= 0)
        return returns

    def weights(self, rows, num_trajectories):
        """[N, T] mean over trajectories of the sum over tokens, over the constant."""
        del num_trajectories
        return trajectory_sum_weights(rows) / self.tokens

    def surrogate(self, ratios, advantages):
        """r A, never clipped."""
        return core.importance_weighted(ratios, advantages)
