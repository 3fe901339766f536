"""Nested arithmetic modulo 100 with a calculator the agent may call.

Question `17*4+4-2+5?`. Action `Q17*4` calls the calculator on one operation. If the operation may
be done next in the current expression, the reply is the reduced expression, `>68+4-2+5.`, else the
number alone, `>68.`. `A75` answers and ends the episode, whether or not anything was called.
"""

import random
from dataclasses import dataclass, field, replace

from rtpo_jax.envs.chance import Chance, pick_other, uniform
from rtpo_jax.envs.checks import check_choice, check_integer, check_probability, check_seed
from rtpo_jax.envs.episode import (
    FAILED_REPLY,
    MALFORMED_REPLY,
    Episode,
    check_action,
    check_running,
    fork_state,
    step_to,
)
from rtpo_jax.envs.expressions import (
    MODULUS,
    compute,
    evaluate,
    find_operation,
    first_operation,
    is_number,
    is_operation,
    random_expression,
    split_operation,
    substitute,
)
from rtpo_jax.envs.protocol import Outcome, Step

_VALUES = range(MODULUS)


@dataclass(frozen=True, slots=True)
class ArithmeticTask:
    """An expression and its value, 0 to 99."""

    seed: int
    expression: str
    answer: int


@dataclass(frozen=True, slots=True)
class ArithmeticState:
    """Where an episode stands.

    expression: reduced as far as replies have shown; an untrue reply stays in it.
    doomed: whether a fatal error was made, after which no answer succeeds.
    """

    task: ArithmeticTask
    episode: Episode
    expression: str
    doomed: bool = False


@dataclass(frozen=True)
class Arithmetic:
    """Arithmetic modulo 100; operations from left to right without precedence, parentheses first.

    num_operations: operations of the question. num_turns = num_operations + 1 + slack_turns.
    nesting: largest depth of parentheses, 0 for a flat chain. max_operand: operands are 1 to this.
    slack_turns: turns to spare for repairs.
    errors: "repairable": a wrong call costs a turn. "fatal": from the first malformed action or
        the first call that cannot be done next in the expression, the episode is doomed: it goes
        on as usual until it is answered or out of turns, shows nothing of it, and cannot succeed.
    chance: a failed call is replied to by `>~.`; a noisy one computes with another number.

    Reward: 1 at the end if the answer is the question's value and the episode is not doomed, else
    0, plus luck. Malformed actions cost a turn and are replied to by `>!.`. An episode that is
    out of turns ends unanswered. Raises ValueError for settings out of range.
    """

    num_operations: int = 4
    nesting: int = 0
    max_operand: int = 9
    slack_turns: int = 0
    errors: str = "repairable"
    chance: Chance = field(default_factory=Chance)

    def __post_init__(self) -> None:
        check_integer("num_operations", self.num_operations, 1)
        check_integer("nesting", self.nesting, 0)
        check_integer("max_operand", self.max_operand, 1, MODULUS - 1)
        check_integer("slack_turns", self.slack_turns, 0)
        check_choice("errors", self.errors, ("repairable", "fatal"))

    @property
    def num_turns(self) -> int:
        """Largest number of turns: one per operation, the answer, and the slack."""
        return self.num_operations + 1 + self.slack_turns

    @property
    def symbols(self) -> str:
        """Characters of questions, well-formed actions and observations, each once."""
        parentheses = "()" if self.nesting and self.num_operations > 1 else ""
        return "0123456789+-*QA?>.!~" + parentheses

    def make_task(self, seed: int) -> ArithmeticTask:
        """Return the task with this seed."""
        seed = check_seed(seed)
        expression = random_expression(
            random.Random(f"arithmetic:{seed}"), self.num_operations, self.nesting, self.max_operand
        )
        return ArithmeticTask(seed=seed, expression=expression, answer=evaluate(expression))

    def reset(self, task: ArithmeticTask) -> tuple[ArithmeticState, str]:
        """Return the first state and the question, e.g. `17*4+4-2+5?`."""
        episode = Episode(stream=task.seed)
        state = ArithmeticState(task=task, episode=episode, expression=task.expression)
        return state, f"{task.expression}?"

    def step(self, state: ArithmeticState, action_text: str) -> Step:
        """Return what a call, an answer or a malformed action leads to."""
        check_action(state.episode, action_text)
        verb, content = action_text[:1], action_text[1:]
        if verb == "Q" and is_operation(content):
            return self._call(state, content)
        if verb == "A" and is_number(content):
            success = int(content) == state.task.answer and not state.doomed
            episode = state.episode.next_turn(
                self.chance, self.num_turns, finished=True, success=success
            )
            return step_to(replace(state, episode=episode), "")
        episode = state.episode.next_turn(self.chance, self.num_turns, malformed=1)
        doomed = state.doomed or self.errors == "fatal"
        return step_to(replace(state, episode=episode, doomed=doomed), MALFORMED_REPLY)

    def _call(self, state: ArithmeticState, operation: str) -> Step:
        expression, turn = state.expression, state.episode.turn
        reducible = find_operation(expression, operation) >= 0
        doomed = state.doomed or (self.errors == "fatal" and not reducible)
        episode = state.episode.next_turn(self.chance, self.num_turns, tool_calls=1)
        state = replace(state, episode=episode, doomed=doomed)
        if self.chance.tool_fails(episode.stream, turn):
            return step_to(state, FAILED_REPLY)
        value = compute(operation)
        if self.chance.reply_is_wrong(episode.stream, turn):
            value = pick_other(_VALUES, value, episode.stream, turn, "untruth")
        if not reducible:
            return step_to(state, f">{value}.")
        expression = substitute(expression, operation, value)
        return step_to(replace(state, expression=expression), f">{expression}.")

    def fork(self, state: ArithmeticState, seed: int) -> ArithmeticState:
        """Return the same state with everything undecided to be drawn from stream `seed`."""
        return fork_state(state, seed)

    def outcome(self, state: ArithmeticState) -> Outcome:
        """Return success and counts of a running or ended state."""
        return state.episode.outcome

    def demonstrate(
        self, state: ArithmeticState, seed: int, *, error_rate: float, systematic_rate: float
    ) -> str:
        """Return the expert's action: call the leftmost operation that may be done, then answer.

        Random mistake: another right operand in a call that may not be done next, or another
        answer. Systematic mistake: `*` is called as `+` (in a nested expression that sum may, now
        and then, be there as well and be no mistake).
        """
        check_probability("error_rate", error_rate)
        check_probability("systematic_rate", systematic_rate)
        check_running(state.episode)
        turn, expression = state.episode.turn, state.expression
        mistaken = uniform("demo", seed, turn, "mistaken") < error_rate
        operation = first_operation(expression)
        if operation is None:
            value = int(expression)
            return f"A{pick_other(_VALUES, value, 'demo', seed, turn) if mistaken else value}"
        misled = uniform("demo", seed, turn, "misled") < systematic_rate
        if misled and "*" in operation:
            return f"Q{operation.replace('*', '+')}"
        return f"Q{_spoil(expression, operation, seed, turn) if mistaken else operation}"


def _spoil(expression: str, operation: str, seed: int, turn: int) -> str:
    left, operator, right = split_operation(operation)
    attempt = 0
    while find_operation(expression, operation) >= 0:
        other = pick_other(_VALUES, right, "demo", seed, turn, attempt)
        operation = f"{left}{operator}{other}"
        attempt += 1
    return operation
