"""A resumable toy run: warm start, then every method from the same parameters at equal tokens.

Where a run stands is a `Position`; together with the arrays of the train state it is checkpointed
after every iteration (every 100 steps of the warm start), and every random choice follows from the
seed and the position. A run that is interrupted anywhere and resumed by the same versions on the
same machine therefore ends with the same numbers, bit for bit.
"""

import dataclasses
from pathlib import Path

import jax

from experiments.progress import LiveProgress
from experiments.toy_agent import ToyAgent
from paper_figures.comparison import WARM_START
from rtpo_jax.training import (
    Checkpoints,
    CompileCounter,
    MetricsFile,
    TrainState,
    create_state,
    demonstration_rows,
    evaluation_record,
    imitate,
    iterate,
    policy_of,
)

CHECKPOINT_STEPS = 100  # of the supervised phase


@dataclasses.dataclass
class Position:
    """Where a run stands, besides its arrays."""

    phase: int = 0  # 0 = warm start, then the methods in order; their number = finished
    iteration: int = 0  # iterations done in the phase
    tokens: int = 0  # generated tokens in the phase
    evaluations: int = 0  # evaluations done in the phase
    metrics_lines: int = 0
    checkpoint: int = 0  # number of the checkpoint that holds this position


class ToyRun:
    """Carries a run from wherever it stands to its end."""

    def __init__(self, agent: ToyAgent, directory: Path, progress: LiveProgress):
        self.agent = agent
        self.progress = progress
        self.phases = (WARM_START, *agent.config.methods)
        self.checkpoints = Checkpoints(directory / "checkpoints")
        self.position = Position()
        self.state = create_state(agent.initial_params(), agent.imitation.optimizer)
        self.start_params = agent.initial_params()  # what methods start from, once phase 0 is over
        newest = self.checkpoints.latest()
        if newest is not None:
            self._restore(newest)
        self.metrics = MetricsFile(directory / "metrics.jsonl", self.position.metrics_lines)
        self.compiled = CompileCounter()
        self._compiled_before = 0

    def run(self) -> None:
        """Go on until every phase is done."""
        while self.position.phase < len(self.phases):
            name = self.phases[self.position.phase]
            if self.position.phase == 0:
                self._warm_start()
                self.start_params = jax.tree.map(jax.numpy.copy, self.state.params)
            else:
                self._train(name)
            self._next_phase()
        self.checkpoints.close()

    def _warm_start(self) -> None:
        config, agent = self.agent.config, self.agent
        bar = self._bar(config.warm_start_steps, int(self.state.step))
        tasks, key = agent.demonstrated_tasks(), agent.key("demonstrations")
        rows = demonstration_rows(config.warm_start, agent.engine, tasks, key)

        def on_step(step: int, state: TrainState, metrics: dict) -> None:
            self.state = state
            bar(step, f"step {step}, {metrics['objective']:.3f} nats a token")
            if step % CHECKPOINT_STEPS == 0 or step == config.warm_start_steps:
                self._record("train", step=step, **metrics)
                self._save()

        key = agent.key("batches")
        self.state = imitate(config.warm_start, agent.imitation, self.state, rows, key, on_step)
        self._evaluate(greedy=True)

    def _train(self, name: str) -> None:
        config, agent, position = self.agent.config, self.agent, self.position
        bar = self._bar(config.token_budget, position.tokens)
        method, success = config.methods[name], None
        while position.tokens < config.token_budget:
            agent.engine.usage.reset()
            tasks = agent.training_tasks(
                position.iteration * config.tasks_per_iteration, config.tasks_per_iteration
            )
            key = jax.random.fold_in(agent.key(name), position.iteration)
            self.state, metrics = iterate(
                method, agent.engine, agent.reinforcement, self.state, tasks, key
            )
            usage = agent.engine.usage
            position.tokens += usage.generated_tokens
            position.iteration += 1
            speed = usage.generated_tokens / metrics["iteration_seconds"]
            self._record(
                "train",
                tokens=position.tokens,
                iteration=position.iteration,
                tokens_per_second=speed,
                **dataclasses.asdict(usage),
                **metrics,
            )
            due = min(config.evaluations, int(self._share_done() * config.evaluations))
            if due > position.evaluations:
                success = self._evaluate(greedy=due == config.evaluations)
                position.evaluations = due
            status = f"success {metrics['success']:.2f}"
            status += f", held out {success:.2f}" if success is not None else ""
            status += f", step {int(self.state.step)}, {speed:,.0f} tokens/s"
            bar(min(position.tokens, config.token_budget), status)
            self._save()

    def _bar(self, total: float, done: float):
        """Progress of the phase, numbered."""
        index = self.position.phase
        return self.progress.phase(
            f"{index + 1}/{len(self.phases)} {self.phases[index]}", total, done
        )

    def _share_done(self) -> float:
        return self.position.tokens / self.agent.config.token_budget

    def _evaluate(self, greedy: bool) -> float:
        """Success on the held-out tasks, sampled and, where asked for, greedy; recorded."""
        agent, policy = self.agent, policy_of(self.state)
        tasks, key = agent.evaluation_tasks(), agent.key("evaluation")
        record = evaluation_record(agent.engine, policy, tasks, key, greedy=greedy)
        self._record("evaluation", tokens=self.position.tokens, **record)
        return record["success_sampled"]

    def _record(self, kind: str, **values) -> None:
        """One line of metrics, with the programs compiled since the line before."""
        compiled, self._compiled_before = (
            self.compiled.count - self._compiled_before,
            self.compiled.count,
        )
        phase = self.phases[self.position.phase]
        self.metrics.write(phase=phase, kind=kind, compiled_programs=compiled, **values)

    def _next_phase(self) -> None:
        """Every method starts from the warm-started parameters and a fresh optimiser."""
        self.position.phase += 1
        self.position.iteration = self.position.tokens = self.position.evaluations = 0
        if self.position.phase < len(self.phases):
            self.state = create_state(self.start_params, self.agent.reinforcement.optimizer)
        self._save()

    def _arrays(self) -> dict:
        return {"state": self.state, "start_params": self.start_params}

    def _save(self) -> None:
        self.position.checkpoint += 1
        self.position.metrics_lines = self.metrics.lines
        number, position = self.position.checkpoint, dataclasses.asdict(self.position)
        self.checkpoints.save(number, self._arrays(), position)

    def _restore(self, number: int) -> None:
        self.position = Position(**self.checkpoints.position(number))
        if self.position.phase > 0:
            params = self.state.params
            self.state = create_state(params, self.agent.reinforcement.optimizer)
        restored = self.checkpoints.arrays(number, self._arrays())
        self.state, self.start_params = restored["state"], restored["start_params"]
