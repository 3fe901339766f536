"""The tokenizer stored in a GGUF file. Needs the ``gguf`` extra."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rtpo_jax.models.gguf import metadata, open_gguf

_CONTROL_TOKEN = 3  # token_type of tokens that never come from ordinary text


@dataclasses.dataclass(frozen=True)
class ChatTokenizer:
    """Text to ids and back; markers of the chat format written in a text become single ids."""

    backend: Any  # tokenizers.Tokenizer
    pad_id: int
    end_id: int  # ends the assistant's message
    special_ids: dict[str, int]  # marker -> id

    @property
    def vocab_size(self) -> int:
        """Number of ids, markers included."""
        return self.backend.get_vocab_size()

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of ``text``; nothing is added at either end."""
        return tuple(self.backend.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ``ids`` with markers skipped; ValueError if there is no such id."""
        ids = [int(i) for i in ids]
        for i in ids:
            if not 0 <= i < self.vocab_size:
                raise ValueError(f"ids has {i}; ids are 0 to {self.vocab_size - 1}")
        return self.backend.decode(ids, skip_special_tokens=True)


def load_gguf_tokenizer(path: str | Path) -> ChatTokenizer:
    """The byte-level BPE tokenizer of a GGUF file (``gpt2`` model, ``smollm`` pre-tokenizer).

    Digits are split one by one, then text by the GPT-2 pattern; merges, vocabulary, markers and the
    ids of padding and end come from the file.

    Raises ValueError for another kind of tokenizer or a missing key.
    """
    reader = open_gguf(path)
    for key, supported in (("model", "gpt2"), ("pre", "smollm")):
        kind = metadata(reader, f"tokenizer.ggml.{key}")
        if kind != supported:
            raise ValueError(f"tokenizer.ggml.{key} is {kind!r}; only {supported!r} is supported")
    names = metadata(reader, "tokenizer.ggml.tokens")
    types = metadata(reader, "tokenizer.ggml.token_type")
    numbered = enumerate(zip(names, types, strict=True))
    special = {name: i for i, (name, kind) in numbered if kind == _CONTROL_TOKEN}
    return ChatTokenizer(
        backend=_byte_level_bpe(names, metadata(reader, "tokenizer.ggml.merges"), special),
        pad_id=metadata(reader, "tokenizer.ggml.padding_token_id"),
        end_id=metadata(reader, "tokenizer.ggml.eos_token_id"),
        special_ids=special,
    )


def _byte_level_bpe(names: list[str], merges: list[str], special: dict[str, int]):
    try:
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    except ImportError as error:
        raise ImportError('GGUF tokenizers need: pip install -e ".[gguf]"') from error
    vocabulary = {name: i for i, name in enumerate(names)}
    pairs = [tuple(merge.split(" ")) for merge in merges]
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
    digits = pre_tokenizers.Digits(individual_digits=True)
    pieces = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    backend.pre_tokenizer = pre_tokenizers.Sequence([digits, pieces])
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(n, special=True, normalized=False) for n in special])
    return backend
