"""Free-text questions with a number as answer and a calculator, for real language models."""

import random
from dataclasses import dataclass, field, replace
from fractions import Fraction

from rtpo_jax.envs.answers import parse_number, same_number
from rtpo_jax.envs.calculator import ToolError, evaluate_expression, format_number
from rtpo_jax.envs.chance import Chance, uniform
from rtpo_jax.envs.checks import check_integer, check_probability, check_seed
from rtpo_jax.envs.episode import Episode, check_action, check_running, fork_state, step_to
from rtpo_jax.envs.protocol import Outcome, Step
from rtpo_jax.envs.tool_calls import MalformedCall, ToolCall, parse_tool_calls

INSTRUCTIONS = """
You may use a calculator. To call it, write
<tool_call>{"name": "calculator", "arguments": {"expression": "3*(4+5)"}}</tool_call>
and wait for the result. When you know the answer, write it as a number after ####, without a call.
"""
_SYSTEMATIC_PERIOD = 3


@dataclass(frozen=True, slots=True)
class QuestionTask:
    """One question with its gold answer; index is its place among the items."""

    seed: int
    index: int
    question: str
    answer: str


@dataclass(frozen=True, slots=True)
class QuestionState:
    """Where an episode stands."""

    task: QuestionTask
    episode: Episode


@dataclass(frozen=True)
class Questions:
    """Questions with exact numbers as answers; a turn either calls tools or answers.

    items: (question, answer) pairs; the task with seed s is item s modulo their number.
    num_turns: horizon. instructions: appended to every question; "" for none.
    A turn with one or more tool calls (readable or not) is replied to with one line per call and
    the episode goes on. A turn without is the answer: only the text of that last turn is graded,
    see `extract_number` for what is read as the answer.
    chance: a failed call is replied to by an error, a noisy one by a number that is 1 to 9 larger.

    Reward: 1 at the end if the answer equals the gold answer exactly, else 0, plus luck. Raises
    ValueError for no items, items that are not pairs of text, and gold answers that are no number.
    """

    items: tuple[tuple[str, str], ...]
    num_turns: int = 3
    instructions: str = INSTRUCTIONS
    chance: Chance = field(default_factory=Chance)

    def __post_init__(self) -> None:
        check_integer("num_turns", self.num_turns, 1)
        items = tuple(tuple(item) for item in self.items)
        if not items:
            raise ValueError("items is empty; give at least one (question, answer) pair")
        for index, item in enumerate(items):
            if len(item) != 2 or not all(isinstance(text, str) for text in item):
                raise ValueError(f"items[{index}] is {item!r}; give a (question, answer) text pair")
            if parse_number(item[1]) is None:
                raise ValueError(f"items[{index}] has the answer {item[1]!r}; give one number")
        object.__setattr__(self, "items", items)

    @property
    def symbols(self) -> str:
        """Empty: the text is free."""
        return ""

    def make_task(self, seed: int) -> QuestionTask:
        """Return item `seed` modulo the number of items."""
        seed = check_seed(seed)
        index = seed % len(self.items)
        question, answer = self.items[index]
        return QuestionTask(seed=seed, index=index, question=question, answer=answer)

    def reset(self, task: QuestionTask) -> tuple[QuestionState, str]:
        """Return the first state and the question, followed by the instructions."""
        state = QuestionState(task=task, episode=Episode(stream=task.seed))
        return state, f"{task.question}\n{self.instructions}".strip()

    def step(self, state: QuestionState, action_text: str) -> Step:
        """Return the tools' replies, or the reward of an answer."""
        check_action(state.episode, action_text)
        calls = parse_tool_calls(action_text)
        malformed = sum(isinstance(call, MalformedCall) for call in calls)
        episode = state.episode.next_turn(
            self.chance,
            self.num_turns,
            finished=not calls,
            success=same_number(action_text, state.task.answer),
            tool_calls=len(calls) - malformed,
            malformed=malformed,
        )
        replies = [self._reply(state.episode, place, call) for place, call in enumerate(calls)]
        return step_to(replace(state, episode=episode), "\n".join(replies))

    def _reply(self, episode: Episode, place: int, call: ToolCall | MalformedCall) -> str:
        if isinstance(call, MalformedCall):
            return f"error: {call.error}"
        if self.chance.tool_fails(episode.stream, episode.turn, place):
            return "error: the tool did not respond, call it again"
        try:
            value = _run_calculator(call)
        except ToolError as error:
            return f"error: {error}"
        if self.chance.reply_is_wrong(episode.stream, episode.turn, place):
            value += 1 + int(9 * uniform(episode.stream, episode.turn, "untruth", place))
        return format_number(value)

    def fork(self, state: QuestionState, seed: int) -> QuestionState:
        """Return the same state with everything undecided to be drawn from stream `seed`."""
        return fork_state(state, seed)

    def outcome(self, state: QuestionState) -> Outcome:
        """Return success and counts of a running or ended state."""
        return state.episode.outcome

    def demonstrate(
        self, state: QuestionState, seed: int, *, error_rate: float, systematic_rate: float
    ) -> str:
        """Return the expert's action, which is the answer without any tool call.

        Random mistake: a number 1 to 9 above the answer. Systematic mistake: in every third item,
        the first included, the number 1 above the answer.
        """
        check_probability("error_rate", error_rate)
        check_probability("systematic_rate", systematic_rate)
        check_running(state.episode)
        task, turn = state.task, state.episode.turn
        excess = 0
        if uniform("demo", seed, turn, "mistaken") < error_rate:
            excess = 1 + int(9 * uniform("demo", seed, turn))
        misled = uniform("demo", seed, turn, "misled") < systematic_rate
        if misled and task.index % _SYSTEMATIC_PERIOD == 0:
            excess = 1
        answer = format_number(parse_number(task.answer) + excess) if excess else task.answer
        return f"#### {answer}"


def _run_calculator(call: ToolCall) -> Fraction:
    if call.name != "calculator":
        raise ToolError(f"there is no tool {call.name[:40]!r}, the only one is 'calculator'")
    expression = call.arguments.get("expression")
    if not isinstance(expression, str):
        raise ToolError('the calculator needs an "expression" that is a string')
    return evaluate_expression(expression)


def one_digit_sums(num: int, seed: int) -> tuple[tuple[str, str], ...]:
    """Return `num` (question, answer) pairs such as `What is 3+4? Reply with just the number.`.

    Both terms are drawn uniformly from 0 to 9, with replacement, fixed by `seed`.
    """
    check_integer("num", num, 1)
    generator = random.Random(f"sums:{check_seed(seed)}")
    terms = [(generator.randrange(10), generator.randrange(10)) for _ in range(num)]
    return tuple(
        (f"What is {left}+{right}? Reply with just the number.", str(left + right))
        for left, right in terms
    )
