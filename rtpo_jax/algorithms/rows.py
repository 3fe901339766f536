"""What a method trains on: rows of exact tokens, and the measure and advantages laid over them."""

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

Array = jax.Array | np.ndarray


@partial(
    jax.tree_util.register_dataclass,
    data_fields=[
        "tokens",
        "action_positions",
        "action_mask",
        "turn_ids",
        "behavior_log_probs",
        "policy_versions",
        "rewards",
        "discounts",
        "group_ids",
        "sibling_ids",
        "trajectory_ids",
        "row_weights",
    ],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class Rows:
    """Training rows: what the policy was given, what it chose, and under which probabilities.

    One row is one decision (its recorded context, then the chosen tokens) or, when training on the
    flattened full history, one whole trajectory with several turns. Nothing is re-tokenised or
    re-rendered between acting and learning.

    Axes: N rows, L tokens of context and action (right-padded), T chosen tokens (padded), H turns.
    """

    tokens: Array  # [N, L] int32 context, action (and, in full-history rows, feedback) tokens
    action_positions: Array  # [N, T] int32 where each chosen token stands in `tokens`; 0 = padding
    action_mask: Array  # [N, T] bool True on tokens the policy chose
    turn_ids: Array  # [N, T] int32 turn of each chosen token, -1 = padding
    behavior_log_probs: Array  # [N, T] float of the chosen tokens, when they were sampled
    policy_versions: Array  # [N, T] int32 optimiser steps behind the policy that chose the token
    rewards: Array  # [N, H] float of the row's whole episode, after each turn's action
    discounts: Array  # [N, H] float 0 where the episode ended
    group_ids: Array  # [N] int32 rows of one task share an id; -1 = padding row
    sibling_ids: Array  # [N] int32 rows forked from one boundary state share an id; -1 = none
    trajectory_ids: Array  # [N] int32 rows of one episode share an id; -1 = padding row
    row_weights: Array | None = None  # [N] exact measure of each row's trajectory; None = uniform

    @property
    def num_rows(self) -> int:
        """Number of rows N, padding rows included."""
        return self.tokens.shape[0]

    @property
    def comparison_ids(self) -> np.ndarray:
        """[N] rows that are compared with each other: siblings, otherwise rows of a task; -1 = none."""
        siblings = np.asarray(self.sibling_ids)
        return np.where(siblings >= 0, siblings, np.asarray(self.group_ids))


class Scores(NamedTuple):
    """What a policy says about the chosen tokens of rows, each [N, T]."""

    log_probs: Array  # of the chosen token, in nats
    entropies: Array  # of the distribution it was chosen from, in nats
    values: Array | None = None  # of the state before it; None = the model has no value head


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["rows", "advantages", "weights", "fields", "scores"],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class Batch:
    """Rows with the advantages and the weights of the objective, built over the whole batch.

    The objective is `weighted_sum(values, weights)`, so it does not depend on how the batch is cut
    into micro-batches or padded.
    """

    rows: Rows
    advantages: Array  # [N, T] 0 outside action tokens
    weights: Array  # [N, T] non-negative, 0 outside action tokens
    fields: dict[str, Array] = dataclasses.field(default_factory=dict)  # [N, T] a method's own
    scores: Scores | None = None  # under the policy before the first update, once somebody asked

    @property
    def weighted_rows(self) -> np.ndarray:
        """[N] bool, rows with a token that has weight."""
        return np.any(np.asarray(self.weights) > 0, axis=1)

    @property
    def signal_rows(self) -> np.ndarray:
        """[N] bool, rows with a token that has both weight and a non-zero advantage."""
        return np.any((np.asarray(self.advantages) != 0) & (np.asarray(self.weights) > 0), axis=1)


def take_rows(tree: Any, index: np.ndarray) -> Any:
    """Rows `index` (leading axis) of a `Rows` or `Batch`, taken with numpy: nothing compiles."""
    return jax.tree.map(lambda leaf: np.asarray(leaf)[index], tree)


def only_rows(rows: Rows, keep: np.ndarray) -> Rows:
    """The same rows with those outside `keep` [N] turned into padding; shapes stay."""
    keep = np.asarray(keep)
    return dataclasses.replace(
        rows,
        action_mask=rows.action_mask & keep[:, None],
        turn_ids=np.where(keep[:, None], rows.turn_ids, -1),
        **{
            name: np.where(keep, getattr(rows, name), -1)
            for name in ("group_ids", "sibling_ids", "trajectory_ids")
        },
    )
