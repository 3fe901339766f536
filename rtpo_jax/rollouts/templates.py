"""Templates: how a question, an observation and a message boundary become token ids."""

import dataclasses
from typing import Protocol

TokenIds = tuple[int, ...]


class Tokenizer(Protocol):
    """Text to ids and back."""

    pad_id: int
    end_id: int  # ends an action
    vocab_size: int

    def encode(self, text: str) -> TokenIds:
        """Ids of a text."""

    def decode(self, ids: TokenIds) -> str:
        """Text of ids, markers left out."""


class Template(Protocol):
    """Renders everything in a context that the policy did not choose itself."""

    tokenizer: Tokenizer

    @property
    def end_id(self) -> int:
        """Id that ends an action."""

    def opening(self, question: str) -> TokenIds:
        """Ids of the opening question, up to where the first action starts."""

    def feedback(self, observation: str, *, closed: bool) -> TokenIds:
        """Ids between an action and the next one; `closed` says the action ended with `end_id`."""

    def action_text(self, action: TokenIds) -> str:
        """The text of an action as the environment reads it."""


@dataclasses.dataclass(frozen=True)
class SymbolTemplate:
    """Question and observations as bare symbols; the end-of-action id separates messages."""

    tokenizer: Tokenizer

    @property
    def end_id(self) -> int:
        """Id that ends an action."""
        return self.tokenizer.end_id

    def opening(self, question: str) -> TokenIds:
        """The bare question."""
        return self.tokenizer.encode(question)

    def feedback(self, observation: str, *, closed: bool) -> TokenIds:
        """The observation, after the end of the action where the policy left it out."""
        return (() if closed else (self.end_id,)) + self.tokenizer.encode(observation)

    def action_text(self, action: TokenIds) -> str:
        """Decoded action without markers."""
        return self.tokenizer.decode(action)


@dataclasses.dataclass(frozen=True)
class ChatMLTemplate:
    """ChatML messages, ``<|im_start|>role\\ncontent<|im_end|>\\n``; feedback is a user message.

    The policy's action ends with ``<|im_end|>`` (the tokenizer's `end_id`). The newline that follows
    it belongs to the template, carries no loss, and stands in every later context.
    """

    tokenizer: Tokenizer
    system: str = ""

    @property
    def end_id(self) -> int:
        """Id that ends an action."""
        return self.tokenizer.end_id

    def opening(self, question: str) -> TokenIds:
        """System message, if any, the question as user message, the start of the reply."""
        system = f"<|im_start|>system\n{self.system}<|im_end|>\n" if self.system else ""
        return self.tokenizer.encode(system + self._user(question))

    def feedback(self, observation: str, *, closed: bool) -> TokenIds:
        """The observation, after the end of the action where the policy left it out."""
        return (() if closed else (self.end_id,)) + self.tokenizer.encode(
            "\n" + self._user(observation)
        )

    def action_text(self, action: TokenIds) -> str:
        """Decoded action without markers."""
        return self.tokenizer.decode(action)

    @staticmethod
    def _user(text: str) -> str:
        return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
