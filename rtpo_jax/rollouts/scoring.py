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


def language_model_log_probs(
    config: TransformerConfig,
    temperature: float,
    *,
    chunk: int | None = None,
    remat: bool = False,
) -> LogProbFn:
    """`LogProbFn` of a transformer, at the temperature its actions are sampled with.

    Args:
      config: of the transformer.
      temperature: of the sampling distribution, above 0.
      chunk: tokens whose logits exist at once; None = all (small vocabularies).
      remat: recompute each layer in the backward pass: less memory, a third more operations.
    """

    def log_probs(params, rows: Rows):
        return token_log_probs(
            config,
            params,
            rows.tokens,
            rows.action_positions,
            temperature=temperature,
            chunk=chunk,
            remat=remat,
        )

    return log_probs


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
