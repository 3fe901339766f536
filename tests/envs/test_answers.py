"""Reading numbers out of answers: right, wrong, and no number at all."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtpo_jax.envs import extract_number, parse_number, same_number

REPEATABLE = settings(deadline=None, derandomize=True)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("18", "18"),
        ("The answer is 18.", "18"),
        ("3 and 4 make 7", "7"),
        ("Total: $1,234.50.", "1234.5"),
        ("It costs -5", "-5"),
        ("x=-3", "-3"),
        ("\u22127", "-7"),
        ("-$5", "-5"),
        ("$-5", "-5"),
        ("10-5", "5"),
        ("(3)-5", "5"),
        ("2 - 5", "5"),
        ("0.5", "1/2"),
        (".5", "1/2"),
        ("...5", "5"),
        ("5.", "5"),
        ("1/2", "1/2"),
        ("1e3", "1000"),
        ("3*4=12", "12"),
        ("**42**", "42"),
        ("$18$", "18"),
        ("50%", "50"),
        ("5km", "5"),
        ("1,2", "2"),
        ("1,234,567", "1234567"),
        ("1234,567", "567"),
        ("\u7b54\u6848\u662f5\u3002", "5"),
        ("#### 42", "42"),
        ("3+4=7\n####7", "7"),
        ("#### 18 dollars in 3 days", "18"),
        ("#### $1,234", "1234"),
        ("#### Step 2\nSo it is 7", "7"),
        ("#### 5\n#### 6", "6"),
        (r"\boxed{5} and 6", "5"),
        (r"\boxed{5} then \boxed{6}", "6"),
        (r"\boxed{5} #### 6", "6"),
        (r"#### 6 \boxed{5}", "5"),
        (r"\boxed{\text{13}}", "13"),
        (r"\boxed{1{,}234}", "1234"),
        (r"\boxed{\$18}", "18"),
        (r"\fbox{7}", "7"),
        (r"$\boxed{x = 9}$", "9"),
    ],
)
def test_numbers_that_are_read(text, value):
    assert extract_number(text) == Fraction(value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "seven",
        "x2",
        "H2O",
        "7/0",
        "9" * 101,
        "1" * 5000,
        r"\boxed{}",
        r"2 \boxed{none}",
        r"\boxed{\frac{1}{2}}",
        r"\boxed{2^{10}}",
        "\u0665",
    ],
)
def test_no_number(text):
    assert extract_number(text) is None
    assert not same_number(text, "2")


@REPEATABLE
@given(st.integers(-(10**12), 10**12), st.integers(0, 6))
def test_round_trip_of_decimals(digits, places):
    value = Fraction(digits, 10**places)
    plain = f"{abs(digits):0{places + 1}d}"
    whole, decimals = plain[: len(plain) - places], plain[len(plain) - places :]
    sign = "-" if digits < 0 else ""
    for number in (whole, f"{int(whole):,}"):
        text = sign + number + (f".{decimals}" if places else "")
        assert parse_number(text) == value
        assert extract_number(f"3 steps later it is {text}.") == value


@pytest.mark.parametrize("text", ["", "abc", "1 2", "1,2", "5 cm", "--5", "1/0", "1.2.3", "12:00"])
def test_gold_must_be_one_number(text):
    assert parse_number(text) is None


def test_comparison_is_exact():
    assert same_number("18.0", "18") and same_number("$18", "18.00") and same_number("0.5", "1/2")
    assert same_number("1234", "1,234") and same_number("50%", "50")
    assert not same_number("0.333333333333333333", "1/3")
    assert not same_number("10000000000000001", "10000000000000000")  # equal as floats
    assert not same_number("nothing", "nothing")
    assert not same_number("-5", "5")
