"""Tree-GRPO: groups of leaves, advantages within a tree and across trees (Tree-GRPO, ICLR 2026).

`num_trees` episodes of a task are rolled out; in each of `expansions` rounds every tree gets
`branches` more leaves, each a fresh suffix from a turn of the tree drawn uniformly and with
replacement among the decisions it holds (the first included)::

    leaves per task = num_trees (1 + expansions * branches)
    A_leaf = (R - mean_tree) / (std_tree + 1e-6) + (R - mean_task) / (std_task + 1e-6)
    J      = grpo.py's, every leaf a trajectory: a shared prefix counts once per leaf

Differs from grpo.py in what is rolled out and in the sum of two advantages. Without expansions a tree
is a group of one, whose advantage is 0: `expansions=0` is GRPO with num_trees trajectories.

Deviations: all leaves are kept (the released code keeps a fixed number of each tree); the deviation
has `ddof`; no KL penalty by default. Leaves continue under the parameters of the rollout.
"""

import dataclasses

import jax
import numpy as np

from rtpo_jax import core
from rtpo_jax.algorithms.engine import Collected
from rtpo_jax.algorithms.flat import returns_to_go
from rtpo_jax.algorithms.grpo import GRPO
from rtpo_jax.algorithms.method import require, require_count


@dataclasses.dataclass(frozen=True, kw_only=True)
class TreeGRPO(GRPO):
    """Group-relative optimisation over trees; see the module docstring for the equations."""

    group_size: int = 4  # trees per task, M
    expansions: int = 1  # rounds of growth, L
    branches: int = 3  # new leaves of a tree in a round, N

    def __post_init__(self):
        super().__post_init__()
        require(self.context == "recorded", "context", self.context, "use 'recorded'")
        require_count("expansions", self.expansions, 0)
        require_count("branches", self.branches, 1)

    def collect(self, engine, policy, tasks, key):
        """Roll out the trees and grow them."""
        trunk_key, growth_key = jax.random.split(key)
        leaves = engine.rollout(policy, tasks, self.group_size, trunk_key)
        for round_ in range(self.expansions):
            draw_key, branch_key = jax.random.split(jax.random.fold_in(growth_key, round_))
            points = random_points(leaves, self.branches, draw_key)
            leaves = leaves.grown(engine.branch(policy, leaves, points, branch_key))
        return Collected(leaves)

    def advantages(self, trajectories):
        """[M] advantage of every leaf among its tree's leaves plus that among its task's."""
        returns, trees = returns_to_go(trajectories)[:, 0], trajectories.tree_ids
        within = core.group_relative(
            returns, trees, len(trees), scale=self.scale, ddof=self.ddof
        )  # fmt: skip
        return within + super().advantages(trajectories)


def random_points(leaves, count: int, key: jax.Array) -> list[tuple[int, int]]:
    """For every tree `count` of its decisions, as (leaf, turn), uniform and with replacement."""
    points = []
    for tree in np.unique(leaves.tree_ids[leaves.tree_ids >= 0]):
        members = np.flatnonzero(leaves.tree_ids == tree)
        nodes = leaves.node_ids[members]
        _, first = np.unique(nodes[nodes >= 0], return_index=True)
        places = np.argwhere(nodes >= 0)[first]
        drawn = jax.random.randint(jax.random.fold_in(key, int(tree)), (count,), 0, len(places))
        points += [(int(members[row]), int(turn)) for row, turn in places[np.asarray(drawn)]]
    return points
