"""Exact, bounded arithmetic on text: the calculator tool. Nothing is ever executed."""

import ast
import re
from collections.abc import Callable
from decimal import Context
from fractions import Fraction

MAX_LENGTH = 200
MAX_DIGITS = 30
SIGNIFICANT_DIGITS = 10
_LIMIT = 10**MAX_DIGITS
_ALLOWED = re.compile(r"[0-9+\-*/(). ]*")


class ToolError(Exception):
    """A tool call that cannot be carried out; the message is written for the model."""


def _divide(left: Fraction, right: Fraction) -> Fraction:
    if right == 0:
        raise ToolError("division by zero")
    return left / right


_BINARY: dict[type, Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: lambda left, right: left + right,
    ast.Sub: lambda left, right: left - right,
    ast.Mult: lambda left, right: left * right,
    ast.Div: _divide,
}


def calculate(expression: str) -> str:
    """Return the value of an expression as text, e.g. `0.75` for `(1+2)/4`.

    Allowed: integers and decimals, + - * / ( ), unary minus and plus, spaces. Computed exactly in
    fractions. Integers are printed as integers, other values as decimals, see `format_number`.
    Raises ToolError for everything else: other characters or operators (powers, `//`), more than
    200 characters, division by zero, and values whose numerator or denominator passes 30 digits.
    """
    return format_number(evaluate_expression(expression))


def evaluate_expression(expression: str) -> Fraction:
    """Return the exact value of an expression; allowed forms and errors as in `calculate`."""
    if len(expression) > MAX_LENGTH:
        raise ToolError(f"the expression is longer than {MAX_LENGTH} characters")
    expression = expression.strip()
    if not expression:
        raise ToolError("the expression is empty")
    if _ALLOWED.fullmatch(expression) is None:
        raise ToolError("only numbers, spaces and + - * / ( ) . are allowed")
    try:
        tree = ast.parse(expression, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ToolError("cannot read the expression") from None
    return _value(tree.body, expression)


def _value(node: ast.expr, source: str) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return _bounded(Fraction(source[node.col_offset : node.end_col_offset]))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        operand = _value(node.operand, source)
        return -operand if isinstance(node.op, ast.USub) else operand
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        left, right = _value(node.left, source), _value(node.right, source)
        return _bounded(_BINARY[type(node.op)](left, right))
    raise ToolError("only + - * / and parentheses are allowed")


def _bounded(value: Fraction) -> Fraction:
    if abs(value.numerator) >= _LIMIT or value.denominator >= _LIMIT:
        raise ToolError(f"a number has more than {MAX_DIGITS} digits")
    return value


def format_number(value: Fraction) -> str:
    """Return `value` as text without exponent: an integer exactly, else a short decimal.

    A decimal is rounded (half to even) to 10 digits after the point if |value| >= 1, and to 10
    significant digits below 1; trailing zeros are dropped. E.g. 2/3 gives `0.6666666667`.
    """
    if value.denominator == 1:
        return str(value.numerator)
    whole = abs(value.numerator) // value.denominator
    context = Context(prec=SIGNIFICANT_DIGITS + (len(str(whole)) if whole else 0))
    text = f"{context.divide(value.numerator, value.denominator):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
