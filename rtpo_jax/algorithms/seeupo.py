"""SeeUPO: turns as agents, updated one after the other with a compound ratio (arXiv 2602.06554).

Chains of the policy pi_k at the start of the iteration; for turns t in `order` (the paper: last to
first), with A_i the group-relative advantage of chain i and M_i = A_i at first (Eqs. 5-8)::

    J_t = mean over chains that have turn t of  min(r_it M_i, clip(r_it, 1 - low, 1 + high) M_i)
    r_it = exp((1 / |a_it|) sum of the turn's token log-ratios to pi_k)
    M_i <- M_i * compound(turn t under the policy after its update, over pi_k)

The compound ratio corrects for what has been updated: with the product of token ratios and separate
parameters E[r_t M] is the expected advantage of the joint new policy (checked exactly in
`experiments.update_order_tabular`). Chains without turn t take no part in its stage, and their M does
not change: there are no placeholders.

Differs from grpo.py: stages of one turn, the ratio of a turn, the carried M, one row per turn always.
Choices the paper and its released code leave or disagree on are fields; `released_code()` is the code's
form: geometric mean, factor and product both clamped to [.8, 1.2], the denominator refreshed before
every stage, and advantages standardised and clamped over the chains of each stage. Deviation from the
code: the last real turn is not duplicated in place of missing ones.
"""

import dataclasses
from typing import Literal

import jax
import numpy as np

from rtpo_jax import core
from rtpo_jax.algorithms.engine import Collected
from rtpo_jax.algorithms.method import (
    Level,
    Method,
    Stage,
    require,
    require_count,
    require_one_of,
    to_action_tokens,
)
from rtpo_jax.algorithms.rows import Batch

CLAMP = (0.8, 1.2)  # of the released code's compound ratio
POOL_LIMIT = 3.0  # of the released code's standardised advantages


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeeUPO(Method):
    """Sequence-level sequential update policy optimisation; see the module docstring."""

    ratio: Level = "turn"
    group_size: int = 8  # chains per task, G
    order: Literal["reverse", "natural", "random"] = "reverse"  # of the turns' updates
    sequential_turns: int | None = None  # only so many last turns one by one; None = all
    compound: Literal["product", "mean", "clamped", "none"] = "product"  # of token ratios
    denominator: Literal["start", "current"] = "start"  # of ratios: pi_k, or before the stage
    scale: Literal["group", "batch", "pool"] | None = "batch"  # std that advantages are divided by

    def __post_init__(self):
        super().__post_init__()
        require_count("group_size", self.group_size, 2)
        require_one_of("order", self.order, ("reverse", "natural", "random"))
        require_one_of("compound", self.compound, ("product", "mean", "clamped", "none"))
        require_one_of("denominator", self.denominator, ("start", "current"))
        require_one_of("scale", self.scale, ("group", "batch", "pool", None))
        if self.sequential_turns is not None:
            require_count("sequential_turns", self.sequential_turns, 1)
            require(self.order == "reverse", "order", self.order,
                    "use 'reverse' with sequential_turns, which are the last ones")  # fmt: skip

    @classmethod
    def released_code(cls, **changes) -> "SeeUPO":
        """The form of the released code, with `changes` to its fields."""
        form = {"compound": "clamped", "denominator": "current", "scale": "pool"}
        return cls(**(form | changes))

    def collect(self, engine, policy, tasks, key):
        """Roll out `group_size` chains of every task."""
        return Collected(engine.rollout(policy, tasks, self.group_size, key))

    def stages(self, num_turns, key):
        """One turn a stage, in `order`; turns before the sequential ones together, last of all."""
        if self.order == "random":
            return tuple(Stage((int(turn),)) for turn in jax.random.permutation(key, num_turns))
        turns = range(num_turns) if self.order == "natural" else reversed(range(num_turns))
        single = num_turns if self.sequential_turns is None else self.sequential_turns
        turns, rest = list(turns)[:single], tuple(range(num_turns - single))
        return tuple(Stage((turn,)) for turn in turns) + ((Stage(rest),) if rest else ())

    def batch(self, engine, policy, collected, stage, key, carry):
        """Rows of the stage's turns; each token has its chain's advantage times its compound ratio."""
        del key
        trunks = collected.trunks
        rows = engine.rows(trunks, "recorded", stage.turns)
        if not rows.action_mask.any():
            return None  # no chain has these turns
        if self.denominator == "current":
            scores = engine.score(policy, rows)
            rows = dataclasses.replace(rows, behavior_log_probs=scores.log_probs)
        compound = np.ones(len(trunks.group_ids))
        if carry is not None:
            compound[: len(carry)] = carry
        advantages = self.advantages(trunks, rows) * compound
        weights = core.sequence_mean_weights(rows.action_mask, row_weights=rows.row_weights)
        return Batch(rows, to_action_tokens(advantages, rows), weights)

    def advantages(self, trunks, rows):
        """[M] group-relative advantage of every chain; with scale="pool" over the rows' chains."""
        returns = core.discounted_returns(trunks.rewards, trunks.discounts)[:, 0]
        scale = None if self.scale == "pool" else self.scale
        found = core.group_relative(returns, trunks.group_ids, trunks.num_groups, scale=scale)
        if self.scale != "pool":
            return np.asarray(found)
        real = rows.trajectory_ids[rows.trajectory_ids >= 0]
        pool = np.isin(np.arange(len(returns)), real)
        return np.clip(core.whiten(found, pool), -POOL_LIMIT, POOL_LIMIT)

    def carry(self, engine, policy, batch, carry):
        """Compound ratios by chain, those of the stage's turns multiplied in; 1 for all others."""
        if self.compound == "none":
            return None
        rows = batch.rows
        log_probs = engine.score(policy, rows).log_probs
        moved = core.token_log_ratios(log_probs, rows.behavior_log_probs, rows.action_mask)
        moved = core.trajectory_log_ratios(
            moved, rows.action_mask, mean=self.compound != "product",
            trajectory_ids=rows.trajectory_ids,
        )  # fmt: skip
        factors = np.asarray(core.ratios(moved, limit=self.log_ratio_limit))
        real = rows.trajectory_ids >= 0
        ids, first = np.unique(rows.trajectory_ids[real], return_index=True)
        factors = factors[real][first]
        found = np.ones(max(ids.max() + 1, 0 if carry is None else len(carry)))
        if carry is not None:
            found[: len(carry)] = carry
        if self.compound == "clamped":
            found[ids] = np.clip(found[ids] * np.clip(factors, *CLAMP), *CLAMP)
        else:
            found[ids] *= factors
        return found
