"""Log-probabilities of recorded rows under given parameters, in micro-batches of one shape."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

from rtpo_jax.algorithms import Rows, Scores, take_rows
from rtpo_jax.models import TransformerConfig, token_log_probs

# (params, rows) -> scores [N, T] of the rows' chosen tokens.
LogProbFn = Callable[[Any, Rows], Scores]


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

    def __call__(self, params: Any, rows: Rows) -> Scores:
        """Scores [N, T] of the rows' chosen tokens."""
        log_probs, entropies = token_log_probs(
            self.config,
            params,
            rows.tokens,
            rows.action_positions,
            temperature=self.temperature,
            chunk=self.chunk,
            remat=self.remat,
        )
        return Scores(log_probs, entropies)


@partial(jax.jit, static_argnums=0)
def _score(log_prob_fn, params, rows):
    return log_prob_fn(params, rows)


@dataclasses.dataclass(frozen=True)
class Scorer:
    """Scores rows `micro_batch` at a time; padding rows (trajectory id -1) are left at 0."""

    log_prob_fn: LogProbFn
    micro_batch: int = 64

    def __call__(self, params: Any, rows: Rows) -> Scores:
        """Scores [N, T], 0 outside action tokens."""
        real = np.flatnonzero(np.asarray(rows.trajectory_ids) >= 0)
        if not real.size:
            raise ValueError("rows has no real row: nothing to score")
        parts = []
        for start in range(0, len(real), self.micro_batch):
            index = real[start : start + self.micro_batch]
            padded = np.resize(index, self.micro_batch)
            scores = _score(self.log_prob_fn, params, take_rows(rows, padded))
            parts.append(jax.tree.map(partial(_first, len(index)), scores))
        mask, dtype = np.asarray(rows.action_mask), rows.behavior_log_probs.dtype

        def scattered(*pieces):
            values = np.zeros(mask.shape, dtype)
            values[real] = np.concatenate(pieces)
            return np.where(mask, values, 0)

        return jax.tree.map(scattered, *parts)


def _first(count, values):
    return np.asarray(values)[:count]
