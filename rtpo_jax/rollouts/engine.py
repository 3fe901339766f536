"""The rollout engine: the turn loop over many episodes, boundary forks, and rows for training."""

import dataclasses
import math
import time
from collections.abc import Sequence

import jax

from rtpo_jax.algorithms import Policy, Rows, Scores
from rtpo_jax.envs import TurnEnvironment
from rtpo_jax.rollouts.contexts import ContextManager
from rtpo_jax.rollouts.episodes import Episode, EpisodeBatch, Turn
from rtpo_jax.rollouts.generators import generator
from rtpo_jax.rollouts.packing import training_rows
from rtpo_jax.rollouts.sampler import Sampler
from rtpo_jax.rollouts.scoring import Scorer
from rtpo_jax.rollouts.templates import Template


@dataclasses.dataclass
class Usage:
    """What the engine has spent since the counters were last reset."""

    generated_tokens: int = 0  # sampled by the policy
    prefill_tokens: int = 0  # context tokens run through the model for sampling
    sampling_seconds: float = 0.0
    environment_seconds: float = 0.0  # steps, context building, bookkeeping

    def reset(self) -> None:
        """Set all counters to zero."""
        self.__init__()


@dataclasses.dataclass(frozen=True)
class RolloutEngine:
    """Runs a policy in an environment, one batched turn after the other.

    Every random choice follows from the key given to a call: the environment's chance through one
    seed per trajectory, the policy's through the sampler's keys.
    """

    environment: TurnEnvironment
    template: Template
    context: ContextManager
    sampler: Sampler
    scorer: Scorer
    temperature: float = 1.0  # of sampling, and of the log-probabilities that go with it
    discount: float = 1.0  # between turns
    length_buckets: tuple[int, ...] = (32, 64, 128)  # row lengths L
    action_buckets: tuple[int, ...] = (8, 32, 64)  # chosen tokens a row, T
    usage: Usage = dataclasses.field(default_factory=Usage)

    def __post_init__(self):
        scored = getattr(self.scorer.log_prob_fn, "temperature", self.temperature)
        if scored != self.temperature:
            raise ValueError(
                f"temperature={self.temperature}: rows are scored at {scored}; use one temperature"
            )
        vocabulary, model = self.template.tokenizer.vocab_size, self.sampler.config.vocab_size
        if vocabulary > model:
            raise ValueError(
                f"vocab_size={model} of the model is below the tokenizer's {vocabulary}; raise it"
            )

    @property
    def num_turns(self) -> int:
        """Horizon H of the environment."""
        return self.environment.num_turns

    def rollout(
        self,
        policy: Policy,
        tasks: Sequence,
        copies: int,
        key: jax.Array,
        temperature: float | None = None,
    ) -> EpisodeBatch:
        """Run `copies` episodes of every task from the start to the end.

        Args:
          policy: parameters, and the version that is written into the rows.
          tasks: what the environment's reset() takes; equal tasks are different groups.
          copies: episodes per task; they differ in the environment's chance and in sampling.
          key: decides all of it.
          temperature: of sampling; None = the engine's, 0 = greedy.

        Raises:
          ValueError: nothing to run, a context that fits no bucket, a reward that is not finite.
          RuntimeError: the environment goes on after its last turn.
        """
        if not tasks or copies < 1:
            raise ValueError(f"{len(tasks)} tasks, copies={copies}: use at least one of both")
        chance, choices = jax.random.split(key)
        return self._finish(policy, self.start(tasks, copies, chance), choices, temperature)

    def start(self, tasks: Sequence, copies: int, key: jax.Array) -> list[Episode]:
        """Episodes before their first turn, `copies` of every task, each with its own chance."""
        starts = []
        for group, task in enumerate(tasks):
            state, question = self.environment.reset(task)
            starts += [Episode(task, group, question, state)] * copies
        starts = [dataclasses.replace(start, tree=tree) for tree, start in enumerate(starts)]
        return self._with_own_chance(starts, key)

    def continue_from(
        self,
        policy: Policy,
        trunks: EpisodeBatch,
        turn: int,
        copies: int,
        key: jax.Array,
        *,
        include_trunks: bool = False,
    ) -> EpisodeBatch:
        """Fork `copies` siblings at boundary `turn` of every trunk that realised it.

        Siblings share the trunk's prefix and environment state; what chance has not yet decided is
        drawn anew for each. They act afresh at `turn` and continue with `policy` to the end. With
        `include_trunks` the trunks follow them in the batch, under their boundaries' ids.
        """
        # `split(key)` and `fold_in(key, 0)`, `fold_in(key, 1)` are the same keys: callers hand every
        # call (here: every turn) a key of its own, and a key is either split or folded, never both.
        realised = [i for i, trunk in enumerate(trunks.episodes) if trunk.realised(turn)]
        points = [(trunk, turn) for trunk in realised for _ in range(copies)]
        found = self.branch(policy, trunks, points, jax.random.fold_in(key, turn))
        if not include_trunks:
            return found
        members = [
            dataclasses.replace(trunks.episodes[trunk], boundary=boundary)
            for boundary, trunk in enumerate(realised)
        ]
        return dataclasses.replace(found, episodes=(*found.episodes, *members))

    def branch(
        self,
        policy: Policy,
        trunks: EpisodeBatch,
        points: Sequence[tuple[int, int]],
        key: jax.Array,
    ) -> EpisodeBatch:
        """One continuation for every point (index of a trunk, turn), in their order.

        A point may stand more than once; its continuations share a sibling id, the place of the
        point among the distinct ones. Each has its own chance for what is undecided at its turn.

        Raises:
          ValueError: a trunk did not act at the turn.
        """
        ids = {point: index for index, point in enumerate(dict.fromkeys(points))}
        starts = [
            dataclasses.replace(trunks.episodes[trunk].at_boundary(turn), boundary=ids[trunk, turn])
            for trunk, turn in points
        ]
        chance, choices = jax.random.split(key)
        return self._finish(policy, self._with_own_chance(starts, chance), choices, None)

    def rows(
        self, batch: EpisodeBatch, context: str = "recorded", turns: Sequence[int] | None = None
    ) -> Rows:
        """Training rows of the chosen turns (None = all), under the named conditioning context."""
        return training_rows(
            batch,
            self.template,
            context,
            turns,
            length_buckets=self.length_buckets,
            action_buckets=self.action_buckets,
        )

    def score(self, policy: Policy, rows: Rows) -> Scores:
        """Scores [N, T] of the rows' chosen tokens under `policy`."""
        return self.scorer(policy.params, rows)

    def _with_own_chance(self, starts: list[Episode], key: jax.Array) -> list[Episode]:
        """Give each episode its own stream for everything that chance has not yet decided."""
        seeds = generator(key).integers(2**62, size=len(starts))
        return [
            dataclasses.replace(start, state=self.environment.fork(start.state, int(seed)))
            for start, seed in zip(starts, seeds, strict=True)
        ]

    def _finish(self, policy, episodes: list[Episode], key, temperature) -> EpisodeBatch:
        """Batched turns until every episode has ended."""
        temperature = self.temperature if temperature is None else temperature
        for turn in range(self.num_turns):
            live = [i for i, episode in enumerate(episodes) if not episode.ended]
            if not live:
                break
            started = time.perf_counter()
            contexts = [self.context_of(episodes[i]) for i in live]
            asked = time.perf_counter()
            samples = self.sampler.sample(
                policy.params, contexts, jax.random.fold_in(key, turn), temperature
            )
            answered = time.perf_counter()
            for i, context, action, log_probs in zip(
                live, contexts, samples.actions, samples.log_probs, strict=True
            ):
                episodes[i] = self.act(episodes[i], context, action, log_probs, policy.version)
            self.usage.generated_tokens += sum(map(len, samples.actions))
            self.usage.prefill_tokens += samples.prefill_tokens
            self.usage.sampling_seconds += answered - asked
            self.usage.environment_seconds += time.perf_counter() - answered + asked - started
        if any(not episode.ended for episode in episodes):
            raise self.still_running()
        return EpisodeBatch(tuple(episodes), self.num_turns, self.discount)

    def still_running(self) -> RuntimeError:
        """The error of an environment that goes on after its last turn."""
        return RuntimeError(
            f"an episode of {type(self.environment).__name__} is still running after "
            f"num_turns={self.num_turns} turns: its step() must report ended"
        )

    def context_of(self, episode: Episode) -> tuple[int, ...]:
        """What the policy is given at the episode's next turn."""
        return self.context(self.template, episode.question, episode.turns)

    def act(self, episode: Episode, context, action, log_probs, version: int) -> Episode:
        """Step the environment with a sampled action and record the turn."""
        step = self.environment.step(episode.state, self.template.action_text(action))
        if not math.isfinite(step.reward):
            raise ValueError(
                f"reward={step.reward}: step() of {type(self.environment).__name__} has to pay a "
                "finite reward"
            )
        turn = Turn(
            state=episode.state,
            context=context,
            action=action,
            log_probs=log_probs,
            observation=step.observation,
            reward=step.reward,
            policy_version=version,
        )
        return dataclasses.replace(
            episode, state=step.state, turns=(*episode.turns, turn), ended=step.ended
        )
