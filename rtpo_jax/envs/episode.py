"""The part of a state that every environment shares: clock, stream, luck and counts."""

from dataclasses import dataclass, replace
from typing import Any

from rtpo_jax.envs.chance import Chance
from rtpo_jax.envs.checks import check_seed
from rtpo_jax.envs.protocol import Outcome, Step

MALFORMED_REPLY = ">!."
FAILED_REPLY = ">~."


@dataclass(frozen=True, slots=True)
class Episode:
    """Clock and accounts of one running or ended episode; immutable.

    stream: integer from which everything still undecided will be drawn.
    turn: number of turns taken. luck: drawn when turn 0 ends, 0.0 before and when switched off.
    """

    stream: int
    turn: int = 0
    luck: float = 0.0
    ended: bool = False
    success: bool = False
    tool_calls: int = 0
    malformed: int = 0

    @property
    def reward(self) -> float:
        """Reward of the turn just taken: 0 before the end, then 1 for success plus the luck."""
        return float(self.success) + self.luck if self.ended else 0.0

    @property
    def outcome(self) -> Outcome:
        """Success and counts, as `TurnEnvironment.outcome` reports them."""
        return Outcome(self.success, self.tool_calls, self.malformed)

    def next_turn(
        self,
        chance: Chance,
        num_turns: int,
        *,
        finished: bool = False,
        success: bool = False,
        tool_calls: int = 0,
        malformed: int = 0,
    ) -> "Episode":
        """Return the episode after one more turn.

        It has ended when `finished` (the action closed it) or when all `num_turns` are used up;
        `success` counts only for an action that closed it. The other two are added to the counts.
        """
        return Episode(
            stream=self.stream,
            turn=self.turn + 1,
            luck=chance.draw_luck(self.stream) if self.turn == 0 else self.luck,
            ended=finished or self.turn + 1 >= num_turns,
            success=finished and success,
            tool_calls=self.tool_calls + tool_calls,
            malformed=self.malformed + malformed,
        )


def step_to(state: Any, observation: str) -> Step:
    """The `Step` that leads to `state`; an ended episode shows nothing more."""
    episode = state.episode
    return Step(state, "" if episode.ended else observation, episode.reward, episode.ended)


def fork_state(state: Any, seed: int) -> Any:
    """Return `state` with its stream replaced by `seed`.

    What was decided stays (luck once drawn, replies already shown); the rest is drawn anew. Equal
    seeds give equal futures, so siblings need different ones. Raises ValueError for a non-integer.
    """
    return replace(state, episode=replace(state.episode, stream=check_seed(seed)))


def check_running(episode: Episode) -> None:
    """Raise ValueError if the episode has ended."""
    if episode.ended:
        raise ValueError(
            f"state has ended after {episode.turn} turns; act in an earlier state or reset"
        )


def check_action(episode: Episode, action_text: str) -> None:
    """Raise ValueError if the episode has ended or the action is not text."""
    check_running(episode)
    if not isinstance(action_text, str):
        raise ValueError(f"action_text is {action_text!r}; give the action as a string")
