"""REFUEL: regress differences of log-ratios on differences of returns (arXiv 2410.04612).

At a boundary S_k of a trunk two siblings y, y' are forked, act at turn k and go on under the policy
pi_old of the moment to the end; R and R' are their returns from k on::

    d = log [pi(y) / pi_old(y)] - log [pi(y') / pi_old(y')]      sums over the tokens of turn k
    J = - mean over pairs of (d - eta (R - R'))^2                              (to maximise)

For separate logits J is largest where log pi = log pi_old + eta Q + constant: a mirror step. At
pi_old its gradient is 2 eta (R - R') (grad log pi(y) - grad log pi(y')), that of RTPO with two
siblings but for the token mean: REFUEL in reverse order is the control for RTPO.

`order="random"`: each trunk is forked at one of its turns, drawn uniformly, in one stage (the
paper); "reverse": at every turn, stage by stage, last turn first, each with the parameters the
stages before left, as in rtpo.py.

Differs from grpo.py: pairs of siblings, of which one turn is trained, and a squared loss: no ratio is
clipped (`clip_fraction` counts tokens that a clip would reach), and rows without advantage are trained,
too. Deviations: returns are not standardised; the paper writes 1 / eta on d instead.
"""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from rtpo_jax import core
from rtpo_jax.algorithms.engine import Collected
from rtpo_jax.algorithms.flat import returns_to_go
from rtpo_jax.algorithms.method import (
    Method,
    Stage,
    require,
    require_count,
    require_one_of,
    to_action_tokens,
)
from rtpo_jax.algorithms.rows import Batch, only_rows


@dataclasses.dataclass(frozen=True, kw_only=True)
class REFUEL(Method):
    """Regression of relative future returns; see the module docstring for the equations."""

    eta: float = 1.0  # log-ratio per unit of return
    order: Literal["random", "reverse"] = "random"  # one random turn a trunk, or all from the last
    num_trunks: int = 1  # trunks per task

    def __post_init__(self):
        super().__post_init__()
        require(0 < self.eta < float("inf"), "eta", self.eta, "use a finite value above 0")
        require_one_of("order", self.order, ("random", "reverse"))
        require_count("num_trunks", self.num_trunks, 1)
        require(self.importance is None, "importance", self.importance,
                "use None: both siblings are sampled by the policy of the moment")  # fmt: skip

    def collect(self, engine, policy, tasks, key):
        """Trunks, whose boundary states are the anchors."""
        return Collected(engine.rollout(policy, tasks, self.num_trunks, key))

    def stages(self, num_turns, key):
        """One stage of drawn turns, or one a turn, last turn first."""
        del key
        if self.order == "random":
            return (Stage(),)
        return tuple(Stage((turn,)) for turn in reversed(range(num_turns)))

    def batch(self, engine, policy, collected, stage, key, carry):
        """Both siblings' rows of the turn they were forked at; None if no trunk reached it."""
        del carry
        turn_key, branch_key = jax.random.split(key)
        trunks = collected.trunks
        forks = _drawn_turns(trunks.turn_mask, stage.turns, turn_key)
        if not forks:
            return None
        points = [point for point in forks for _ in range(2)]
        siblings = engine.branch(policy, trunks, points, branch_key)
        forked = np.zeros(len(siblings.group_ids), np.int32)
        forked[: len(points)] = [turn for _, turn in points]
        returns = returns_to_go(siblings)[np.arange(len(forked)), forked]
        advantages = core.sibling_relative(returns, siblings.sibling_ids, siblings.num_boundaries)
        rows = engine.rows(siblings, "recorded", sorted(set(forked.tolist())))
        rows = only_rows(rows, rows.turn_ids[:, 0] == forked[rows.trajectory_ids])
        weights = core.sequence_mean_weights(rows.action_mask, row_weights=rows.row_weights)
        return Batch(rows, to_action_tokens(advantages, rows), weights)

    def terms(self, scores, batch):
        """- (d - eta (R - R'))^2 on both rows of a pair, each as seen from its own side."""
        rows = batch.rows
        own = self.log_ratios(scores.log_probs, rows, "turn", mean=False)
        token = self.log_ratios(scores.log_probs, rows, "token")
        pair = core.trajectory_log_ratios(
            token, rows.action_mask, mean=False, trajectory_ids=rows.sibling_ids
        )
        difference = 2 * own - pair[:, None]  # own - (pair - own)
        return -jnp.square(difference - 2 * self.eta * batch.advantages)

    def active_rows(self, batch):
        """Pairs of equal return pull their log-ratios together once the policy has moved."""
        return batch.weighted_rows

    def together(self, rows):
        """Both rows of a pair."""
        return np.asarray(rows.sibling_ids)


def _drawn_turns(mask: np.ndarray, turns, key: jax.Array) -> list[tuple[int, int]]:
    """Points (trunk, turn): the given turn of all trunks that have it, or a random one of each."""
    if turns is not None:
        return [(int(trunk), turn) for turn in turns for trunk in np.flatnonzero(mask[:, turn])]
    lengths = mask.sum(axis=1)
    draws = np.asarray(jax.random.uniform(key, lengths.shape))
    drawn = np.floor(draws * lengths).astype(int)
    return [(trunk, int(drawn[trunk])) for trunk in np.flatnonzero(lengths).tolist()]
