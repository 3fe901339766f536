"""Character tokenizer: round trip, fixed ids, refusals."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtpo_jax.models import SymbolTokenizer

SYMBOLS = "zya =?0123"


@given(st.text(alphabet=SYMBOLS), st.integers(0, 3))
def test_round_trip_with_padding_and_end(text, padding):
    tokenizer = SymbolTokenizer(SYMBOLS)
    ids = tokenizer.encode(text)
    assert len(ids) == len(text) and all(2 <= i < tokenizer.vocab_size for i in ids)
    closing = (tokenizer.end_id,) + (tokenizer.pad_id,) * padding
    assert tokenizer.decode(ids) == tokenizer.decode(ids + closing) == text


def test_ids_follow_the_given_order():
    tokenizer = SymbolTokenizer("ba")
    assert (tokenizer.pad_id, tokenizer.end_id, tokenizer.vocab_size) == (0, 1, 4)
    assert tokenizer.encode("abb") == (3, 2, 2)


def test_refusals_name_the_culprit():
    with pytest.raises(ValueError, match="repeats .'a'"):
        SymbolTokenizer("aba")
    with pytest.raises(ValueError, match="symbols is empty"):
        SymbolTokenizer("")
    with pytest.raises(ValueError, match="text has 'c'"):
        SymbolTokenizer("ab").encode("abc")
    for bad in (4, -1):
        with pytest.raises(ValueError, match=f"ids has {bad}"):
            SymbolTokenizer("ab").decode([2, bad])
