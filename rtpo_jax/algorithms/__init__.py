"""One file per paper. A `Method` is a value that the stage loop reads; imports core only."""

from rtpo_jax.algorithms.grpo import GRPO
from rtpo_jax.algorithms.method import Collected, Engine, Method, Policy, Stage, Trajectories
from rtpo_jax.algorithms.rows import Batch, Rows, take_rows
from rtpo_jax.algorithms.rtpo import RTPO

__all__ = [
    "GRPO",
    "RTPO",
    "Batch",
    "Collected",
    "Engine",
    "Method",
    "Policy",
    "Rows",
    "Stage",
    "Trajectories",
    "take_rows",
]
