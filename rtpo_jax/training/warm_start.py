"""Supervised warm start: imitate scripted, noisy demonstrations before reinforcement learning."""

import dataclasses
from collections.abc import Callable, Sequence

import jax
import numpy as np
import optax

from rtpo_jax import core
from rtpo_jax.algorithms import Batch, Objective, Rows, Scores, take_rows
from rtpo_jax.rollouts import RolloutEngine, demonstrate
from rtpo_jax.rollouts.generators import generator
from rtpo_jax.training.update import TrainState, Updater, adamw

FULL_HISTORY_ROWS = 4  # a batch has this many times fewer full-history rows: each is an episode


@dataclasses.dataclass(frozen=True, kw_only=True)
class WarmStart(Objective):
    """Settings of the supervised phase."""

    steps: int = 400  # optimiser steps
    batch_size: int = 128  # rows (turns) a step
    learning_rate: float = 3e-3  # peak of the schedule
    error_rate: float = 0.1  # chance of a random wrong action, per turn
    systematic_rate: float = 0.7  # chance of the demonstrator's habitual error where it applies
    full_history_share: float = 0.25  # share of steps that train on flattened full histories

    def __post_init__(self):
        for name, least in {"steps": 2, "batch_size": FULL_HISTORY_ROWS}.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)}: use {least} or more")
        if not 0 <= self.full_history_share <= 1:
            raise ValueError(f"full_history_share={self.full_history_share}: use a share in 0..1")

    @property
    def optimizer(self) -> optax.GradientTransformation:
        """AdamW under linear warm-up over 5 % of the steps and cosine decay to 5 % of the peak."""
        peak = self.learning_rate
        warm_up = max(self.steps // 20, 1)
        return adamw(
            optax.warmup_cosine_decay_schedule(0.0, peak, warm_up, self.steps, 0.05 * peak), b2=0.98
        )

    def objective(self, scores: Scores, batch: Batch):
        """Weighted mean log-likelihood of the demonstrated tokens."""
        value = core.weighted_sum(scores.log_probs, batch.weights)
        return {"objective": value}, {"entropy": core.weighted_sum(scores.entropies, batch.weights)}


def demonstration_rows(
    settings: WarmStart, engine: RolloutEngine, tasks: Sequence, key: jax.Array
) -> dict[str, Rows]:
    """Rows of all demonstrated turns, under recorded and under full-history contexts."""
    episodes = demonstrate(
        engine,
        tasks,
        key,
        error_rate=settings.error_rate,
        systematic_rate=settings.systematic_rate,
    )
    return {name: real_rows(engine.rows(episodes, name)) for name in ("recorded", "full_history")}


def real_rows(rows: Rows) -> Rows:
    """Without the padding rows."""
    return take_rows(rows, np.flatnonzero(rows.trajectory_ids >= 0))


def imitation_batch(settings: WarmStart, rows: dict[str, Rows], key: jax.Array, step: int) -> Batch:
    """The batch of one step: random rows of one context kind, every token weighing the same.

    Full-history rows hold a whole episode, so fewer of them make a batch of about the same tokens.
    """
    rng = generator(jax.random.fold_in(key, step))
    full = rng.random() < settings.full_history_share
    pool = rows["full_history" if full else "recorded"]
    size = settings.batch_size // FULL_HISTORY_ROWS if full else settings.batch_size
    chosen = take_rows(pool, rng.integers(pool.num_rows, size=size))
    mask = chosen.action_mask
    return Batch(
        chosen,
        advantages=mask.astype(np.float32),
        weights=mask.astype(np.float32) / max(mask.sum(), 1),
    )


def imitate(
    settings: WarmStart,
    updater: Updater,
    state: TrainState,
    rows: dict[str, Rows],
    key: jax.Array,
    on_step: Callable[[int, TrainState, dict], None],
) -> TrainState:
    """Steps from `state.step` to the end; `on_step(steps done, state, metrics)` after each."""
    for step in range(int(state.step), settings.steps):
        state, metrics = updater(settings, state, imitation_batch(settings, rows, key, step))
        on_step(step + 1, state, metrics)
    return state
