"""Tool calls written in free text: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.

This is the form that Qwen and Hermes chat templates ask for. Text is parsed as JSON and as nothing
else; whatever an argument contains stays data.
"""

import json
from dataclasses import dataclass

_OPEN = "<tool_call>"
_CLOSE = "</tool_call>"


@dataclass(frozen=True)
class ToolCall:
    """A well-formed call: the tool's name and its arguments as decoded JSON."""

    name: str
    arguments: dict[str, object]


@dataclass(frozen=True)
class MalformedCall:
    """A call that could not be read; `error` is a message for the model."""

    error: str


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def parse_tool_calls(text: str) -> tuple[ToolCall | MalformedCall, ...]:
    """Return the calls in `text` in order, () if it has none.

    A call opens with `<tool_call>`, holds one JSON object with a non-empty string "name" and an
    object "arguments" (other fields are ignored), and closes with `</tool_call>`. Tags and braces
    inside JSON strings are part of the string. Anything else after an opening tag is a
    MalformedCall; reading goes on behind its closing tag or at the next opening tag, whichever
    comes first.
    """
    calls: list[ToolCall | MalformedCall] = []
    position = text.find(_OPEN)
    while position >= 0:
        call, position = _parse_one(text, position + len(_OPEN))
        calls.append(call)
        position = text.find(_OPEN, position)
    return tuple(calls)


def _parse_one(text: str, begin: int) -> tuple[ToolCall | MalformedCall, int]:
    body = text[begin:].lstrip()
    begin = len(text) - len(body)
    try:
        content, length = _DECODER.raw_decode(body)
    except json.JSONDecodeError as error:
        message = f"the tool call is not valid JSON: {error.msg} at character {error.pos}"
        return MalformedCall(message), _end_of_call(text, begin)
    except (ValueError, RecursionError):
        message = "the tool call is not valid JSON: a number is too long or not finite, "
        return MalformedCall(message + "or the nesting too deep"), _end_of_call(text, begin)
    rest = text[begin + length :]
    if not rest.lstrip().startswith(_CLOSE):
        message = f"the tool call must be one JSON object closed by {_CLOSE}"
        return MalformedCall(message), _end_of_call(text, begin + length)
    return _check_call(content), begin + length


def _end_of_call(text: str, begin: int) -> int:
    close = text.find(_CLOSE, begin)
    following = text.find(_OPEN, begin)
    if close < 0:
        return len(text) if following < 0 else following
    return close + len(_CLOSE) if following < 0 else min(close + len(_CLOSE), following)


def _check_call(content: object) -> ToolCall | MalformedCall:
    if not isinstance(content, dict):
        return MalformedCall('the tool call must be a JSON object with "name" and "arguments"')
    name, arguments = content.get("name"), content.get("arguments")
    if not isinstance(name, str) or not name:
        return MalformedCall('the tool call needs a "name" that is a non-empty string')
    if not isinstance(arguments, dict):
        return MalformedCall('the tool call needs "arguments" that are a JSON object')
    return ToolCall(name=name, arguments=arguments)
