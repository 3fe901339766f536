"""Reading tool calls: order, braces in strings, unclosed and hostile text."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtpo_jax.envs import MalformedCall, ToolCall, parse_tool_calls

REPEATABLE = settings(deadline=None, derandomize=True)


def wrap(content):
    text = content if isinstance(content, str) else json.dumps(content)
    return f"<tool_call>{text}</tool_call>"


def call(expression):
    return {"name": "calculator", "arguments": {"expression": expression}}


def test_several_calls_in_order():
    text = f"First {wrap(call('3*4'))} then\n<tool_call>\n{json.dumps(call('1+1'))}\n</tool_call>."
    assert parse_tool_calls(text) == (
        ToolCall("calculator", {"expression": "3*4"}),
        ToolCall("calculator", {"expression": "1+1"}),
    )


@pytest.mark.parametrize("text", ["", "12", "tool_call", '{"name": "calculator"}', "</tool_call>"])
def test_text_without_a_call(text):
    assert parse_tool_calls(text) == ()


@pytest.mark.parametrize(
    "argument", ["}", '"}}', "</tool_call>", "<tool_call>{}", "\\", "\u4f60\n", "{'a': 1}"]
)
def test_strings_may_contain_anything(argument):
    assert parse_tool_calls(wrap(call(argument))) == (
        ToolCall("calculator", {"expression": argument}),
    )


@REPEATABLE
@given(st.lists(st.text(max_size=20), max_size=4))
def test_round_trip(arguments):
    calls = parse_tool_calls(" and ".join(wrap(call(text)) for text in arguments))
    assert calls == tuple(ToolCall("calculator", {"expression": text}) for text in arguments)


@REPEATABLE
@given(st.lists(st.sampled_from(["<tool_call>", "</tool_call>", "{", "}", '"', "name", ":", "1"])))
def test_any_text_is_read_without_an_exception(pieces):
    text = "".join(pieces)
    calls = parse_tool_calls(text)
    assert all(isinstance(found, MalformedCall) for found in calls)
    assert bool(calls) == ("<tool_call>" in text)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"name": "calculator", "arguments": {"expression": "3*4"}', "not valid JSON"),
        ("", "not valid JSON"),
        ("{'name': 'calculator'}", "not valid JSON"),
        ("calculator(3*4)", "not valid JSON"),
        ('{"name": "calculator", "arguments": {"expression": NaN}}', "not valid JSON"),
        ('{"name": "calculator", "arguments": {"x": ' + "1" * 5000 + "}}", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ('{"name": "a", "arguments": {}} {"name": "b", "arguments": {}}', "one JSON object"),
        ("[1]", "must be a JSON object"),
        ('"calculator"', "must be a JSON object"),
        ('{"arguments": {}}', '"name" that is a non-empty string'),
        ('{"name": "", "arguments": {}}', '"name" that is a non-empty string'),
        ('{"name": 3, "arguments": {}}', '"name" that is a non-empty string'),
        ('{"name": "calculator"}', '"arguments" that are a JSON object'),
        ('{"name": "calculator", "arguments": "3*4"}', '"arguments" that are a JSON object'),
        ('{"name": "calculator", "arguments": ["3*4"]}', '"arguments" that are a JSON object'),
    ],
    ids=range(16),
)
def test_malformed_calls_are_told_in_words_and_the_next_call_is_read(content, message):
    malformed, following = parse_tool_calls(wrap(content) + wrap(call("1+1")))
    assert isinstance(malformed, MalformedCall) and message in malformed.error
    assert following == ToolCall("calculator", {"expression": "1+1"})


def test_unclosed_calls():
    complete = "<tool_call>" + json.dumps(call("3*4"))
    (only,) = parse_tool_calls(complete)
    assert isinstance(only, MalformedCall) and "closed by </tool_call>" in only.error
    (only,) = parse_tool_calls(complete[:-5])
    assert isinstance(only, MalformedCall) and "not valid JSON" in only.error
    first, second = parse_tool_calls(complete + wrap(call("1+1")))
    assert isinstance(first, MalformedCall)
    assert second == ToolCall("calculator", {"expression": "1+1"})


def test_code_in_arguments_stays_text(tmp_path):
    target = tmp_path / "written"
    payload = f"__import__('pathlib').Path({str(target)!r}).write_text('x')"
    content = {"name": "calculator", "arguments": {"expression": [payload, payload]}}
    (found,) = parse_tool_calls(wrap(content))
    assert found == ToolCall("calculator", {"expression": [payload, payload]})
    assert not target.exists()
