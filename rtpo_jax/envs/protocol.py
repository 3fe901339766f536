"""What an environment is: turns of text over immutable, forkable states."""

from typing import NamedTuple, Protocol, TypeVar

Task = TypeVar("Task")
State = TypeVar("State")


class Step(NamedTuple):
    """What one action leads to.

    state: the new state. observation: reply shown to the policy, "" once the episode has ended.
    reward: of this turn, received after the action. ended: whether it was the episode's last turn.
    """

    state: object
    observation: str
    reward: float
    ended: bool


class Outcome(NamedTuple):
    """What an episode amounts to so far: success (luck not counted) and counts of actions.

    success is False while the episode runs. tool_calls counts well-formed calls (failed ones
    included); malformed counts actions, or calls inside an action, that could not be read.
    """

    success: bool
    tool_calls: int
    malformed: int


class TurnEnvironment(Protocol[Task, State]):
    """A task in turns. All methods are pure: states are hashable values and are never changed.

    `make_task` and `demonstrate` are asked for by experiments and the warm start; acting and
    learning need the others only.

    num_turns: horizon H; an episode never takes more turns.
    symbols: every character that may occur in a question, a well-formed action or an observation;
        "" when the text is free. End-of-action tokens belong to the tokenizer, not to the text.
    """

    @property
    def num_turns(self) -> int:
        """Largest number of turns of an episode."""

    @property
    def symbols(self) -> str:
        """Characters of questions, well-formed actions and observations, each once."""

    def make_task(self, seed: int) -> Task:
        """Return the task with this seed; equal seeds give equal tasks."""

    def reset(self, task: Task) -> tuple[State, str]:
        """Return the first state, with the task's seed as its stream, and the opening question."""

    def step(self, state: State, action_text: str) -> Step:
        """Return what the action leads to. Raises ValueError in a state that has ended."""

    def fork(self, state: State, seed: int) -> State:
        """Return the same state with everything undecided to be drawn from stream `seed`."""

    def outcome(self, state: State) -> Outcome:
        """Return success and counts of a running or ended state."""

    def demonstrate(
        self, state: State, seed: int, *, error_rate: float, systematic_rate: float
    ) -> str:
        """Return the scripted expert's action in a running state, fixed by (state, seed).

        error_rate: probability of a random mistake, independent in every turn.
        systematic_rate: probability of the one fixed mistake in the turns that invite it, so that
            a learner that imitates has the mistake as its most likely action when this is large.
        """
