"""Metrics of a run: flat names with units, averaged so that padding and splits do not matter."""

import json
import os
from collections import defaultdict
from pathlib import Path

import jax
import numpy as np

from rtpo_jax.algorithms import Batch
from rtpo_jax.rollouts import EpisodeBatch, RolloutEngine


class Averages:
    """Sums, weighted means and maxima collected over the stages of an iteration."""

    def __init__(self):
        self._sums = defaultdict(float)
        self._weights = {}
        self._maxima = {}

    def add_sum(self, name: str, value: float) -> None:
        """Add to a total."""
        self._sums[name] += float(value)

    def add_mean(self, name: str, value: float, weight: float = 1.0) -> None:
        """Add a value that counts `weight` times in a mean."""
        self._sums[name] += float(value) * weight
        self._weights[name] = self._weights.get(name, 0.0) + weight

    def add_max(self, name: str, value: float) -> None:
        """Keep the largest value; NaN stays NaN."""
        self._maxima[name] = float(np.maximum(self._maxima.get(name, -np.inf), value))

    def results(self) -> dict[str, float]:
        """All metrics by name; a mean of nothing is left out."""
        means = {n: self._sums[n] / w for n, w in self._weights.items() if w}
        sums = {n: v for n, v in self._sums.items() if n not in self._weights}
        return dict(sorted({**sums, **means, **self._maxima}.items()))


def log_ratio_metrics(averages: Averages, batch: Batch) -> None:
    """|log pi - log pi_behaviour| and entropy over all action tokens, before the first update."""
    mask = np.asarray(batch.rows.action_mask)
    gaps = np.abs(batch.scores.log_probs - batch.rows.behavior_log_probs)[mask]
    if gaps.size:
        averages.add_mean("log_ratio_before_update_mean", gaps.mean(), gaps.size)
        averages.add_max("log_ratio_before_update_max", gaps.max())
        averages.add_mean("entropy_before_update", batch.scores.entropies[mask].mean(), gaps.size)


def signal_metrics(averages: Averages, batch: Batch) -> None:
    """Share of groups without any advantage, and how many rows and tokens are trained."""
    rows = batch.rows
    groups, moved = rows.comparison_ids, batch.signal_rows
    distinct = np.unique(groups[groups >= 0])
    silent = distinct.size - np.unique(groups[moved]).size
    averages.add_mean("zero_advantage_share", silent / max(distinct.size, 1), distinct.size)
    averages.add_sum("trained_rows", np.sum(moved))
    averages.add_sum("trained_tokens", np.sum(rows.action_mask[moved]))


def episode_metrics(averages: Averages, engine: RolloutEngine, batch: EpisodeBatch) -> None:
    """What happened in the episodes themselves."""
    for episode in batch.episodes:
        outcome = engine.environment.outcome(episode.state)
        averages.add_mean("success", outcome.success)
        averages.add_mean("return", sum(turn.reward for turn in episode.turns))
        averages.add_mean("turns", len(episode.turns))
        averages.add_mean("tool_calls", outcome.tool_calls)
        averages.add_mean("malformed_actions", outcome.malformed)
        averages.add_mean("tokens_per_episode", episode.generated_tokens())


class CompileCounter:
    """Counts programs built in this process from its creation on, compiled or loaded from a cache."""

    def __init__(self):
        self.count = 0
        jax.monitoring.register_event_duration_secs_listener(self._on_event)

    def _on_event(self, event: str, duration: float, **_) -> None:
        del duration
        self.count += event == "/jax/core/compile/backend_compile_duration"


class MetricsFile:
    """`metrics.jsonl`: one object a line, cut back to a known length when a run is resumed."""

    def __init__(self, path: Path, keep_lines: int = 0):
        self.path = path
        lines = path.read_text().splitlines(keepends=True)[:keep_lines] if path.exists() else []
        if len(lines) < keep_lines:
            raise ValueError(f"{path} has {len(lines)} lines, the checkpoint expects {keep_lines}")
        temporary = path.with_suffix(".tmp")
        temporary.write_text("".join(lines))
        os.replace(temporary, path)
        self.lines = len(lines)

    def write(self, **values) -> None:
        """Append one object and flush it."""
        with self.path.open("a") as file:
            file.write(json.dumps(values) + "\n")
        self.lines += 1
