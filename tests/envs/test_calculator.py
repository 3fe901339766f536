"""The calculator against Python's fractions, worked solutions, and hostile text."""

import json
import re
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtpo_jax.envs import ToolError, calculate
from rtpo_jax.envs.calculator import evaluate_expression, format_number

REPEATABLE = settings(deadline=None, derandomize=True)


@st.composite
def expressions(draw, depth=3):
    """Pairs of text and value; the value is built with Fraction, None after a division by zero."""
    if depth == 0 or draw(st.booleans()):
        text = draw(st.sampled_from(["0", "7", "12", "999", "0.1", "3.3", ".125", "10.", "2.50"]))
        return text, Fraction(text)
    kind = draw(st.sampled_from("+-*/n"))
    left, left_value = draw(expressions(depth=depth - 1))
    if kind == "n":
        return f"-({left})", None if left_value is None else -left_value
    right, right_value = draw(expressions(depth=depth - 1))
    if left_value is None or right_value is None or (kind == "/" and right_value == 0):
        value = None
    elif kind == "+":
        value = left_value + right_value
    elif kind == "-":
        value = left_value - right_value
    else:
        value = left_value * right_value if kind == "*" else left_value / right_value
    return f"({left}) {kind}({right})", value


@REPEATABLE
@given(expressions())
def test_values_against_fractions(pair):
    text, value = pair
    if value is None:
        with pytest.raises(ToolError, match="division by zero"):
            calculate(text)
    else:
        assert evaluate_expression(text) == value


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("2+3*4", "14"),
        ("2-3-4", "-5"),
        ("8/4/2", "1"),
        ("-3--4", "1"),
        ("-(2+3)*+4", "-20"),
        ("0.1+0.2", "0.3"),
        ("(1+2)/4", "0.75"),
        ("1/3", "0.3333333333"),
        ("-2/3", "-0.6666666667"),
        ("100/3", "33.3333333333"),
        ("1/800000", "0.00000125"),
        ("100000000000000000001*1", "100000000000000000001"),
        ("6/2*1.0", "3"),
        (" 1 + 1 ", "2"),
        ("10/4", "2.5"),
        ("1000*1.5", "1500"),
        ("0*5/7", "0"),
    ],
)
def test_values_by_hand(expression, result):
    assert calculate(expression) == result


@REPEATABLE
@given(st.fractions(max_denominator=10**6))
def test_printed_numbers_are_close_and_plain(value):
    text = format_number(value)
    assert re.fullmatch(r"-?(0|[1-9][0-9]*)(\.[0-9]*[1-9])?", text)
    bound = Fraction(1, 2 * 10**10) * (1 if abs(value) >= 1 else max(abs(value) * 10, 0))
    assert abs(Fraction(Decimal(text)) - value) <= bound


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("1/0", "division by zero"),
        ("1/(2-2)", "division by zero"),
        ("2**9", r"only \+ - \* / and parentheses"),
        ("9**9**9**9", r"only \+ - \* / and parentheses"),
        ("7//2", r"only \+ - \* / and parentheses"),
        ("(2)(3)", r"only \+ - \* / and parentheses"),
        ("7%2", "only numbers"),
        ("__import__('os').system('true')", "only numbers"),
        ("1e9", "only numbers"),
        ("0x10", "only numbers"),
        ("1_000", "only numbers"),
        ("1,000", "only numbers"),
        ("3j", "only numbers"),
        ("1\n+1", "only numbers"),
        ("\u0663+1", "only numbers"),
        ("1\x00", "only numbers"),
        ("()", r"only \+ - \* / and parentheses"),
        ("...", r"only \+ - \* / and parentheses"),
        ("1 2", "cannot read"),
        ("007", "cannot read"),
        ("1.2.3", "cannot read"),
        ("3+", "cannot read"),
        ("*3", r"cannot read|only \+"),
        ("(1", "cannot read"),
        ("1)", "cannot read"),
        ("(" * 150 + "1", "cannot read"),
        ("1+" * 101 + "1", "longer than 200"),
        ("9" * 31, "more than 30 digits"),
        ("9" * 29 + "*" + "9" * 29, "more than 30 digits"),
        ("1/" + "9" * 29 + "/" + "9" * 29, "more than 30 digits"),
    ],
)
def test_refusals(expression, message):
    with pytest.raises(ToolError, match=message):
        calculate(expression)


@REPEATABLE
@given(st.text(alphabet="0123456789+-*/(). ", max_size=40))
def test_any_text_gives_a_number_or_a_tool_error(text):
    try:
        result = calculate(text)
    except ToolError as error:
        assert str(error)
    else:
        # Python floats agree where they can; the printed number has ten digits
        expected = eval(text.strip())
        assert float(result) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("nested", ["(" * 90 + "1" + ")" * 90, "-" * 199 + "1", "1" + "+1" * 99])
def test_deep_but_legal_expressions(nested):
    assert evaluate_expression(nested) == eval(nested)


def test_annotations_of_worked_solutions(gsm8k_test):
    """People wrote `<<16-3-4=9>>` into GSM8K's solutions: all must come out the same to 0.01."""
    solutions = [json.loads(line)["solution"] for line in gsm8k_test.open(encoding="utf-8")]
    agreed = total = 0
    for left, right in re.findall(r"<<([0-9+\-*/(). ]+)=(-?[0-9]*\.?[0-9]+)>>", "".join(solutions)):
        total += 1
        try:
            agreed += abs(evaluate_expression(left) - Fraction(right)) <= Fraction(1, 100)
        except ToolError:
            pass
    assert total > 3000 and agreed == total
