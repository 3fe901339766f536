"""The one jitted update: gradients summed over micro-batches, clipped, one optimiser step."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from rtpo_jax.algorithms import Batch, Objective, take_rows
from rtpo_jax.rollouts import LogProbFn
from rtpo_jax.rollouts.buckets import power_of_two


@partial(
    jax.tree_util.register_dataclass, data_fields=["params", "opt_state", "step"], meta_fields=[]
)
@dataclasses.dataclass(frozen=True)
class TrainState:
    """Everything an update reads and writes."""

    params: Any
    opt_state: Any
    step: jax.Array  # int32, optimiser steps taken


def adamw(
    learning_rate: float | optax.Schedule, *, b2: float = 0.95
) -> optax.GradientTransformation:
    """AdamW without weight decay, behind clipping of the global gradient norm to 1.

    `b2` is the decay of the second moment: short, since a run has few hundred steps.
    """
    return optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(learning_rate, b2=b2, weight_decay=0.0)
    )


def create_state(params: Any, optimizer: optax.GradientTransformation) -> TrainState:
    """State before the first step. Parameters are copied: updates donate their buffers."""
    params = jax.tree.map(jnp.copy, params)
    return TrainState(params, optimizer.init(params), jnp.zeros((), jnp.int32))


@partial(jax.jit, static_argnums=(0, 1, 2), donate_argnums=3)
def _update(log_prob_fn, goal, optimizer, state, batch, num_micro_batches):
    """One step on a batch of shape [micro-batches, rows, ...]; the rest of axis 0 is not run."""

    def scalars(params, micro_batch):
        values, sums = goal.objective(log_prob_fn(params, micro_batch.rows), micro_batch)
        return values, {"weight": jnp.sum(micro_batch.weights), **values, **sums}

    def gradients_of(index):
        pick = partial(jax.lax.dynamic_index_in_dim, index=index, keepdims=False)
        part = jax.tree.map(pick, batch)
        values, pull_back, sums = jax.vjp(lambda p: scalars(p, part), state.params, has_aux=True)
        # One backward pass a scalar; most methods have one.
        one_hot = {n: {m: jnp.full_like(values[m], m == n) for m in values} for n in values}
        return {name: pull_back(cotangent)[0] for name, cotangent in one_hot.items()}, sums

    def accumulate(index, total):
        return jax.tree.map(jnp.add, total, gradients_of(index))

    zeros = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(gradients_of, 0)
    )
    gradients, sums = jax.lax.fori_loop(0, num_micro_batches, accumulate, zeros)
    direction, metrics = goal.ascent(gradients)
    descent = jax.tree.map(jnp.negative, direction)
    updates, opt_state = optimizer.update(descent, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    whole = {name: sums.pop(name) for name in gradients}
    whole |= {"gradient_norm": optax.tree.norm(direction), **metrics}
    return TrainState(params, opt_state, state.step + 1), sums, whole


@dataclasses.dataclass(frozen=True)
class Updater:
    """Takes optimiser steps on batches of any size, `micro_batch` rows at a time."""

    log_prob_fn: LogProbFn
    optimizer: optax.GradientTransformation
    micro_batch: int = 64

    def __call__(
        self, goal: Objective, state: TrainState, batch: Batch
    ) -> tuple[TrainState, dict[str, float]]:
        """One step up the goal's objective; the old state's buffers are donated.

        Rows that the goal does not call active are left out of the computation, unless it needs
        them together with others: they add nothing to the gradient of a weighted objective, and
        the weights of the others were built before. Metrics are therefore weighted
        means over the rows that are left; `objective` and `gradient_norm` are those of the step.

        Raises:
          ValueError: no row is active; the caller decides what a step without gradient means. Or
            more rows belong together than a micro-batch holds.
          FloatingPointError: the objective or its gradient is not finite.
        """
        active = goal.active_rows(batch)
        if not active.any():
            raise ValueError("batch has no row with weight and advantage: skip the update")
        batch = dataclasses.replace(batch, scores=None)
        index = self._layout(np.asarray(goal.together(batch.rows)), active)
        state, sums, whole = _update(
            self.log_prob_fn, goal, self.optimizer, state, self._stack(batch, index),
            np.int32(len(index)),
        )  # fmt: skip
        sums, whole = ({k: float(v) for k, v in part.items()} for part in (sums, whole))
        if not np.isfinite(whole["objective"] + whole["gradient_norm"]):
            raise FloatingPointError(
                f"objective={whole['objective']}, gradient_norm={whole['gradient_norm']} at step "
                f"{int(state.step)}: go back to the last checkpoint and lower the learning rate"
            )
        weight = sums.pop("weight")
        return state, {**whole, **{k: v / weight for k, v in sums.items()}}

    def _layout(self, together: np.ndarray, active: np.ndarray) -> np.ndarray:
        """Rows of each micro-batch, [micro-batches, rows]; -1 = empty. Units stay whole."""
        units = [np.flatnonzero(together == unit) for unit in np.unique(together[active])]
        largest = max(map(len, units))
        if largest > self.micro_batch:
            raise ValueError(
                f"micro_batch={self.micro_batch}: {largest} rows belong together; raise it"
            )
        lines, free = [], 0
        for unit in units:
            if len(unit) > free:
                lines.append(np.full(self.micro_batch, -1))
                free = self.micro_batch
            start = self.micro_batch - free
            lines[-1][start : start + len(unit)] = unit
            free -= len(unit)
        return np.stack(lines)

    def _stack(self, batch: Batch, index: np.ndarray) -> Batch:
        """[micro-batches, rows, ...]; empty places repeat a row without mask, weight or ids."""
        padding = power_of_two(len(index), 4) - len(index)
        index = np.pad(index, ((0, padding), (0, 0)), constant_values=-1)
        empty = index < 0
        stacked = take_rows(batch, np.where(empty, index.max(), index))
        blank = empty[..., None]
        rows = dataclasses.replace(
            stacked.rows,
            action_mask=stacked.rows.action_mask & ~blank,
            turn_ids=np.where(blank, -1, stacked.rows.turn_ids),
            trajectory_ids=np.where(empty, -1, stacked.rows.trajectory_ids),
        )
        weights = np.where(blank, 0, stacked.weights).astype(stacked.weights.dtype)
        return dataclasses.replace(stacked, rows=rows, weights=weights)


def minibatches(batch: Batch, count: int, rng: np.random.Generator) -> list[Batch]:
    """Cut a batch into at most `count` parts without splitting a group over two of them.

    Rows that are compared with each other (siblings of a boundary, otherwise rows of a task) stay
    together. Each part's weights are scaled to the total of the whole batch, so that every step is
    a mean over its own part. Fewer groups than `count` give fewer parts.
    """
    if count == 1:
        return [batch]
    groups = batch.rows.comparison_ids
    total = np.sum(batch.weights)
    parts = []
    for ids in np.array_split(rng.permutation(np.unique(groups[groups >= 0])), count):
        part = take_rows(batch, np.flatnonzero(np.isin(groups, ids)))
        weight = np.sum(part.weights)
        if weight > 0:
            scaled = (part.weights * (total / weight)).astype(part.weights.dtype)
            parts.append(dataclasses.replace(part, weights=scaled))
    return parts
