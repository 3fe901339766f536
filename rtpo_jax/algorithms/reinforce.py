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

import jax.numpy as jnp

from rtpo_jax import core
from rtpo_jax.algorithms.method import (
    Collected,
    Method,
    require_count,
    require_one_of,
    to_action_tokens,
    trajectory_sum_weights,
)
from rtpo_jax.algorithms.rows import Batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class REINFORCE(Method):
    """Score-function gradient; see the module docstring for the equations."""

    group_size: int = 8  # trajectories per task, G
    baseline: Literal["leave_one_out", "batch", "none"] = "leave_one_out"
    tokens: int = 64  # constant that the sum over a trajectory's tokens is divided by

    def __post_init__(self):
        super().__post_init__()
        require_count("group_size", self.group_size, 2 if self.baseline == "leave_one_out" else 1)
        require_count("tokens", self.tokens, 1)
        require_one_of("baseline", self.baseline, ("leave_one_out", "batch", "none"))

    def collect(self, engine, policy, tasks, key):
        """Roll out `group_size` trajectories of every task."""
        return Collected(engine.rollout(policy, tasks, self.group_size, key))

    def batch(self, engine, policy, collected, stage, key, carry):
        """Rows of all turns, every token with its trajectory's return minus the baseline."""
        del policy, key, carry
        trunks = collected.trunks
        returns = core.discounted_returns(trunks.rewards, trunks.discounts)[:, 0]
        rows = engine.rows(trunks, "recorded", stage.turns)
        advantages = to_action_tokens(self.advantages(returns, trunks), rows)
        return Batch(rows, advantages, trajectory_sum_weights(rows) / self.tokens)

    def advantages(self, returns, trunks):
        """[M] return of every trajectory minus its baseline."""
        if self.baseline == "leave_one_out":
            return core.leave_one_out(returns, trunks.group_ids, trunks.num_groups)
        if self.baseline == "batch":
            return core.whiten(returns, jnp.asarray(trunks.group_ids) >= 0)
        return returns

    def surrogate(self, ratios, advantages):
        """r A, never clipped."""
        return core.importance_weighted(ratios, advantages)
