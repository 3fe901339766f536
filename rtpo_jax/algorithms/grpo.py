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

`measure` replaces the mean over i and t: "token" is the mean over all tokens of the batch (DAPO),
"constant" the mean over i of the sum over t divided by `tokens` (Dr. GRPO). `scale=None` gives the
unnormalised advantage of Dr. GRPO and RTPO's flat baseline.

Deviation from the GRPO paper: the KL penalty (`kl_coefficient`) is off by default. With exact
`row_weights` the token measure weighs each token by its trajectory's probability.
"""

import dataclasses
from typing import Literal

from rtpo_jax import core
from rtpo_jax.algorithms.flat import Flat, returns_to_go
from rtpo_jax.algorithms.method import (
    require_count,
    require_one_of,
    trajectory_sum_weights,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GRPO(Flat):
    """Group relative policy optimisation; see the module docstring for the equations."""

    scale: Literal["group", "batch"] | None = "group"  # divide advantages by this std
    ddof: int = 1  # of that standard deviation
    measure: Literal["trajectory", "token", "constant"] = "trajectory"  # mean over what
    tokens: int = 64  # constant that a trajectory's sum is divided by; measure="constant" only

    def __post_init__(self):
        super().__post_init__()
        require_count("group_size", self.group_size, 2)
        require_one_of("scale", self.scale, ("group", "batch", None))
        require_one_of("ddof", self.ddof, (0, 1))
        require_one_of("measure", self.measure, ("trajectory", "token", "constant"))
        require_count("tokens", self.tokens, 1)

    @classmethod
    def dr_grpo(cls, **changes) -> "GRPO":
        """Dr. GRPO (arXiv 2503.20783): no deviation, sums over a constant."""
        return cls(**({"scale": None, "measure": "constant"} | changes))

    def advantages(self, trajectories):
        """[M] group-relative return of every trajectory."""
        return core.group_relative(
            returns_to_go(trajectories)[:, 0], trajectories.group_ids, trajectories.num_groups,
            scale=self.scale, ddof=self.ddof,
        )  # fmt: skip

    def weights(self, rows, num_trajectories):
        """[N, T] the measure that the module docstring names."""
        if self.measure == "trajectory":
            return super().weights(rows, num_trajectories)
        if self.measure == "constant":
            return trajectory_sum_weights(rows) / self.tokens
        return core.token_mean_weights(rows.action_mask, row_weights=rows.row_weights)
