"""An engine without a model: actions and scores are random numbers, episodes and rows are real."""

import types

import jax
import numpy as np

from rtpo_jax.algorithms import Scores
from rtpo_jax.envs import Chance, Lock
from rtpo_jax.models import SymbolTokenizer
from rtpo_jax.rollouts import FullHistory, RolloutEngine, Samples, SymbolTemplate, Usage

MOST_TOKENS = 3  # of an action


class RandomSampler:
    """One or two random letters a turn and the end id, with random log-probabilities."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.config = types.SimpleNamespace(vocab_size=tokenizer.vocab_size)

    def sample(self, params, contexts, key, temperature=1.0):
        del params, temperature
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        letters = self.tokenizer.encode("ab")
        actions = []
        for _ in contexts:
            junk = rng.choice(letters, rng.integers(1, MOST_TOKENS), p=(0.7, 0.3)).tolist()
            actions.append((*junk, self.tokenizer.end_id))
        log_probs = [rng.normal(-1, 0.3, len(a)).astype(np.float32) for a in actions]
        return Samples(actions, log_probs, 0)


class RandomScorer:
    """Scores near the behaviour's log-probabilities: a policy that has moved by `spread`."""

    log_prob_fn = types.SimpleNamespace(temperature=1.0)

    def __init__(self, spread=0.3, seed=0):
        self.spread, self.seed = spread, seed

    def __call__(self, params, rows):
        del params
        rng = np.random.default_rng(self.seed)
        moved, entropies, values = rng.normal(size=(3, *rows.action_mask.shape))
        log_probs = np.where(
            rows.action_mask, rows.behavior_log_probs + self.spread * moved, 0
        ).astype(np.float32)
        blank = [np.where(rows.action_mask, x, 0).astype(np.float32) for x in (entropies, values)]
        return Scores(log_probs, np.abs(blank[0]), blank[1])


def scripted_engine(num_turns=4, spread=0.3):
    """A lock under random actions: two right ones end an episode, so lengths differ, luck pays."""
    environment = Lock(
        code_length=2,
        num_actions=2,
        errors="repairable",
        slack_turns=num_turns - 2,
        chance=Chance(luck=0.5),
    )
    tokenizer = SymbolTokenizer(environment.symbols)
    return RolloutEngine(
        environment,
        SymbolTemplate(tokenizer),
        FullHistory(),
        RandomSampler(tokenizer),
        RandomScorer(spread),
        length_buckets=(64,),
        action_buckets=(MOST_TOKENS, MOST_TOKENS * num_turns),
        usage=Usage(),
    )
