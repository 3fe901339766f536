"""Reading a number out of a free-text answer."""

import re
from fractions import Fraction

MAX_DIGITS = 100
_DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|(?<!\.)\.[0-9]+"
_EXPONENT = r"(?:[eE][+-]?[0-9]{1,2}(?![0-9]))?"
_VALUE = rf"(?:{_DIGITS}){_EXPONENT}"
_NUMBER = re.compile(
    rf"(?<![A-Za-z0-9_])(?<![0-9]\.)(?P<sign>(?<![)\]}}])[-+])?\$?"
    rf"(?P<top>{_VALUE})(?:/(?P<bottom>{_VALUE}))?"
)
_MARKER = re.compile(rf"(?P<box>\\f?box(?:ed)?\s*\{{)|####\s*(?={_NUMBER.pattern})")


def parse_number(text: str) -> Fraction | None:
    """Return the number that the whole of `text` is; None if it is not exactly one number.

    Read: sign, digits with or without thousands commas, decimals, `a/b`, exponents of up to two
    digits; a dollar sign, surrounding dollar signs (math mode), a percent sign and a final period
    are passed over, so `50%` is 50.
    """
    text = _normalise(text).strip().strip("$").strip()
    text = text.removesuffix(".").removesuffix("%").rstrip("\\ ")
    match = _NUMBER.fullmatch(text)
    return _to_fraction(match) if match else None


def extract_number(text: str) -> Fraction | None:
    r"""Return the number that `text` gives as its answer; None if there is none.

    The last marker in the text decides: after `#### 5` it is that number, for `\boxed{...}` it is
    the one number in the box (None if it holds none or several). A `####` that no number follows
    at once is a heading and no marker. Without a marker it is the last number in the text.
    Numbers are read as in `parse_number`; digits joined to a Latin letter on their left (`x2`) are
    no number, a minus joined to something on its left (`10-5`) is no sign. Numbers of more than
    100 characters and divisions by zero are None, never a guess.
    """
    text = _normalise(text)
    markers = list(_MARKER.finditer(text))
    if markers and markers[-1]["box"]:
        numbers = list(_NUMBER.finditer(_braced(text, markers[-1].end())))
        return _to_fraction(numbers[0]) if len(numbers) == 1 else None
    if markers:
        return _to_fraction(_NUMBER.search(text, markers[-1].end()))
    numbers = list(_NUMBER.finditer(text))
    return _to_fraction(numbers[-1]) if numbers else None


def same_number(text: str, gold: str) -> bool:
    """Return whether the answer in `text` equals the number `gold` exactly (18 = 18.0).

    False if either of them cannot be read.
    """
    answer, target = extract_number(text), parse_number(gold)
    return answer is not None and target is not None and answer == target


def _normalise(text: str) -> str:
    text = text.replace("\u2212", "-").replace("{,}", ",")
    return text.replace("\\!", "").replace("\\,", "").replace("\\$", "$")


def _braced(text: str, begin: int) -> str:
    depth = 1
    for position in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[begin:position]
    return text[begin:]


def _to_fraction(match: re.Match[str]) -> Fraction | None:
    if len(match[0]) > MAX_DIGITS:
        return None
    top = Fraction(match["top"].replace(",", ""))
    bottom = Fraction(match["bottom"].replace(",", "")) if match["bottom"] else Fraction(1)
    if bottom == 0:
        return None
    return -top / bottom if match["sign"] == "-" else top / bottom
