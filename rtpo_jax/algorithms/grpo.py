"""GRPO on multi-turn episodes: one group of whole trajectories per task, one stage for all turns.

For G trajectories of a task with returns R_i (group-relative advantage, GRPO paper; the flat
baseline of RTPO, Eqs. 1 and 9)::

    A_i = (R_i - mean_j R_j) / (std_j R_j + 1e-6)              the same for every token of i
    J   = mean_i (1 / T_i) sum_t min(r_it A_i, clip(r_it, 1 - low, 1 + high) A_i)
    r_it = pi(a_it | context) / pi_behaviour(a_it | recorded context)

T_i counts the tokens that the policy chose in all turns of trajectory i. `context` says what the
numerator is conditioned on:

* "recorded": the context each turn was sampled with, one row per turn. The ratio before the first
  update is 1.
* "full_history": the flattened history of the episode, one row per trajectory, although the turns
  were sampled under a managed context. This is what flattened implementations do and what RTPO,
  section 2, diagnoses: numerator and denominator are different conditionals.

Deviations from the GRPO paper: no KL penalty to a reference policy. `scale=None` gives the
unnormalised advantage of Dr. GRPO and RTPO's flat baseline.
"""

import dataclasses
from typing import Literal

from rtpo_jax import core
from rtpo_jax.algorithms.method import (
    Collected,
    Context,
    Method,
    require_count,
    require_one_of,
    to_action_tokens,
)
from rtpo_jax.algorithms.rows import Batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class GRPO(Method):
    """Group relative policy optimisation; see the module docstring for the equations."""

    group_size: int = 8  # trajectories per task, G
    context: Context = "recorded"  # what the training pass is conditioned on
    scale: Literal["group", "batch"] | None = "group"  # divide advantages by this std
    ddof: int = 1  # of that standard deviation

    def __post_init__(self):
        super().__post_init__()
        require_count("group_size", self.group_size, 2)
        require_one_of("context", self.context, ("recorded", "full_history"))
        require_one_of("scale", self.scale, ("group", "batch", None))
        require_one_of("ddof", self.ddof, (0, 1))

    def collect(self, engine, policy, tasks, key):
        """Roll out `group_size` trajectories of every task."""
        return Collected(engine.rollout(policy, tasks, self.group_size, key))

    def batch(self, engine, policy, collected, stage, key, carry):
        """Rows of all turns, each token with its trajectory's group-relative advantage."""
        del policy, key, carry
        trunks = collected.trunks
        returns = core.discounted_returns(trunks.rewards, trunks.discounts)[:, 0]
        advantages = core.group_relative(
            returns, trunks.group_ids, trunks.num_groups, scale=self.scale, ddof=self.ddof
        )
        rows = engine.rows(trunks, self.context, stage.turns)
        weights = core.trajectory_mean_weights(
            rows.action_mask, rows.trajectory_ids, len(returns), row_weights=rows.row_weights
        )
        return Batch(rows, to_action_tokens(advantages, rows), weights)
