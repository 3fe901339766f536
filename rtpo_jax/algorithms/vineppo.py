"""VinePPO: values of boundary states by Monte-Carlo rollouts from them (arXiv 2410.01679).

For every boundary S_k of a trajectory, `rollouts` fresh continuations under the rollout policy::

    V_k = mean of their returns,  V = 0 behind the last turn
    A_k = r_k + gamma V_{k+1} - V_k             the same for every token of turn k, then whitened
    J   = mean over the batch's tokens of min(r A, clip(r, 1 - low, 1 + high) A)

Unbiased for any policy and independent of the trajectory's own return, at `rollouts` continuations
for every turn, which are not trained on. Differs from grpo.py in the advantage. Deviations: a
boundary is a turn, in the paper a step of reasoning; no KL penalty by default.
"""

import dataclasses

import jax
import numpy as np

from rtpo_jax import core
from rtpo_jax.algorithms.engine import Collected
from rtpo_jax.algorithms.flat import Flat, returns_to_go
from rtpo_jax.algorithms.method import require_count, to_action_tokens
from rtpo_jax.algorithms.rows import Batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class VinePPO(Flat):
    """Proximal updates with Monte-Carlo values; see the module docstring for the equations."""

    rollouts: int = 9  # continuations a boundary, K'
    whiten: bool = True  # advantages over the batch's tokens

    def __post_init__(self):
        super().__post_init__()
        require_count("rollouts", self.rollouts, 1)

    def collect(self, engine, policy, tasks, key):
        """Trajectories, and for each turn the continuations from its boundaries."""
        trunk_key, value_key = jax.random.split(key)
        trunks = engine.rollout(policy, tasks, self.group_size, trunk_key)
        others = [
            engine.continue_from(policy, trunks, turn, self.rollouts, value_key)
            for turn in range(engine.num_turns)
        ]
        return Collected(trunks, others=tuple(others))

    def batch(self, engine, policy, collected, stage, key, carry):
        """Rows of the trajectories' turns with the difference of values as advantage."""
        del policy, key, carry
        trunks = collected.trunks
        values = self.values(collected)
        rows = engine.rows(trunks, self.context, stage.turns)
        steps = trunks.rewards + trunks.discounts * values[:, 1:] - values[:, :-1]
        advantages = to_action_tokens(steps, rows)
        if self.whiten:
            advantages = np.asarray(core.whiten(advantages, rows.action_mask))
        weights = core.token_mean_weights(rows.action_mask, row_weights=rows.row_weights)
        return Batch(rows, advantages, weights)

    def values(self, collected):
        """[M, H + 1] mean return of the continuations from each boundary; 0 where there is none."""
        mask = collected.trunks.turn_mask
        values = np.zeros((mask.shape[0], mask.shape[1] + 1))
        for turn, found in enumerate(collected.others):
            ids = found.sibling_ids
            sums = np.bincount(ids[ids >= 0], returns_to_go(found)[ids >= 0, turn])
            values[mask[:, turn], turn] = sums / self.rollouts
        return values
