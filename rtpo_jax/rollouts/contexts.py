"""Context managers: what the policy is given at a turn, as exact token ids.

A context manager is psi in c_k = psi(S_k) (RTPO, section 2.2): a pure function of the opening
question and the turns so far. Past actions enter a context as the ids that were sampled, never as
re-tokenised text.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Protocol

from rtpo_jax.rollouts.templates import Template, TokenIds


class PastTurn(Protocol):
    """The parts of a finished turn that a context may use."""

    action: TokenIds  # sampled ids, the end-of-action id included when the policy chose it
    observation: str  # the environment's reply


class ContextManager(Protocol):
    """c_k = psi(S_k): (template, question, past turns) -> token ids."""

    def __call__(self, template: Template, question: str, turns: Sequence[PastTurn]) -> TokenIds:
        """Token ids of the context."""


def feedback_of(template: Template, turn: PastTurn) -> TokenIds:
    """Token ids that follow a past action in a context: its end if left out, and the reply."""
    closed = bool(turn.action) and turn.action[-1] == template.end_id
    return template.feedback(turn.observation, closed=closed)


@dataclasses.dataclass(frozen=True)
class FullHistory:
    """The question and every turn since: psi = identity."""

    def __call__(self, template, question, turns) -> TokenIds:
        """Token ids of the context."""
        context = template.opening(question)
        for turn in turns:
            context += turn.action + feedback_of(template, turn)
        return context


@dataclasses.dataclass(frozen=True)
class LastTurns:
    """The question and the last `count` turns (action and observation)."""

    count: int = 1

    def __post_init__(self):
        if self.count < 1:
            raise ValueError(f"count={self.count}: keep at least 1 turn")

    def __call__(self, template, question, turns) -> TokenIds:
        """Token ids of the context."""
        return FullHistory()(template, question, turns[-self.count :])


@dataclasses.dataclass(frozen=True)
class LastObservation:
    """The question and the last observation, without the action that asked for it."""

    def __call__(self, template, question, turns) -> TokenIds:
        """Token ids of the context."""
        context = template.opening(question)
        if turns:
            context += template.feedback(turns[-1].observation, closed=False)
        return context


@dataclasses.dataclass(frozen=True)
class Summary:
    """The question and a summary that a fixed rule writes from the observations so far.

    `rule` maps the question and the observations of all past turns to text; an empty text leaves
    the summary out.
    """

    rule: Callable[[str, tuple[str, ...]], str]

    def __call__(self, template, question, turns) -> TokenIds:
        """Token ids of the context."""
        context = template.opening(question)
        summary = self.rule(question, tuple(turn.observation for turn in turns))
        if summary:
            context += template.feedback(summary, closed=False)
        return context
