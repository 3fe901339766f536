"""Context managers and templates: exact ids, nothing re-tokenised."""

from typing import NamedTuple

import pytest

from rtpo_jax.models import SymbolTokenizer
from rtpo_jax.rollouts import (
    ChatMLTemplate,
    FullHistory,
    LastObservation,
    LastTurns,
    Summary,
    SymbolTemplate,
)

TOKENIZER = SymbolTokenizer("ab?>.Q")
TEMPLATE = SymbolTemplate(TOKENIZER)
END = TOKENIZER.end_id


class Past(NamedTuple):
    action: tuple
    observation: str


def ids(text):
    return TOKENIZER.encode(text)


TURNS = (Past((*ids("Qa"), END), ">b."), Past((*ids("Qb"), END), ">a."))


def test_each_manager_gives_what_its_name_says():
    question = "ab?"
    full = (*ids("ab?"), *TURNS[0].action, *ids(">b."), *TURNS[1].action, *ids(">a."))
    assert FullHistory()(TEMPLATE, question, TURNS) == full
    last = (*ids("ab?"), *TURNS[1].action, *ids(">a."))
    assert LastTurns(1)(TEMPLATE, question, TURNS) == last
    assert LastTurns(2)(TEMPLATE, question, TURNS) == full
    assert LastObservation()(TEMPLATE, question, TURNS) == (*ids("ab?"), END, *ids(">a."))
    rule = lambda question, observations: "".join(o[1] for o in observations)  # noqa: E731
    assert Summary(rule)(TEMPLATE, question, TURNS) == (*ids("ab?"), END, *ids("ba"))


@pytest.mark.parametrize(
    "manager", [FullHistory(), LastTurns(3), LastObservation(), Summary(lambda q, o: "")]
)
def test_first_turn_sees_the_question_alone(manager):
    assert manager(TEMPLATE, "ab?", ()) == ids("ab?")


def test_an_action_cut_off_before_its_end_is_closed_by_the_template():
    cut = (Past(ids("Qa"), ">b."),)
    assert FullHistory()(TEMPLATE, "a?", cut) == (*ids("a?"), *ids("Qa"), END, *ids(">b."))


def test_last_turns_needs_a_turn():
    with pytest.raises(ValueError, match="count=0"):
        LastTurns(0)


class PairTokenizer:
    """Decode-then-encode is not the identity: "ab" encodes to one id, but may be sampled as two."""

    pad_id, end_id, vocab_size = 0, 1, 10
    table = {2: "a", 3: "b", 4: "ab"}

    def encode(self, text):
        names = {"ab": 4, "a": 2, "b": 3}
        found = []
        while text:
            for name, token in names.items():
                if text.startswith(name):
                    found.append(token)
                    text = text[len(name) :]
                    break
            else:
                text = text[1:]
        return tuple(found)

    def decode(self, tokens):
        return "".join(self.table.get(token, "") for token in tokens)


def test_later_contexts_hold_the_sampled_ids_not_their_re_encoding():
    tokenizer = PairTokenizer()
    sampled = (2, 3, 1)  # two halves of the word "ab"
    assert tokenizer.encode(tokenizer.decode(sampled)) != sampled[:2]
    context = FullHistory()(SymbolTemplate(tokenizer), "a", (Past(sampled, "b"),))
    assert context == (2, *sampled, 3)


class Bytes:
    """One id per character; the end marker is a single id, as in a chat tokenizer."""

    pad_id, end_id, vocab_size = 0, 1, 1000

    def encode(self, text):
        return tuple(ord(c) for c in text.replace("<|im_end|>", "\x01"))

    def decode(self, tokens):
        return "".join(chr(t) for t in tokens if t > 1)


def test_chatml_turn_by_turn_equals_the_whole_dialogue():
    template = ChatMLTemplate(Bytes(), system="S")
    action = (*Bytes().encode("hello"), 1)
    context = FullHistory()(template, "q", (Past(action, "obs"),))
    whole = (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nq<|im_end|>\n"
        "<|im_start|>assistant\nhello<|im_end|>\n"
        "<|im_start|>user\nobs<|im_end|>\n<|im_start|>assistant\n"
    )
    assert context == Bytes().encode(whole)
