"""The contract between an algorithm and the stage loop: a `Method` is a value.

The training loop has one path for every algorithm::

    collected = method.collect(engine, policy, tasks, key)
    for stage in method.stages(num_turns, key):
        batch = method.batch(engine, policy, collected, stage, key, carry)
        policy = update(policy, batch)
        carry = method.carry(engine, policy, batch, carry)

A method says how data are collected, what the advantages are, which tokens carry weight and in
which order the turns are trained. Everything numerical comes from `rtpo_jax.core`.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rtpo_jax import core
from rtpo_jax.algorithms.engine import Collected, Engine, Policy
from rtpo_jax.algorithms.objective import Objective
from rtpo_jax.algorithms.rows import Batch, Rows, Scores

Level = Literal["token", "turn", "trajectory"]


class Stage(NamedTuple):
    """One step of an iteration's schedule: the turns that are trained in it; None = all."""

    turns: tuple[int, ...] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method(Objective):
    """Fields and defaults that all clipped-surrogate methods share.

    Objective of a batch (to maximise)::

        J = sum_{n,t} weights[n,t] * min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)

    less kl_coefficient times the same sum of exp(-d) + d - 1, d = log(pi / pi_reference).
    r = pi / pi_behaviour of the token, or of its turn or trajectory: the product of the unit's
    token ratios, or with `ratio_mean` their geometric mean. All tokens of a unit then share one
    ratio, and whether it is clipped depends on the advantage of each.
    """

    ratio: Level = "token"  # what the ratio is of
    ratio_mean: bool = True  # of a turn or trajectory: geometric mean, else the product
    clip_low: float = 0.2  # ratio may fall to 1 - clip_low
    clip_high: float = 0.2  # ratio may rise to 1 + clip_high
    log_ratio_limit: float = 10.0  # |log ratio| is clamped to this before exp (RTPO, appendix E.3)
    epochs: int = 1  # passes over the batch of a stage
    num_minibatches: int = 1  # optimiser steps a pass; whole groups are never split over two
    kl_coefficient: float = 0.0  # of the k3 estimate of KL(pi || pi_reference), in the objective
    importance: Level | None = None  # truncated weights for rows of an older policy, at this level
    importance_limit: float = 2.0  # of those weights

    def __post_init__(self):
        for name in ("clip_low", "clip_high", "log_ratio_limit"):
            value = getattr(self, name)
            require(0 < value < float("inf"), name, value, "use a finite value above 0")
        require_one_of("ratio", self.ratio, ("token", "turn", "trajectory"))
        require(self.clip_low <= 1, "clip_low", self.clip_low, "use a value of at most 1")
        require_count("epochs", self.epochs, 1)
        require_count("num_minibatches", self.num_minibatches, 1)
        require(0 <= self.kl_coefficient < float("inf"), "kl_coefficient", self.kl_coefficient,
                "use a finite value of at least 0")  # fmt: skip
        require_one_of("importance", self.importance, ("token", "turn", "trajectory", None))
        require(0 < self.importance_limit < float("inf"), "importance_limit", self.importance_limit,
                "use a finite value above 0")  # fmt: skip

    def collect(self, engine: Engine, policy: Policy, tasks: Sequence, key: jax.Array) -> Collected:
        """Sample what the iteration starts from."""
        raise NotImplementedError(f"{type(self).__name__} has to define collect()")

    def batch(
        self,
        engine: Engine,
        policy: Policy,
        collected: Collected,
        stage: Stage,
        key: jax.Array,
        carry: Any,
    ) -> Batch | None:
        """Rows, advantages and weights of a stage; None when there is nothing to train in it."""
        raise NotImplementedError(f"{type(self).__name__} has to define batch()")

    def stages(self, num_turns: int, key: jax.Array) -> tuple[Stage, ...]:
        """Schedule of one iteration; by default one stage that trains all turns together."""
        del num_turns, key
        return (Stage(),)

    def carry(self, engine: Engine, policy: Policy, batch: Batch, carry: Any) -> Any:
        """What later stages need of the stage just trained; by default nothing.

        The place of SeeUPO's compound ratio: what the rows' turns have moved by so far.
        """
        del engine, policy, batch
        return carry

    def together(self, rows: Rows) -> np.ndarray:
        """The ratio of a trajectory needs all its rows."""
        if self.ratio == "trajectory":
            return np.asarray(rows.trajectory_ids)
        return super().together(rows)

    def log_ratios(
        self,
        log_probs: jax.Array,
        rows: Rows,
        level: Level | None = None,
        *,
        mean: bool | None = None,
    ) -> jax.Array:
        """Log-ratio [N, T] of each chosen token's unit at a level, by default that of `ratio`.

        `mean` says whether it is the mean over the unit's tokens or their sum; by default as
        `ratio_mean`.
        """
        level = self.ratio if level is None else level
        mean = self.ratio_mean if mean is None else mean
        own = core.token_log_ratios(log_probs, rows.behavior_log_probs, rows.action_mask)
        if level == "token":
            return own
        if level == "turn":
            num_turns = rows.rewards.shape[-1]
            turns = core.turn_log_ratios(own, rows.turn_ids, num_turns, mean=mean)
            return core.to_tokens(turns, rows.turn_ids)
        whole = core.trajectory_log_ratios(
            own, rows.action_mask, mean=mean, trajectory_ids=rows.trajectory_ids
        )
        return jnp.where(rows.action_mask, whole[:, None], 0)

    def surrogate(self, ratios: jax.Array, advantages: jax.Array) -> jax.Array:
        """What is weighted and summed of ratios [N, T] and advantages, [N, T]."""
        return core.clipped_surrogate(ratios, advantages, self.clip_low, self.clip_high)

    def terms(self, scores: Scores, batch: Batch) -> jax.Array:
        """What is weighted and summed, [N, T]: by default the surrogate."""
        ratios = core.ratios(
            self.log_ratios(scores.log_probs, batch.rows), limit=self.log_ratio_limit
        )
        return self.surrogate(ratios, batch.advantages)

    def objective(
        self, scores: Scores, batch: Batch
    ) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
        """The objective of the class docstring, and sums for metrics."""
        rows, weights = batch.rows, batch.weights
        token_log_ratios = self.log_ratios(scores.log_probs, rows, "token")
        ratios = core.ratios(self.log_ratios(scores.log_probs, rows), limit=self.log_ratio_limit)
        clip = (self.clip_low, self.clip_high)
        # The k3 estimate of KL(pi_behaviour || pi): samples come from the behaviour policy.
        kl = core.kl_estimate(jnp.zeros_like(token_log_ratios), token_log_ratios, "k3")
        clipped = core.is_clipped(ratios, batch.advantages, *clip).astype(weights.dtype)
        sums = {
            "kl_from_behavior": core.weighted_sum(kl, weights),
            "clip_fraction": core.weighted_sum(clipped, weights),
            "entropy": core.weighted_sum(scores.entropies, weights),
        }
        value = core.weighted_sum(self.terms(scores, batch), weights)
        if self.kl_coefficient:
            reference = batch.fields["reference_log_probs"]
            mask = rows.action_mask
            log_probs = jnp.where(mask, scores.log_probs, 0)
            kl = core.kl_estimate(log_probs, jnp.where(mask, reference, 0), "k3")
            sums["kl_from_reference"] = core.weighted_sum(kl, weights)
            value -= self.kl_coefficient * sums["kl_from_reference"]
        return {"objective": value}, sums

    def active_rows(self, batch: Batch) -> np.ndarray:
        """A penalty acts on rows without advantage, too."""
        return batch.weighted_rows if self.kl_coefficient else super().active_rows(batch)

    def corrected(self, batch: Batch) -> Batch:
        """The batch with `importance` weights in its advantages, if the method asks for them.

        Decoupled objective: ratios are from then on against the policy that the stage starts from,
        whose scores the batch holds, and every token's advantage is multiplied by
        min(pi_start / pi_behaviour, importance_limit), the ratio of its token, or the product of
        the ratios of its turn or of its trajectory's rows. Weights carry no gradient.
        """
        if self.importance is None:
            return batch
        rows = batch.rows
        moved = self.log_ratios(batch.scores.log_probs, rows, self.importance, mean=False)
        ratios = np.asarray(core.ratios(moved, limit=self.log_ratio_limit))
        factors = np.where(rows.action_mask, np.minimum(ratios, self.importance_limit), 0)
        behavior = np.where(rows.action_mask, batch.scores.log_probs, 0)
        return dataclasses.replace(
            batch,
            rows=dataclasses.replace(rows, behavior_log_probs=behavior),
            advantages=(batch.advantages * factors).astype(np.asarray(batch.advantages).dtype),
        )


def require(condition: bool, field: str, value: Any, fix: str) -> None:
    """Raise a ValueError that names the field, its value and the fix."""
    if not condition:
        raise ValueError(f"{field}={value!r}: {fix}")


def require_count(field: str, value: Any, least: int) -> None:
    """Raise a ValueError unless the value is an integer of at least `least`."""
    require(isinstance(value, int) and value >= least, field, value, f"use {least} or more, whole")


def require_one_of(field: str, value: Any, choices: tuple) -> None:
    """Raise a ValueError that lists the choices."""
    require(value in choices, field, value, f"use one of {', '.join(map(repr, choices))}")


def trajectory_sum_weights(rows: Rows) -> np.ndarray:
    """[N, T] mean over trajectories of the SUM over a trajectory's chosen tokens.

    w_nt = m_nt / M, or row_weights_n m_nt, with M trajectories that have a chosen token.
    """
    measure = rows.row_weights
    if measure is None:
        count = len(np.unique(rows.trajectory_ids[rows.action_mask.any(1)]))
        measure = np.full(rows.num_rows, 1 / max(count, 1), np.float32)
    return np.asarray(core.token_mean_weights(rows.action_mask, row_weights=measure))


def to_action_tokens(values: Any, rows: Rows) -> np.ndarray:
    """Hand every chosen token the value [M] of its trajectory, or [M, H] of its turn; 0 elsewhere."""
    own = np.asarray(values)[rows.trajectory_ids]
    if own.ndim == 1:
        return np.where(rows.action_mask, own[:, None], 0)
    tokens = np.take_along_axis(own, np.maximum(rows.turn_ids, 0), axis=1)
    return np.where(rows.action_mask, tokens, 0)
