"""Free-text questions: tool turns, grading of the last turn, files."""

import json
from fractions import Fraction

import pytest

from rtpo_jax.envs import (
    INSTRUCTIONS,
    Chance,
    Questions,
    extract_number,
    load_questions,
    one_digit_sums,
)

ITEMS = (("What is 3+4?", "7"), ("How many eggs?", "18"), ("How much?", "1,234.5"))


def call(expression, name="calculator"):
    content = {"name": name, "arguments": {"expression": expression}}
    return f"<tool_call>{json.dumps(content)}</tool_call>"


def test_tasks_cycle_through_the_items():
    env = Questions(ITEMS)
    for seed in (-1, 0, 1, 2, 3, 301):
        task = env.make_task(seed)
        assert (task.question, task.answer) == ITEMS[seed % 3]
    assert env.make_task(0) != env.make_task(3)  # same text, two tasks
    _, question = env.reset(env.make_task(1))
    assert question == "How many eggs?\n\n" + INSTRUCTIONS.strip()
    _, bare = Questions(ITEMS, instructions="").reset(env.make_task(1))
    assert bare == "How many eggs?"


def test_the_instructions_show_a_call_that_works():
    env = Questions(ITEMS)
    state, _ = env.reset(env.make_task(0))
    assert env.step(state, INSTRUCTIONS).observation == "27"  # 3 * (4 + 5)


def test_only_the_last_turn_is_graded():
    env = Questions(ITEMS, num_turns=3)
    state, _ = env.reset(env.make_task(1))
    step = env.step(state, f"Let me check. {call('9+9')} It is 18")
    assert (step.observation, step.reward, step.ended) == ("18", 0.0, False)
    assert env.outcome(step.state) == (False, 1, 0)
    step = env.step(step.state, call("9*2"))
    right = env.step(step.state, "So it is 18.0 eggs.")
    wrong = env.step(step.state, "So it is 19 eggs.")
    assert (right.observation, right.reward, right.ended) == ("", 1.0, True)
    assert (wrong.observation, wrong.reward, wrong.ended) == ("", 0.0, True)
    assert env.outcome(right.state) == (True, 2, 0)


def test_a_call_in_the_last_turn_is_no_answer():
    env = Questions(ITEMS, num_turns=1)
    state, _ = env.reset(env.make_task(1))
    step = env.step(state, f"{call('9+9')} 18")
    assert step.ended and step.reward == 0.0 and step.observation == ""
    assert env.step(state, "18").reward == 1.0


@pytest.mark.parametrize(
    ("text", "reply", "counts"),
    [
        (call("1+1") + call("7/2"), "2\n3.5", (2, 0)),
        (call("1/0"), "error: division by zero", (1, 0)),
        (call("2**3"), "error: only + - * / and parentheses are allowed", (1, 0)),
        (call(["__import__('os')"]), 'error: the calculator needs an "expression" that is', (1, 0)),
        (call("1+1", name="python"), "error: there is no tool 'python'", (1, 0)),
        ("<tool_call>{1}</tool_call>" + call("1+1"), "error: the tool call is not valid", (1, 1)),
        ("<tool_call>", "error: the tool call is not valid JSON", (0, 1)),
    ],
)
def test_replies_are_in_words_one_line_a_call(text, reply, counts):
    env = Questions(ITEMS)
    state, _ = env.reset(env.make_task(0))
    step = env.step(state, text)
    assert step.observation.startswith(reply) and not step.ended
    assert len(step.observation.splitlines()) == sum(counts)
    assert env.outcome(step.state) == (False, *counts)


def test_failure_and_noise_are_drawn_for_every_call():
    text = call("10+10") * 400
    for chance, altered in (
        (Chance(tool_failure=0.3), {"error: the tool did not respond, call it again"}),
        (Chance(observation_noise=0.3), {str(value) for value in range(21, 30)}),
    ):
        env = Questions(ITEMS, chance=chance)
        lines = env.step(env.reset(env.make_task(0))[0], text).observation.splitlines()
        # 400 draws at 0.3: 120 +- 9.2; five standard deviations
        assert set(lines) == altered | {"20"} and 74 <= 400 - lines.count("20") <= 166


def test_expert():
    env = Questions(ITEMS)
    for seed in range(30):
        state, _ = env.reset(env.make_task(seed))
        for rates, success in (
            ((0.0, 0.0), True),
            ((1.0, 0.0), False),
            ((0.0, 1.0), seed % 3 != 0),
        ):
            action = env.demonstrate(state, seed, error_rate=rates[0], systematic_rate=rates[1])
            assert env.step(state, action).reward == float(success)


def test_one_digit_sums():
    items = one_digit_sums(2000, seed=3)
    assert items == one_digit_sums(2000, seed=3) != one_digit_sums(2000, seed=4)
    seen = set()
    for question, answer in items:
        left, right = question.removeprefix("What is ").split("?")[0].split("+")
        assert question == f"What is {left}+{right}? Reply with just the number."
        assert int(left) + int(right) == int(answer)
        seen.add((left, right))
    assert len(seen) == 100  # 2000 draws of 100: each is missed with probability 2e-9
    with pytest.raises(ValueError, match="num is 0; give an integer at least 1"):
        one_digit_sums(0, 0)


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ((), "items is empty"),
        ((("a", "1", "2"),), r"items\[0\] is .*; give a \(question, answer\) text pair"),
        ((("a", "1"), ("b", 2)), r"items\[1\] is .*; give a \(question, answer\) text pair"),
        ((("a", "seven"),), r"items\[0\] has the answer 'seven'; give one number"),
    ],
)
def test_items_are_checked(items, message):
    with pytest.raises(ValueError, match=message):
        Questions(items)
    with pytest.raises(ValueError, match="num_turns is 0"):
        Questions(ITEMS, num_turns=0)


def write(tmp_path, *lines):
    path = tmp_path / "questions.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_load_questions(tmp_path):
    path = write(
        tmp_path,
        '{"question": "a", "answer": "so 3.\\n#### 1,234", "extra": null}',
        "",
        '{"question": "b", "answer": 18}',
        '{"question": "c", "answer": 0.1}',
        '{"question": "d", "answer": "-1/2"}',
    )
    items = (("a", "1234"), ("b", "18"), ("c", "0.1"), ("d", "-1/2"))
    assert load_questions(path) == items
    assert load_questions(str(path), limit=2) == items[:2]
    assert len(Questions(load_questions(path)).items) == 4


GOOD = '{"question": "a", "answer": "1"}'


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: not valid JSON"),
        ("[]", "line 2: not a JSON object"),
        ('{"answer": "1"}', "line 2: field 'question' is None; give a non-empty text"),
        ('{"question": " ", "answer": "1"}', "line 2: field 'question' is ' '"),
        ('{"question": "a"}', "line 2: field 'answer' is None"),
        ('{"question": "a", "answer": true}', "line 2: field 'answer' is True"),
        ('{"question": "a", "answer": ["1"]}', "line 2: field 'answer' is"),
        ('{"question": "a", "answer": "blue"}', "line 2: the answer 'blue' is not one number"),
        ('{"question": "a", "answer": "3 #### "}', "line 2: the answer '' is not one number"),
        ('{"question": "a", "answer": "1,2"}', "line 2: the answer '1,2' is not one number"),
    ],
)
def test_bad_lines_are_named(tmp_path, line, message):
    path = write(tmp_path, GOOD, line)
    with pytest.raises(ValueError, match=message):
        load_questions(path)
    assert load_questions(path, limit=1) == (("a", "1"),)


def test_too_few_questions(tmp_path):
    with pytest.raises(ValueError, match="has no questions"):
        load_questions(write(tmp_path, ""))
    with pytest.raises(ValueError, match="3 questions are asked for but .* has 2; ask fewer"):
        load_questions(write(tmp_path, GOOD, GOOD), limit=3)
    with pytest.raises(ValueError, match="limit is 0"):
        load_questions(write(tmp_path, GOOD), limit=0)


def test_gsm8k(gsm8k_test):
    items = load_questions(gsm8k_test)
    assert len(items) == 1319
    env = Questions(items)
    records = [json.loads(line) for line in gsm8k_test.open(encoding="utf-8")]
    agreed = 0
    for seed, record in enumerate(records):
        gold = Fraction(record["answer"].replace(",", ""))
        state, _ = env.reset(env.make_task(seed))
        assert env.step(state, f"I get {gold}.").reward == 1.0
        assert env.step(state, f"I get {gold + 1}.").reward == 0.0
        agreed += extract_number(record["solution"]) == gold
    assert agreed / len(records) > 0.95  # people end most solutions with the answer
