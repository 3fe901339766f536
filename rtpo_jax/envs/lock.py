"""Combination lock: one symbol a turn, reward only if every symbol was right.

With the default settings this is the tabular lock in text: action `a` is tabular action 0, and if
each right action has probability p, the value of the untouched lock with k symbols done is
p ** (code_length - k).
"""

from dataclasses import dataclass, field, replace
from string import ascii_lowercase, ascii_uppercase, digits

from rtpo_jax.envs.chance import Chance, pick, pick_other, uniform
from rtpo_jax.envs.checks import check_choice, check_integer, check_probability, check_seed
from rtpo_jax.envs.episode import Episode, check_action, check_running, fork_state, step_to
from rtpo_jax.envs.protocol import Outcome, Step

_COUNTS = digits + ascii_uppercase
_SYSTEMATIC_PERIOD = 3


@dataclass(frozen=True, slots=True)
class LockTask:
    """A code; `a` repeated unless the environment draws codes."""

    seed: int
    code: str


@dataclass(frozen=True, slots=True)
class LockState:
    """Where an episode stands; position is the number of symbols of the code done so far."""

    task: LockTask
    episode: Episode
    position: int = 0


@dataclass(frozen=True)
class Lock:
    """Combination lock over the symbols a, b, c, ...

    code_length, num_actions: number of symbols of the code, and of symbols to choose from.
    random_code: False: the code is `aaa...` and the question `?`. True: a random code per task,
        shown in the question, `cab?`.
    show_progress: False: the observation counts the turns taken, `>2.`. True: it counts the symbols
        done and says whether the last action was right, `>2+.` or `>1-.`.
    errors: "fatal" (as in the tabular lock): after a wrong action the lock is dead and no later
        action is right; the episode still takes all its turns. "repairable": a wrong action costs a
        turn only, and the episode ends with the last right one.
    slack_turns: turns to spare, repairable only. num_turns = code_length + slack_turns.
    chance: luck, and observation_noise (the sign shown is the opposite one) with show_progress.
        There is no tool that could fail.

    Reward: 1 at the end if the whole code was entered, else 0, plus luck. An action that is not one
    symbol of the alphabet is a wrong action; it is counted as malformed and otherwise not told
    apart, because a lock shows no more than it must. Raises ValueError for settings out of range
    or without effect.
    """

    code_length: int = 4
    num_actions: int = 2
    random_code: bool = False
    show_progress: bool = False
    errors: str = "fatal"
    slack_turns: int = 0
    chance: Chance = field(default_factory=Chance)

    def __post_init__(self) -> None:
        check_integer("code_length", self.code_length, 1, len(_COUNTS))
        check_integer("num_actions", self.num_actions, 2, len(ascii_lowercase))
        check_choice("errors", self.errors, ("fatal", "repairable"))
        check_integer("slack_turns", self.slack_turns, 0, len(_COUNTS) - self.code_length)
        if self.errors == "fatal" and self.slack_turns:
            raise ValueError(
                f"slack_turns is {self.slack_turns} and has no use with errors='fatal'; "
                "set it to 0 or choose errors='repairable'"
            )
        if self.chance.tool_failure:
            raise ValueError(
                f"tool_failure is {self.chance.tool_failure}; a lock has no tool, set it to 0"
            )
        if self.chance.observation_noise and not self.show_progress:
            raise ValueError(
                f"observation_noise is {self.chance.observation_noise} and has no use without "
                "show_progress; set it to 0 or show_progress=True"
            )

    @property
    def num_turns(self) -> int:
        """Largest number of turns of an episode: one per symbol, and the slack."""
        return self.code_length + self.slack_turns

    @property
    def alphabet(self) -> str:
        """The actions, one symbol each."""
        return ascii_lowercase[: self.num_actions]

    @property
    def symbols(self) -> str:
        """Characters of questions, well-formed actions and observations, each once."""
        if self.show_progress:
            return self.alphabet + _COUNTS[: self.code_length] + "?>.+-"
        return self.alphabet + _COUNTS[1 : self.num_turns] + "?>."

    def make_task(self, seed: int) -> LockTask:
        """Return the task with this seed."""
        seed = check_seed(seed)
        if not self.random_code:
            return LockTask(seed=seed, code="a" * self.code_length)
        code = [pick(self.alphabet, "code", seed, place) for place in range(self.code_length)]
        return LockTask(seed=seed, code="".join(code))

    def reset(self, task: LockTask) -> tuple[LockState, str]:
        """Return the first state and the question: `?`, preceded by the code if it is random."""
        state = LockState(task=task, episode=Episode(stream=task.seed))
        return state, f"{task.code if self.random_code else ''}?"

    def step(self, state: LockState, action_text: str) -> Step:
        """Return what one symbol leads to."""
        check_action(state.episode, action_text)
        turn, position, code = state.episode.turn, state.position, state.task.code
        alive = self.errors == "repairable" or position == turn
        right = alive and action_text == code[position]
        position += right
        opened = position == len(code)
        malformed = len(action_text) != 1 or action_text not in self.alphabet
        episode = state.episode.next_turn(
            self.chance, self.num_turns, finished=opened, success=opened, malformed=int(malformed)
        )
        if not self.show_progress:
            count, sign = turn + 1, ""
        else:
            sign = "+" if right != self.chance.reply_is_wrong(episode.stream, turn) else "-"
            count = position
        observation = "" if episode.ended else f">{_COUNTS[count]}{sign}."
        return step_to(replace(state, episode=episode, position=position), observation)

    def fork(self, state: LockState, seed: int) -> LockState:
        """Return the same state with everything undecided to be drawn from stream `seed`."""
        return fork_state(state, seed)

    def outcome(self, state: LockState) -> Outcome:
        """Return success and counts of a running or ended state; there are no tool calls."""
        return state.episode.outcome

    def demonstrate(
        self, state: LockState, seed: int, *, error_rate: float, systematic_rate: float
    ) -> str:
        """Return the expert's action: the next symbol of the code.

        A dead lock is treated as if it were alive. Random mistake: one of the other symbols.
        Systematic mistake: at every third place of the code, the first included, the next symbol
        of the alphabet (after the last comes `a`).
        """
        check_probability("error_rate", error_rate)
        check_probability("systematic_rate", systematic_rate)
        check_running(state.episode)
        turn = state.episode.turn
        place = state.position if self.errors == "repairable" else turn
        symbol = state.task.code[place]
        misled = uniform("demo", seed, turn, "misled") < systematic_rate
        if misled and place % _SYSTEMATIC_PERIOD == 0:
            return self.alphabet[(self.alphabet.index(symbol) + 1) % self.num_actions]
        if uniform("demo", seed, turn, "mistaken") < error_rate:
            return pick_other(self.alphabet, symbol, "demo", seed, turn)
        return symbol
