"""One token per character, for models trained here from nothing."""

import dataclasses
from collections.abc import Iterable


@dataclasses.dataclass(frozen=True)
class SymbolTokenizer:
    """Ids 0 = padding, 1 = end of action, then one id per character of ``symbols``, in order.

    ``decode(encode(text)) == text`` for every text over ``symbols``.

    Raises ValueError when ``symbols`` is empty or repeats a character.
    """

    symbols: str

    pad_id = 0
    end_id = 1

    def __post_init__(self):
        if not self.symbols:
            raise ValueError("symbols is empty; give the characters of the vocabulary")
        repeated = sorted({c for c in self.symbols if self.symbols.count(c) > 1})
        if repeated:
            raise ValueError(f"symbols repeats {repeated}; give each character once")

    @property
    def vocab_size(self) -> int:
        """Number of ids: the symbols, padding and end of action."""
        return len(self.symbols) + 2

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of the characters of ``text``, without an end of action; ValueError if unknown."""
        for character in text:
            if character not in self.symbols:
                raise ValueError(
                    f"text has {character!r}, which is not in symbols {self.symbols!r}; "
                    "add it to symbols or remove it from the text"
                )
        return tuple(self.symbols.index(character) + 2 for character in text)

    def decode(self, ids: Iterable[int]) -> str:
        """Characters of ``ids``, padding and end of action dropped; ValueError if no such id."""
        ids = [int(i) for i in ids]
        for i in ids:
            if not 0 <= i < self.vocab_size:
                raise ValueError(f"ids has {i}; ids are 0 to {self.vocab_size - 1}")
        return "".join(self.symbols[i - 2] for i in ids if i >= 2)
