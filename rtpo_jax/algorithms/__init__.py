"""One file per paper. A `Method` is a value that the stage loop reads; imports core only."""

from rtpo_jax.algorithms.grpo import GRPO
from rtpo_jax.algorithms.gspo import GSPO
from rtpo_jax.algorithms.method import Collected, Engine, Method, Policy, Stage, Trajectories
from rtpo_jax.algorithms.objective import Objective
from rtpo_jax.algorithms.reinforce import REINFORCE
from rtpo_jax.algorithms.rows import Batch, Rows, take_rows
from rtpo_jax.algorithms.rtpo import RTPO
from rtpo_jax.algorithms.seeupo import SeeUPO
from rtpo_jax.algorithms.sorl import SOGRPO

__all__ = [
    "GRPO",
    "GSPO",
    "REINFORCE",
    "RTPO",
    "SOGRPO",
    "Batch",
    "Collected",
    "Engine",
    "Method",
    "Objective",
    "Policy",
    "Rows",
    "SeeUPO",
    "Stage",
    "Trajectories",
    "take_rows",
]
