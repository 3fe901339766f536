"""Episodes acted by an environment's scripted, noisy demonstrator instead of the policy."""

from collections.abc import Sequence

import jax
import numpy as np

from rtpo_jax.rollouts.engine import RolloutEngine
from rtpo_jax.rollouts.episodes import EpisodeBatch
from rtpo_jax.rollouts.generators import generator


def demonstrate(
    engine: RolloutEngine,
    tasks: Sequence,
    key: jax.Array,
    *,
    error_rate: float,
    systematic_rate: float,
) -> EpisodeBatch:
    """One demonstrated episode a task, with the contexts and ids that the policy would have seen.

    Log-probabilities are 0: nobody sampled these actions.

    Args:
      engine: supplies environment, template and context manager.
      tasks: tasks to demonstrate.
      key: decides the environment's chance and the demonstrator's errors.
      error_rate: chance of a random wrong action, per turn.
      systematic_rate: chance of the demonstrator's own habitual error where it applies.
    """
    chance, errors = jax.random.split(key)
    rng = generator(errors)
    finished = []
    for episode in engine.start(tasks, 1, chance):
        while not episode.ended:
            if len(episode.turns) == engine.num_turns:
                raise engine.still_running()
            text = engine.environment.demonstrate(
                episode.state,
                int(rng.integers(2**62)),
                error_rate=error_rate,
                systematic_rate=systematic_rate,
            )
            action = (*engine.template.tokenizer.encode(text), engine.template.end_id)
            log_probs = np.zeros(len(action), np.float32)
            episode = engine.act(episode, engine.context_of(episode), action, log_probs, 0)
        finished.append(episode)
    return EpisodeBatch(tuple(finished), engine.num_turns, engine.discount)
