"""GSPO on multi-turn episodes: one ratio per trajectory, clipped as a whole (arXiv 2507.18071).

For trajectory i with tokens y_i in all its turns::

    s_i = exp((1 / |y_i|) sum_t log [pi(y_it | context) / pi_behaviour(y_it | context)])
    J   = mean_i min(s_i A_i, clip(s_i, 1 - low, 1 + high) A_i)

Differs from grpo.py in the level of the ratio, and in the clip range: a geometric mean over a
trajectory moves far less than a token's ratio, hence 3e-4 and 4e-4. The paper's epochs have four
minibatches.

`ratio_mean=False` is the product of all token ratios, the importance ratio of the trajectory. On
recorded contexts the turns of a trajectory stand in several rows; they go through one micro-batch.
"""

import dataclasses

from rtpo_jax.algorithms.grpo import GRPO
from rtpo_jax.algorithms.method import Level


@dataclasses.dataclass(frozen=True, kw_only=True)
class GSPO(GRPO):
    """Group sequence policy optimisation; see the module docstring for the equations."""

    ratio: Level = "trajectory"
    clip_low: float = 3e-4
    clip_high: float = 4e-4
    num_minibatches: int = 4
