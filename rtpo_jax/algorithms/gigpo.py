"""GiGPO: groups in groups, actions compared that were taken in the same state (arXiv 2505.10978).

Trajectories as in grpo.py; turns of a task's trajectories that were given the same context form a
state group, whenever they happened. With the return G_ih from turn h on::

    A_ih = A_i + step_weight * (G_ih - mean of its state group) / (std + 1e-6)

A turn alone in its group gets 0 for the second term. State groups cost no extra generation: they are
RTPO's siblings, where they happen for free.

Differs from grpo.py in the second term alone. `step_scale=None` leaves out its deviation. Deviations
from the released code: A_i is compared over trajectories, there over their steps, so that long
episodes weigh more; no penalty for invalid actions, which is the environment's to give. The paper's
discount between turns, .95, is the engine's setting.
"""

import dataclasses
from typing import Literal

import numpy as np

from rtpo_jax import core
from rtpo_jax.algorithms.flat import returns_to_go
from rtpo_jax.algorithms.grpo import GRPO
from rtpo_jax.algorithms.method import require, require_one_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class GiGPO(GRPO):
    """Group-in-group policy optimisation; see the module docstring for the equations."""

    step_weight: float = 1.0  # of the advantage within a state group
    step_scale: Literal["group"] | None = "group"  # divide it by the group's std

    def __post_init__(self):
        super().__post_init__()
        require(0 <= self.step_weight < float("inf"), "step_weight", self.step_weight,
                "use a finite value of at least 0")  # fmt: skip
        require_one_of("step_scale", self.step_scale, ("group", None))

    def advantages(self, trajectories):
        """[M, H] advantage of every turn."""
        states = trajectories.state_ids
        steps = core.group_relative(
            returns_to_go(trajectories).ravel(), states.ravel(), states.size,
            scale=self.step_scale, ddof=self.ddof,
        )  # fmt: skip
        whole = np.asarray(super().advantages(trajectories))
        return whole[:, None] + self.step_weight * np.asarray(steps).reshape(states.shape)
