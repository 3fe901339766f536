"""Chance in the environments: how much of it there is, and where it is drawn from.

Every draw is a fixed function of a stream (an integer kept in the state), the turn and the purpose
of the draw. The same task, stream and actions therefore give the same episode on every machine and
in every process, and a state forked to another stream redraws only what was not decided yet.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TypeVar

from rtpo_jax.envs.checks import check_probability

Option = TypeVar("Option")


def uniform(*parts: object) -> float:
    """Return a number in [0, 1) that is uniform over inputs and fixed for equal `parts`.

    `parts` (integers, strings) are joined to one text and hashed with BLAKE2b; the top 53 bits of
    the digest become the fraction. Python's own `hash` is salted per process and is not used.
    """
    digest = blake2b(":".join(map(str, parts)).encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


def pick(options: Sequence[Option], *parts: object) -> Option:
    """Return one of `options`, uniform, fixed for equal `parts`."""
    return options[int(uniform(*parts) * len(options))]


def pick_other(options: Sequence[Option], excluded: Option, *parts: object) -> Option:
    """Return one of `options` other than `excluded`, uniform, fixed for equal `parts`."""
    num_options = len(options)
    shift = 1 + int(uniform(*parts) * (num_options - 1))
    return options[(options.index(excluded) + shift) % num_options]


@dataclass(frozen=True)
class Chance:
    """What is random in an environment besides the policy. The default is: nothing.

    tool_failure: probability that a well-formed tool call returns an error instead of its reply.
    observation_noise: probability that the reply shown differs from the truth.
    luck: hidden from every observation; when turn 0 ends, +luck or -luck is drawn with equal chance
        and kept in the state. It is added to the terminal reward, in the reward's units. Siblings
        that branch at turn 1 or later share it, siblings that branch at turn 0 draw it anew.

    Raises ValueError for probabilities outside [0, 1] and for negative or non-finite luck.
    """

    tool_failure: float = 0.0
    observation_noise: float = 0.0
    luck: float = 0.0

    def __post_init__(self) -> None:
        check_probability("tool_failure", self.tool_failure)
        check_probability("observation_noise", self.observation_noise)
        if not isinstance(self.luck, (int, float)) or not 0 <= self.luck < math.inf:
            raise ValueError(f"luck is {self.luck!r}; give a finite number that is at least 0")

    def tool_fails(self, stream: int, turn: int, call: int = 0) -> bool:
        """Return whether tool call number `call` of this turn fails."""
        return self.tool_failure > 0 and uniform(stream, turn, "tool", call) < self.tool_failure

    def reply_is_wrong(self, stream: int, turn: int, call: int = 0) -> bool:
        """Return whether the reply to tool call number `call` of this turn shows an untruth."""
        noise = self.observation_noise
        return noise > 0 and uniform(stream, turn, "noise", call) < noise

    def draw_luck(self, stream: int) -> float:
        """Return the episode's luck: +luck or -luck with equal chance (0.0 when switched off)."""
        if self.luck == 0:
            return 0.0
        return float(self.luck) if uniform(stream, 0, "luck") < 0.5 else -float(self.luck)
