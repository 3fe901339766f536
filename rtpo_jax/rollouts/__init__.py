"""Acting: context managers, the jitted sampler, the turn loop, sibling forks, rows for training."""

from rtpo_jax.rollouts.contexts import FullHistory, LastObservation, LastTurns, Summary
from rtpo_jax.rollouts.demonstrations import demonstrate
from rtpo_jax.rollouts.engine import RolloutEngine, Usage
from rtpo_jax.rollouts.episodes import Episode, EpisodeBatch, Turn
from rtpo_jax.rollouts.sampler import Sampler, Samples
from rtpo_jax.rollouts.scoring import LanguageModelLogProbs, LogProbFn, Scorer
from rtpo_jax.rollouts.templates import ChatMLTemplate, SymbolTemplate

__all__ = [
    "ChatMLTemplate",
    "Episode",
    "EpisodeBatch",
    "FullHistory",
    "LanguageModelLogProbs",
    "LastObservation",
    "LastTurns",
    "LogProbFn",
    "RolloutEngine",
    "Sampler",
    "Samples",
    "Scorer",
    "Summary",
    "SymbolTemplate",
    "Turn",
    "Usage",
    "demonstrate",
]
