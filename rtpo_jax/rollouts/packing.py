"""From finished episodes to training rows; nothing is re-tokenised on the way."""

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from rtpo_jax.algorithms import Rows
from rtpo_jax.rollouts.buckets import bucket, pad_ragged, power_of_two
from rtpo_jax.rollouts.contexts import feedback_of
from rtpo_jax.rollouts.episodes import Episode, EpisodeBatch, Turn
from rtpo_jax.rollouts.templates import Template


@dataclasses.dataclass(frozen=True)
class Segment:
    """One unpadded training row: tokens and, for each chosen token, where it stands and its turn."""

    trajectory: int
    tokens: tuple[int, ...]
    positions: tuple[int, ...]
    turn_ids: tuple[int, ...]
    log_probs: np.ndarray
    versions: tuple[int, ...]


def training_rows(
    batch: EpisodeBatch,
    template: Template,
    context: str,
    turns: Sequence[int] | None,
    *,
    length_buckets: Sequence[int],
    action_buckets: Sequence[int],
) -> Rows:
    """Rows of the chosen turns (None = all) of finished episodes.

    Args:
      batch: M episodes.
      template: renders feedback between turns of a full history.
      context: "recorded" (one row a turn) or "full_history" (one row an episode).
      turns: indices of the turns whose tokens are trained; others become context or no row.
      length_buckets: row lengths L to choose from.
      action_buckets: numbers of chosen tokens T to choose from.

    Raises:
      ValueError: unknown context, or a row that fits no bucket.
    """
    segments = []
    for index, episode in enumerate(batch.episodes):
        if context == "recorded":
            segments += recorded_segments(index, episode, turns)
        elif context == "full_history":
            segments += full_history_segment(template, index, episode, turns)
        else:
            raise ValueError(f"context={context!r}: use 'recorded' or 'full_history'")
    return pack(batch, segments, template.tokenizer.pad_id, length_buckets, action_buckets)


def recorded_segments(
    trajectory: int, episode: Episode, turns: Sequence[int] | None
) -> Iterable[Segment]:
    """One row per turn: the recorded context, then the sampled action."""
    for index, turn in enumerate(episode.turns):
        if turns is None or index in turns:
            yield _segment(trajectory, turn.context, [(index, turn)], [()])


def full_history_segment(
    template: Template, trajectory: int, episode: Episode, turns: Sequence[int] | None
) -> Iterable[Segment]:
    """One row per trajectory: the question, then every action and its feedback, flattened.

    The behaviour log-probabilities stay those of the recorded contexts.
    """
    if not episode.turns:
        return
    feedback = [feedback_of(template, turn) for turn in episode.turns[:-1]] + [()]
    chosen = [
        (index if turns is None or index in turns else -1, turn)
        for index, turn in enumerate(episode.turns)
    ]
    yield _segment(trajectory, template.opening(episode.question), chosen, feedback)


def _segment(
    trajectory: int,
    opening: tuple[int, ...],
    chosen: Sequence[tuple[int, Turn]],
    feedback: Sequence[tuple[int, ...]],
) -> Segment:
    """Lay actions and feedback behind the opening; turns with index -1 are context only."""
    tokens, positions, turn_ids, versions, log_probs = list(opening), [], [], [], []
    for (index, turn), reply in zip(chosen, feedback, strict=True):
        if index >= 0:
            positions += range(len(tokens), len(tokens) + len(turn.action))
            turn_ids += [index] * len(turn.action)
            versions += [turn.policy_version] * len(turn.action)
            log_probs.append(turn.log_probs)
        tokens += turn.action + reply
    return Segment(
        trajectory,
        tuple(tokens),
        tuple(positions),
        tuple(turn_ids),
        np.concatenate(log_probs) if log_probs else np.zeros(0),
        tuple(versions),
    )


def pack(
    batch: EpisodeBatch,
    segments: Sequence[Segment],
    pad_id: int,
    length_buckets: Sequence[int],
    action_buckets: Sequence[int],
) -> Rows:
    """Pad segments into `Rows`; rows beyond the real ones have id -1 and no action token."""
    count = power_of_two(len(segments))
    longest = max((len(s.tokens) for s in segments), default=1)
    width = bucket(longest, length_buckets, "row length")
    chosen = max((len(s.positions) for s in segments), default=1)
    shape = (count, bucket(chosen, action_buckets, "number of chosen tokens"))
    trajectory_ids = np.full(count, -1, np.int32)
    trajectory_ids[: len(segments)] = [s.trajectory for s in segments]
    real = trajectory_ids >= 0

    def owned(values, fill):
        """Each row's entry of a per-trajectory array."""
        taken = values[trajectory_ids]
        return np.where(real.reshape(-1, *[1] * (taken.ndim - 1)), taken, fill)

    turn_ids = pad_ragged([s.turn_ids for s in segments], shape, -1, np.int32)
    return Rows(
        tokens=pad_ragged([s.tokens for s in segments], (count, width), pad_id, np.int32),
        action_positions=pad_ragged([s.positions for s in segments], shape, 0, np.int32),
        action_mask=turn_ids >= 0,
        turn_ids=turn_ids,
        behavior_log_probs=pad_ragged(
            [s.log_probs for s in segments], shape, 0, batch.rewards.dtype
        ),
        policy_versions=pad_ragged([s.versions for s in segments], shape, 0, np.int32),
        rewards=owned(batch.rewards, 0),
        discounts=owned(batch.discounts, 0),
        group_ids=owned(batch.group_ids, -1),
        sibling_ids=owned(batch.sibling_ids, -1),
        trajectory_ids=trajectory_ids,
        row_weights=None if batch.row_weights is None else owned(batch.row_weights, 0.0),
    )
