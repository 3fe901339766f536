"""One small agent on a generated text environment: everything a toy run is assembled from."""

import dataclasses
from functools import cached_property

import jax

from rtpo_jax.algorithms import GRPO, RTPO, Method
from rtpo_jax.envs import Chance, Lookup, remaining_question
from rtpo_jax.models import SymbolTokenizer, TransformerConfig, init
from rtpo_jax.rollouts import (
    LanguageModelLogProbs,
    RolloutEngine,
    Sampler,
    Scorer,
    Summary,
    SymbolTemplate,
)
from rtpo_jax.training import Updater, WarmStart, adamw

TASKS_PER_RUN = 10**7  # task seeds of one run; held-out tasks are below, runs above
ACTION_TOKENS = 6  # longest well-formed action and its end


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToyConfig:
    """The task, the warm start and the comparison; every size in one place."""

    seed: int = 0  # decides parameters, tasks, chance and sampling
    num_hops: int = 4  # queries needed before the answer; an episode has num_hops + 1 turns
    slack_turns: int = 0  # turns to spare for repairing a wrong one
    tool_failure: float = 0.0  # chance that a query is not answered
    observation_noise: float = 0.0  # chance that a reply is wrong
    luck: float = 0.0  # hidden: the final reward is this much higher or lower, by a coin flip
    warm_start_steps: int = 400  # optimiser steps of imitation
    warm_start_episodes: int = 4000  # demonstrated episodes
    token_budget: int = 120_000  # generated tokens of each method
    tasks_per_iteration: int = 32  # tasks rolled out in an iteration
    grpo_group_size: int = 8  # GRPO: trajectories per task
    rtpo_group_size: int = 4  # RTPO: G; a boundary gets G - 1 siblings
    learning_rate: float = 3e-4  # AdamW, of every method
    temperature: float = 1.0  # of sampling in training and in sampled evaluation
    evaluations: int = 6  # evaluations per method, equally spaced in tokens
    evaluation_tasks: int = 256  # held-out tasks of an evaluation

    def __post_init__(self):
        at_least = {
            "seed": 0,
            "warm_start_steps": 2,
            "warm_start_episodes": 1,
            "token_budget": 1,
            "tasks_per_iteration": 1,
            "grpo_group_size": 2,
            "rtpo_group_size": 3,
            "evaluations": 1,
            "evaluation_tasks": 1,
        }
        for name, least in at_least.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)}: use {least} or more")
        for name, most in {"seed": 2**31 - 1, "evaluation_tasks": TASKS_PER_RUN}.items():
            if getattr(self, name) > most:
                raise ValueError(f"{name}={getattr(self, name)}: use at most {most}")
        for name in ("learning_rate", "temperature"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name}={getattr(self, name)}: use a finite number above 0")
        _ = self.environment  # the environment checks its own settings

    @property
    def environment(self) -> Lookup:
        """The search task."""
        chance = Chance(
            tool_failure=self.tool_failure,
            observation_noise=self.observation_noise,
            luck=self.luck,
        )
        return Lookup(num_hops=self.num_hops, slack_turns=self.slack_turns, chance=chance)

    @property
    def warm_start(self) -> WarmStart:
        """Settings of the supervised phase."""
        return WarmStart(steps=self.warm_start_steps)

    @property
    def methods(self) -> dict[str, Method]:
        """What is compared, in order. Minibatches give GRPO as many steps as RTPO has stages."""
        num_turns = self.environment.num_turns
        grpo = GRPO(group_size=self.grpo_group_size, num_minibatches=num_turns)
        return {
            "GRPO, full history": dataclasses.replace(grpo, context="full_history"),
            "GRPO, recorded contexts": grpo,
            "RTPO": RTPO(group_size=self.rtpo_group_size),
        }


class ToyAgent:
    """Engine, model and update steps of a `ToyConfig`."""

    def __init__(self, config: ToyConfig):
        self.config = config
        tokenizer = SymbolTokenizer(config.environment.symbols)
        self.model = TransformerConfig.tiny(tokenizer.vocab_size)
        num_turns = config.environment.num_turns
        question = 3 + config.num_hops  # start entity, relations, question mark
        exchange = ACTION_TOKENS + 5  # an unclosed action, its end, the longest reply
        context = 2 * question  # the question, a separator, what is left to ask
        # At this size the CPU is limited by memory: recomputing is faster than keeping activations.
        self.log_prob_fn = LanguageModelLogProbs(self.model, config.temperature, remat=True)
        self.engine = RolloutEngine(
            config.environment,
            SymbolTemplate(tokenizer),
            Summary(remaining_question),
            Sampler(
                self.model,
                tokenizer.end_id,
                tokenizer.pad_id,
                max_new_tokens=ACTION_TOKENS,
                context_buckets=(context,),
            ),
            Scorer(self.log_prob_fn),
            temperature=config.temperature,
            length_buckets=(context + ACTION_TOKENS, question + num_turns * exchange),
            action_buckets=(ACTION_TOKENS, num_turns * ACTION_TOKENS),
        )

    @cached_property
    def imitation(self) -> Updater:
        """Update steps of the supervised phase."""
        return Updater(self.log_prob_fn, self.config.warm_start.optimizer)

    @cached_property
    def reinforcement(self) -> Updater:
        """Update steps of every method."""
        return Updater(self.log_prob_fn, adamw(self.config.learning_rate))

    def initial_params(self) -> dict:
        """Random parameters of the run's seed."""
        return init(self.model, self.key("parameters"))

    def key(self, purpose: str) -> jax.Array:
        """The run's random key for one purpose."""
        purposes = ("parameters", "demonstrations", "batches", "evaluation", *self.config.methods)
        return jax.random.fold_in(jax.random.key(self.config.seed), purposes.index(purpose))

    def training_tasks(self, first: int, count: int) -> list:
        """Tasks number `first` on of the run's own stream; methods see the same ones."""
        start = (1 + self.config.seed) * TASKS_PER_RUN + first
        return [self.config.environment.make_task(start + i) for i in range(count)]

    def demonstrated_tasks(self) -> list:
        """Tasks of the warm start: the second half of the run's stream, never met again."""
        return self.training_tasks(TASKS_PER_RUN // 2, self.config.warm_start_episodes)

    def evaluation_tasks(self) -> list:
        """The held-out tasks, the same for every seed and method; never trained on."""
        tasks = range(self.config.evaluation_tasks)
        return [self.config.environment.make_task(i) for i in tasks]
