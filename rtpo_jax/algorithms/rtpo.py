"""RTPO, Reverse-Turn Policy Optimization (arXiv 2608.18682), Algorithm 1.

Once per iteration, with parameters theta_0 (phase 1), trunks are rolled out and every boundary state
S_k they pass is kept. Then turns are trained in reverse order, k = K-1 ... 0 (phase 2). Stage k, with
the parameters theta_{>k} left by the stages before it:

1. at each realised boundary S_k fork n = G - 1 siblings: each acts afresh from the recorded context
   c_k and continues on-policy, with theta_{>k}, to the end of the episode; its return is R_j (Eq. 7);
2. state-matched advantage (section 3.2): A_j = R_j - mean over the n siblings, self included, no
   standard deviation; the trunk is an anchor only and takes no part;
3. maximise Eq. 6 over turn-k tokens of siblings alone, r against theta_{>k}, frozen for the stage::

    J_k = mean_boundaries (1 / n) sum_j (1 / T_jk) sum_t min(r_jt A_j, clip(r_jt, 1 +- eps) A_j)

The context a turn was sampled with is the context it is trained with (Eq. 5), so r = 1 before the
first update of a stage. Turn k is "frozen" afterwards only in the sense that later stages put no
weight on its tokens; with shared parameters it still moves (the paper's appendix G.9).

`continuation="stale"` is the paper's off-policy ablation (Eqs. 105, 109, 110): siblings of all
boundaries are sampled once with theta_0, and the downstream part of a return is reweighted by
omega = clamp(prod_{h>k} pi_{theta_>k} / pi_{theta_0}, *stale_weight_range). The ratio of turn k is then
against theta_0 too, and not 1 before the first update.

Variants that the paper does not have, off by default. They are what the exact variance of the group
gradient asks for at equal generated tokens (`experiments.regimes`); the first two together are
`RTPO.economical()`:

* `trunk_in_group`: the trunk, which is paid for, is a member of the group at each of its boundaries,
  and its turn k is trained as well. It went on with theta_0, so after the first stage its return is one
  of an older policy: a constant in the siblings' baseline, and off-policy in its own row;
* `tails`: all turns of a sibling from k on are trained, with its advantage, not turn k alone: the
  group is GRPO restarted at S_k;
* `last_turns`: only so many last turns have a stage, for tasks that are decided late;
* `baseline="leave_one_out"`: over the other members, unbiased instead of (n - 1) / n of the advantage.

Choices that the paper leaves open, as fields: clip range 0.2, one epoch and one minibatch per stage,
`stale_weight_range` (the paper gives no bounds), `num_trunks` per task (the paper: 4 math, 2 search).
Deviations: no KL term (Eq. 6 and Algorithm 1 have none, although a coefficient is listed).
"""

import dataclasses
from typing import Literal

import jax
import numpy as np

from rtpo_jax import core
from rtpo_jax.algorithms.engine import Collected
from rtpo_jax.algorithms.method import (
    Method,
    Stage,
    require,
    require_count,
    require_one_of,
    to_action_tokens,
)
from rtpo_jax.algorithms.rows import Batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class RTPO(Method):
    """Reverse-turn policy optimisation; see the module docstring for the equations."""

    group_size: int = 3  # G; a boundary gets n = G - 1 siblings
    num_trunks: int = 1  # trunks per task
    continuation: Literal["fresh", "stale"] = "fresh"  # who samples the siblings: theta_>k, theta_0
    stale_weight_range: tuple[float, float] = (0.1, 10.0)  # clamp of omega; stale only
    trunk_in_group: bool = False  # the trunk is compared with its siblings, and trained
    tails: bool = False  # train all turns of a sibling from the stage's turn on
    last_turns: int | None = None  # stages for so many last turns only; None = all
    baseline: Literal["mean", "leave_one_out"] = "mean"  # of the group: all members, or the others

    def __post_init__(self):
        super().__post_init__()
        require_count("group_size", self.group_size, 3)  # n = G - 1 siblings to compare
        require_one_of("continuation", self.continuation, ("fresh", "stale"))
        require_one_of("baseline", self.baseline, ("mean", "leave_one_out"))
        if self.last_turns is not None:
            require_count("last_turns", self.last_turns, 1)
        require(not self.trunk_in_group or self.continuation == "fresh", "trunk_in_group",
                True, "use continuation='fresh' with it")  # fmt: skip
        require_count("num_trunks", self.num_trunks, 1)
        low, high = self.stale_weight_range
        require(0 <= low <= high, "stale_weight_range", (low, high), "use 0 <= low <= high")
        object.__setattr__(self, "stale_weight_range", (float(low), float(high)))  # hashable

    @classmethod
    def economical(cls, **changes) -> "RTPO":
        """Trunk in the group and tails trained, with `changes` to the other fields."""
        return cls(**({"trunk_in_group": True, "tails": True} | changes))

    def collect(self, engine, policy, tasks, key):
        """Phase 1: trunks from theta_0, whose boundary states are the anchors."""
        trunk_key, sibling_key = jax.random.split(key)
        trunks = engine.rollout(policy, tasks, self.num_trunks, trunk_key)
        if self.continuation == "fresh":
            return Collected(trunks)
        stale = [
            engine.continue_from(policy, trunks, turn, self.group_size - 1, sibling_key)
            for turn in range(engine.num_turns)
        ]
        return Collected(trunks, others=tuple(stale))

    def stages(self, num_turns, key):
        """Phase 2: last turn first."""
        del key
        first = 0 if self.last_turns is None else max(num_turns - self.last_turns, 0)
        return tuple(Stage(turns=(turn,)) for turn in reversed(range(first, num_turns)))

    def batch(self, engine, policy, collected, stage, key, carry):
        """Siblings of the stage's boundaries: turn-k tokens, state-matched advantages, Eq. 6."""
        del carry
        (turn,) = stage.turns
        if self.continuation == "fresh":
            siblings = engine.continue_from(
                policy, collected.trunks, turn, self.group_size - 1, key,
                include_trunks=self.trunk_in_group,
            )  # fmt: skip
            returns = core.discounted_returns(siblings.rewards, siblings.discounts)[:, turn]
        else:
            siblings = collected.others[turn]
            returns = self._reweighted_returns(engine, policy, siblings, turn)
        if not siblings.num_boundaries:
            return None  # no trunk reached this turn
        compare = core.sibling_relative if self.baseline == "mean" else core.leave_one_out
        advantages = compare(returns, siblings.sibling_ids, siblings.num_boundaries)
        rows = engine.rows(
            siblings, "recorded", range(turn, engine.num_turns) if self.tails else (turn,)
        )
        weights = core.trajectory_mean_weights(
            rows.action_mask, rows.trajectory_ids, len(returns), row_weights=rows.row_weights
        )
        return Batch(rows, to_action_tokens(advantages, rows), weights)

    def _reweighted_returns(self, engine, policy, siblings, turn):
        """Eq. 109: r_k + gamma * omega * (return from turn k + 1 on), omega under `policy`."""
        returns = np.asarray(core.discounted_returns(siblings.rewards, siblings.discounts))
        if turn + 1 == engine.num_turns:
            return returns[:, turn]
        rows = engine.rows(siblings, "recorded", range(turn + 1, engine.num_turns))
        log_probs = engine.score(policy, rows).log_probs
        log_ratios = core.token_log_ratios(log_probs, rows.behavior_log_probs, rows.action_mask)
        per_row = np.asarray(core.trajectory_log_ratios(log_ratios, rows.action_mask, mean=False))
        total = np.zeros(len(returns))
        real = rows.trajectory_ids >= 0
        np.add.at(total, rows.trajectory_ids[real], per_row[real])
        # float64 holds exp(700), so only the stated range bounds omega.
        omega = np.clip(np.exp(np.minimum(total, 700.0)), *self.stale_weight_range)
        downstream = siblings.discounts[:, turn] * returns[:, turn + 1]
        return siblings.rewards[:, turn] + omega * downstream
