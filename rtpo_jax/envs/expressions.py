"""Arithmetic modulo 100 on texts such as `(3+4)*(2+1)-5`.

Rules: + - * on integers 0 to 99, every result reduced modulo 100 (so 3-5 is 98). Inside a chain the
operations are done strictly from left to right, without precedence: `2+3*4` is 20. Parentheses come
first. An operation of two plain numbers is *reducible* if it opens the whole text or a pair of
parentheses, that is, if it may be done next.
"""

import random
import re

MODULUS = 100
OPERATORS = "+-*"
_NUMBER = r"(?:0|[1-9][0-9]?)"
_FIRST = re.compile(r"(?:^|\()([0-9]+[-+*][0-9]+)")
_OPERATION = re.compile(rf"({_NUMBER})([-+*])({_NUMBER})")


def is_number(text: str) -> bool:
    """Return whether `text` is an integer from 0 to 99 without leading zeros."""
    return re.fullmatch(_NUMBER, text) is not None


def is_operation(text: str) -> bool:
    """Return whether `text` is one operation of two numbers, e.g. `17*4`."""
    return _OPERATION.fullmatch(text) is not None


def split_operation(operation: str) -> tuple[int, str, int]:
    """Return left operand, operator and right operand; ValueError if it is not an operation."""
    match = _OPERATION.fullmatch(operation)
    if match is None:
        raise ValueError(f"operation is {operation!r}; give two numbers 0 to 99 around + - or *")
    return int(match[1]), match[2], int(match[3])


def compute(operation: str) -> int:
    """Return the value of one operation modulo 100, e.g. 68 for `17*4`."""
    left, operator, right = split_operation(operation)
    if operator == "+":
        return (left + right) % MODULUS
    if operator == "-":
        return (left - right) % MODULUS
    return left * right % MODULUS


def first_operation(expression: str) -> str | None:
    """Return the leftmost reducible operation; None if the expression is a number."""
    match = _FIRST.search(expression)
    return match[1] if match else None


def find_operation(expression: str, operation: str) -> int:
    """Return where `operation` first stands as a reducible operation; -1 if nowhere."""
    begin = expression.find(operation)
    while begin >= 0:
        end = begin + len(operation)
        opens = begin == 0 or expression[begin - 1] == "("
        if opens and not expression[end : end + 1].isdigit():
            return begin
        begin = expression.find(operation, begin + 1)
    return -1


def substitute(expression: str, operation: str, value: int) -> str:
    """Return the expression with its first reducible `operation` replaced by `value`.

    Parentheses left around a single number are dropped. Raises ValueError if it is not reducible.
    """
    begin = find_operation(expression, operation)
    if begin < 0:
        raise ValueError(f"operation {operation!r} is not reducible in {expression!r}")
    end = begin + len(operation)
    if begin > 0 and expression[end : end + 1] == ")":
        begin, end = begin - 1, end + 1
    return f"{expression[:begin]}{value}{expression[end:]}"


def evaluate(expression: str) -> int:
    """Return the value of the expression, 0 to 99."""
    while (operation := first_operation(expression)) is not None:
        expression = substitute(expression, operation, compute(operation))
    return int(expression)


def random_expression(
    generator: random.Random, num_operations: int, nesting: int, max_operand: int
) -> str:
    """Return a random expression with operands 1 to max_operand.

    nesting: largest depth of parentheses; 0 gives a flat chain. With depth left and two or more
    operations, at least one of them goes into parentheses.
    """
    if nesting == 0 or num_operations < 2:
        num_here = num_operations
    else:
        num_here = generator.randint(1, num_operations - 1)
    inside = [0] * (num_here + 1)
    for _ in range(num_operations - num_here):
        inside[generator.randrange(num_here + 1)] += 1
    terms = [
        f"({random_expression(generator, count, nesting - 1, max_operand)})"
        if count
        else str(generator.randint(1, max_operand))
        for count in inside
    ]
    return terms[0] + "".join(generator.choice(OPERATORS) + term for term in terms[1:])
