"""What an update maximises: scalars to differentiate, and what is made of their gradients."""

from typing import Any

import jax
import numpy as np

from rtpo_jax.algorithms.rows import Batch, Rows, Scores

Scalars = dict[str, jax.Array]


class Objective:
    """Compared by value: subclasses are frozen dataclasses, and equal ones compile once."""

    def objective(self, scores: Scores, batch: Batch) -> tuple[Scalars, Scalars]:
        """Scalars whose gradients are needed, and sums for metrics; all add over micro-batches.

        That is, they are weighted sums, with weights built over the whole batch.

        Args:
          scores: [N, T] of the chosen tokens under the policy being trained.
          batch: advantages and weights [N, T], behaviour log-probabilities.

        Returns:
          {"objective": to maximise, ...}, and the sums.
        """
        raise NotImplementedError(f"{type(self).__name__} has to define objective()")

    def ascent(self, gradients: dict[str, Any]) -> tuple[Any, Scalars]:
        """The direction of the step and metrics, from the whole batch's gradient of each scalar.

        By default the gradient of "objective".
        """
        return gradients["objective"], {}

    def active_rows(self, batch: Batch) -> np.ndarray:
        """[N] bool, rows that add to a gradient; by default those with weight and advantage."""
        return batch.signal_rows

    def together(self, rows: Rows) -> np.ndarray:
        """[N] rows with the same id are never split over two micro-batches; by default all apart."""
        return np.arange(rows.num_rows)
