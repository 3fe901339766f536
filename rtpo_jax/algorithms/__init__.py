"""One file per paper. A `Method` is a value that the stage loop reads; imports core only."""

from rtpo_jax.algorithms.engine import Collected, Engine, Policy, Trajectories
from rtpo_jax.algorithms.flat import Flat, returns_to_go
from rtpo_jax.algorithms.gigpo import GiGPO
from rtpo_jax.algorithms.grpo import GRPO
from rtpo_jax.algorithms.gspo import GSPO
from rtpo_jax.algorithms.method import Method, Stage
from rtpo_jax.algorithms.objective import Objective
from rtpo_jax.algorithms.refuel import REFUEL
from rtpo_jax.algorithms.reinforce import REINFORCE
from rtpo_jax.algorithms.rows import Batch, Rows, Scores, take_rows
from rtpo_jax.algorithms.rtpo import RTPO
from rtpo_jax.algorithms.seeupo import SeeUPO
from rtpo_jax.algorithms.sorl import SOGRPO
from rtpo_jax.algorithms.tree_grpo import TreeGRPO
from rtpo_jax.algorithms.vineppo import VinePPO

__all__ = [
    "GRPO",
    "GSPO",
    "REFUEL",
    "REINFORCE",
    "RTPO",
    "SOGRPO",
    "Batch",
    "Collected",
    "Engine",
    "Flat",
    "GiGPO",
    "Method",
    "Objective",
    "Policy",
    "Rows",
    "Scores",
    "SeeUPO",
    "Stage",
    "Trajectories",
    "TreeGRPO",
    "VinePPO",
    "returns_to_go",
    "take_rows",
]
