"""Log-probabilities of recorded rows under given parameters, in micro-batches of one shape."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

from rtpo_jax.algorithms import Rows, take_rows
from rtpo_jax.models import TransformerConfig, token_log_probs

# (params, rows) -> log-probabilities and entropies, both [N, T], of the rows' chosen tokens.
LogProbFn = Callable[[Any, Rows], tuple[jax.Array, jax.Array]]


@dataclasses.dataclass(frozen=True)
class LanguageModelLogProbs:
    """`LogProbFn` of a transformer. Compared by value, so equal ones compile once.

    Attributes:
      config: of the transformer.
      temperature: of the sampling distribution, above 0.
      chunk: tokens whose logits exist at once; None = all (small vocabularies).
      remat: recompute each layer in the backward pass: less memory, a third more operations.
    """

    config: TransformerConfig
    temperature: float = 1.0
    chunk: int | None = None
    remat: bool = False

    def __call__(self, params: Any, rows: Rows) -> tuple[jax.Array, jax.Array]:
        """Log-probabilities and entropies [N, T] of the rows' chosen tokens."""
        return token_log_probs(
            self.config,
            params,
            rows.tokens,
            rows.action_positions,
            temperature=self.temperature,
            chunk=self.chunk,
            remat=self.remat,
        )


@partial(jax.jit, static_argnums=0)
def _score(log_prob_fn, params, rows):
    return log_prob_fn(params, rows)


@dataclasses.dataclass(frozen=True)
class Scorer:
    """Scores rows `micro_batch` at a time; padding rows (trajectory id -1) are left at 0."""

    log_prob_fn: LogProbFn
    micro_batch: int = 64

    def __call__(self, params: Any, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        """Log-probabilities and entropies [N, T], 0 outside action tokens."""
        log_probs = np.zeros(rows.action_mask.shape, rows.behavior_log_probs.dtype)
        entropies = np.zeros_like(log_probs)
        real = np.flatnonzero(np.asarray(rows.trajectory_ids) >= 0)
        for start in range(0, len(real), self.micro_batch):
            index = real[start : start + self.micro_batch]
            padded = np.resize(index, self.micro_batch)
            scores = _score(self.log_prob_fn, params, take_rows(rows, padded))
            for target, values in zip((log_probs, entropies), scores, strict=True):
                target[index] = np.asarray(values)[: len(index)]
        mask = np.asarray(rows.action_mask)
        return np.where(mask, log_probs, 0), np.where(mask, entropies, 0)
