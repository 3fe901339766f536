"""Turn environments with immutable, forkable states, and the tools and graders they use.

Toys with a small alphabet: `Lookup` (multi-hop search), `Arithmetic` (nested expressions with a
calculator), `Lock` (combination lock). Free text for real models: `Questions`. All follow
`TurnEnvironment`; how much chance there is in them is a `Chance`.
"""

from rtpo_jax.envs.answers import extract_number, parse_number, same_number
from rtpo_jax.envs.arithmetic import Arithmetic, ArithmeticState, ArithmeticTask
from rtpo_jax.envs.calculator import ToolError, calculate
from rtpo_jax.envs.chance import Chance
from rtpo_jax.envs.lock import Lock, LockState, LockTask
from rtpo_jax.envs.lookup import Lookup, LookupState, LookupTask, remaining_question
from rtpo_jax.envs.protocol import Outcome, Step, TurnEnvironment
from rtpo_jax.envs.question_files import load_questions
from rtpo_jax.envs.questions import (
    INSTRUCTIONS,
    Questions,
    QuestionState,
    QuestionTask,
    one_digit_sums,
)
from rtpo_jax.envs.tool_calls import MalformedCall, ToolCall, parse_tool_calls

__all__ = [
    "INSTRUCTIONS",
    "Arithmetic",
    "ArithmeticState",
    "ArithmeticTask",
    "Chance",
    "Lock",
    "LockState",
    "LockTask",
    "Lookup",
    "LookupState",
    "LookupTask",
    "MalformedCall",
    "Outcome",
    "QuestionState",
    "QuestionTask",
    "Questions",
    "Step",
    "ToolCall",
    "ToolError",
    "TurnEnvironment",
    "calculate",
    "extract_number",
    "load_questions",
    "one_digit_sums",
    "parse_number",
    "parse_tool_calls",
    "remaining_question",
    "same_number",
]
