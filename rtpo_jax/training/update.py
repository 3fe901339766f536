"""The one jitted update: gradients summed over micro-batches, clipped, one optimiser step."""

import dataclasses
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax

from rtpo_jax.algorithms import Batch, take_rows
from rtpo_jax.rollouts import LogProbFn
from rtpo_jax.rollouts.buckets import power_of_two


class Objective(Protocol):
    """What an update maximises; a `Method`, for one. Compared by value: equal ones compile once."""

    def objective(
        self, log_probs: jax.Array, entropies: jax.Array, batch: Batch
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Scalar to maximise, and sums for metrics, from log-probabilities and entropies [N, T].

        Both must add over micro-batches: weighted sums, with weights built over the whole batch.
        """


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

    def loss(params, micro_batch):
        log_probs, entropies = log_prob_fn(params, micro_batch.rows)
        value, sums = goal.objective(log_probs, entropies, micro_batch)
        return -value, {"objective": value, "weight": jnp.sum(micro_batch.weights), **sums}

    def gradients_of(index):
        pick = partial(jax.lax.dynamic_index_in_dim, index=index, keepdims=False)
        return jax.grad(loss, has_aux=True)(state.params, jax.tree.map(pick, batch))

    def accumulate(index, total):
        return jax.tree.map(jnp.add, total, gradients_of(index))

    zeros = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(gradients_of, 0)
    )
    gradients, sums = jax.lax.fori_loop(0, num_micro_batches, accumulate, zeros)
    updates, opt_state = optimizer.update(gradients, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    sums["gradient_norm"] = optax.tree.norm(gradients)
    return TrainState(params, opt_state, state.step + 1), sums


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

        Rows whose tokens all have weight 0 or advantage 0 are left out of the computation: they
        add nothing to the gradient of a weighted surrogate, and the weights of the others were
        built before. Metrics are therefore weighted means over rows with signal;
        `objective` and `gradient_norm` are those of the step.

        Raises:
          ValueError: no row has signal; the caller decides what a step without gradient means.
          FloatingPointError: the objective or its gradient is not finite.
        """
        kept = np.flatnonzero(batch.signal_rows)
        if not kept.size:
            raise ValueError("batch has no row with weight and advantage: skip the update")
        count = -(-kept.size // self.micro_batch)
        state, sums = _update(
            self.log_prob_fn,
            goal,
            self.optimizer,
            state,
            self._stack(batch, kept, power_of_two(count, 4)),
            np.int32(count),
        )
        sums = {name: float(value) for name, value in sums.items()}
        if not np.isfinite(sums["objective"] + sums["gradient_norm"]):
            raise FloatingPointError(
                f"objective={sums['objective']}, gradient_norm={sums['gradient_norm']} at step "
                f"{int(state.step)}: go back to the last checkpoint and lower the learning rate"
            )
        weight = sums.pop("weight")
        whole = ("objective", "gradient_norm")
        return state, {k: v if k in whole else v / weight for k, v in sums.items()}

    def _stack(self, batch: Batch, kept: np.ndarray, count: int) -> Batch:
        """[count, micro_batch, ...]; the rows that fill the last micro-batches have weight 0."""
        index = np.resize(kept, count * self.micro_batch)
        stacked = take_rows(batch, index)
        weights = np.where(np.arange(index.size)[:, None] < kept.size, stacked.weights, 0)
        stacked = dataclasses.replace(stacked, weights=weights.astype(stacked.weights.dtype))
        return jax.tree.map(
            lambda leaf: leaf.reshape(count, self.micro_batch, *leaf.shape[1:]), stacked
        )


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
