"""Arithmetic: expressions against Python's own parser, the rules, and the expert."""

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtpo_jax.envs import Arithmetic, Chance
from rtpo_jax.envs.expressions import (
    compute,
    evaluate,
    find_operation,
    first_operation,
    random_expression,
    substitute,
)

REPEATABLE = settings(deadline=None, derandomize=True)

EXPERT = {"error_rate": 0.0, "systematic_rate": 0.0}


class Number:
    """Integers modulo 100 under three Python operators of EQUAL precedence."""

    def __init__(self, value):
        self.value = value % 100

    def __mul__(self, other):
        return Number(self.value * other.value)

    def __truediv__(self, other):
        return Number(self.value + other.value)

    def __mod__(self, other):
        return Number(self.value - other.value)


def reference(expression):
    """Python's parser does the left-to-right order and the parentheses."""
    text = expression.replace("+", "/").replace("-", "%")
    return eval(re.sub(r"\d+", lambda m: f"N({m[0]})", text), {"N": Number}).value


def depth(expression):
    level = deepest = 0
    for character in expression:
        level += {"(": 1, ")": -1}.get(character, 0)
        deepest = max(deepest, level)
    return deepest


@REPEATABLE
@given(st.integers(0, 10**9), st.integers(1, 8), st.integers(0, 3), st.sampled_from([9, 99]))
def test_expressions_against_python(seed, num_operations, nesting, max_operand):
    generator = random.Random(seed)
    expression = random_expression(generator, num_operations, nesting, max_operand)
    assert len(re.findall(r"[-+*]", expression)) == num_operations
    assert depth(expression) <= nesting
    assert (depth(expression) > 0) == (nesting > 0 and num_operations > 1)
    assert evaluate(expression) == reference(expression)
    # any order of legal reductions keeps the value and takes num_operations steps
    for _ in range(num_operations):
        candidates = [
            operation
            for operation in set(re.findall(r"(?=(?<!\d)(\d+[-+*]\d+))", expression))
            if find_operation(expression, operation) >= 0
        ]
        assert first_operation(expression) in candidates
        operation = generator.choice(sorted(candidates))
        shorter = substitute(expression, operation, compute(operation))
        assert reference(shorter) == reference(expression)
        expression = shorter
    assert expression == str(evaluate(expression))


@pytest.mark.parametrize(
    ("expression", "value"),
    # by hand: 5*20 = 100 -> 0; 3-5 = -2 -> 98; 2+3 = 5, 5*4 = 20; 68, 72, 70, 75; 7*3-5 = 16
    [
        ("5*20", 0),
        ("3-5", 98),
        ("2+3*4", 20),
        ("17*4+4-2+5", 75),
        ("(3+4)*(2+1)-5", 16),
        ("7", 7),
    ],
)
def test_values_by_hand(expression, value):
    assert evaluate(expression) == value


@pytest.mark.parametrize(
    ("expression", "operation", "result"),
    [
        ("17*4+4-2+5", "17*4", "68+4-2+5"),
        ("17*4+4-2+5", "4+4", None),  # not from left to right
        ("17*4+4-2+5", "7*4", None),  # a tail of a number
        ("17*45+4", "17*4", None),  # a head of a number
        ("(3+4)*(2+1)-5", "3+4", "7*(2+1)-5"),
        ("(3+4)*(2+1)-5", "2+1", "(3+4)*3-5"),
        ("7*(2+1)-5", "7*2", None),
        ("9+((3+4)*2)", "3+4", "9+(7*2)"),
        ("9+(3+4*2)", "3+4", "9+(7*2)"),
        ("(3+4)*(3+4)", "3+4", "7*(3+4)"),
        ("2+3+4-(3+4)", "3+4", "2+3+4-7"),
        ("4*3-(4*3)", "4*3", "12-(4*3)"),
    ],
)
def test_what_may_be_done_next(expression, operation, result):
    if result is None:
        assert find_operation(expression, operation) == -1
        with pytest.raises(ValueError, match="is not reducible in"):
            substitute(expression, operation, 0)
    else:
        assert substitute(expression, operation, compute(operation)) == result


def start(env, expression):
    """A state on a chosen expression."""
    task = type(env.make_task(0))(seed=0, expression=expression, answer=reference(expression))
    return env.reset(task)


def test_calls_replies_and_answer():
    env = Arithmetic(num_operations=4)
    state, question = start(env, "17*4+4-2+5")
    assert question == "17*4+4-2+5?" and env.num_turns == 5
    step = env.step(state, "Q17*4")
    assert (step.observation, step.reward, step.ended) == (">68+4-2+5.", 0.0, False)
    aside = env.step(step.state, "Q2+5")
    assert aside.observation == ">7." and aside.state.expression == "68+4-2+5"
    for action, reply in [("Q68+4", ">72-2+5."), ("Q72-2", ">70+5."), ("Q70+5", ">75.")]:
        step = env.step(step.state, action)
        assert step.observation == reply
    final = env.step(step.state, "A75")
    assert final == (final.state, "", 1.0, True)
    assert env.outcome(final.state) == (True, 4, 0)


def test_exactly_one_answer_is_right_and_no_call_is_needed():
    env = Arithmetic(num_operations=3, nesting=1)
    for seed in range(20):
        task = env.make_task(seed)
        state, question = env.reset(task)
        rewards = [env.step(state, f"A{answer}").reward for answer in range(100)]
        assert sum(rewards) == 1.0 and rewards[reference(question[:-1])] == 1.0


@pytest.mark.parametrize("errors", ["repairable", "fatal"])
@pytest.mark.parametrize("nesting", [0, 1, 3])
def test_noiseless_expert_always_succeeds(nesting, errors):
    for num_operations in (1, 4, 6):
        env = Arithmetic(num_operations, nesting, max_operand=20, errors=errors)
        for seed in range(60):
            state, _ = env.reset(env.make_task(seed))
            while not state.episode.ended:
                state = env.step(state, env.demonstrate(state, seed, **EXPERT)).state
            assert env.outcome(state) == (True, num_operations, 0)
            assert state.episode.turn == num_operations + 1


def test_fatal_expert_success_is_a_product():
    """Every turn is right with probability 1-e, a call of `*` with (1-e)(1-s)."""
    env, error, systematic = Arithmetic(num_operations=3, errors="fatal"), 0.1, 0.6
    mean = variance = wins = 0.0
    for seed in range(2500):
        state, question = env.reset(env.make_task(seed))
        p = (1 - error) ** 4 * (1 - systematic) ** question.count("*")
        mean, variance = mean + p, variance + p * (1 - p)
        while not state.episode.ended:
            action = env.demonstrate(state, seed, error_rate=error, systematic_rate=systematic)
            state = env.step(state, action).state
        wins += env.outcome(state).success
    assert abs(wins - mean) < 5 * variance**0.5, (wins, mean)


def test_mistakes():
    env = Arithmetic(num_operations=2)
    product, _ = start(env, "17*4+4")
    total, _ = start(env, "17+4*4")
    answer, _ = start(env, "21")
    for seed in range(300):
        systematic = {"error_rate": 0.0, "systematic_rate": 1.0}
        assert env.demonstrate(product, seed, **systematic) == "Q17+4"
        assert env.demonstrate(total, seed, **systematic) == "Q17+4"  # right here
        assert env.demonstrate(answer, seed, **systematic) == "A21"
        wrong = env.demonstrate(product, seed, error_rate=1.0, systematic_rate=0.0)
        step = env.step(product, wrong)
        assert wrong.startswith("Q17*") and step.state.expression == "17*4+4"
        assert env.outcome(step.state) == (False, 1, 0)
        wrong = env.demonstrate(answer, seed, error_rate=1.0, systematic_rate=0.0)
        assert env.step(answer, wrong).reward == 0.0
        assert re.fullmatch(r"A[0-9]{1,2}", wrong)


def test_random_mistakes_avoid_other_legal_calls():
    env = Arithmetic(num_operations=5, nesting=1)
    state, _ = start(env, "(1+2)*(1+3)-(1+4)")
    calls = {env.demonstrate(state, s, error_rate=1.0, systematic_rate=0.0) for s in range(3000)}
    assert calls == {f"Q1+{n}" for n in range(100)} - {"Q1+2", "Q1+3", "Q1+4"}


MALFORMED = ["", "Q", "A", "75", "A100", "A075", "A-5", "A7 ", "Q17*", "Q*4", "Q17/4", "Q17*4+4"]
MALFORMED += ["Q017*4", "Q100+1", "Q(3+4)", "q17*4", "A7.0", "Q17*4\n", "A7\n", "A\u0667", "Q-3+4"]


@pytest.mark.parametrize("action", MALFORMED)
def test_malformed_actions_cost_a_turn(action):
    for errors, success in (("repairable", True), ("fatal", False)):
        env = Arithmetic(num_operations=2, slack_turns=1, errors=errors)
        state, _ = env.reset(env.make_task(0))
        step = env.step(state, action)
        assert step.observation == ">!." and not step.ended
        state = step.state
        while not state.episode.ended:
            state = env.step(state, env.demonstrate(state, 0, **EXPERT)).state
        assert env.outcome(state) == (success, 2, 1)


def test_failure_and_noise():
    failing = Arithmetic(num_operations=2, chance=Chance(tool_failure=1.0))
    state, _ = start(failing, "17*4+4")
    step = failing.step(state, "Q17*4")
    assert step.observation == ">~." and step.state.expression == "17*4+4"
    noisy = Arithmetic(num_operations=2, chance=Chance(observation_noise=1.0))
    shown = {noisy.step(noisy.fork(state, stream), "Q17*4").observation for stream in range(3000)}
    assert shown == {f">{value}+4." for value in range(100)} - {">68+4."}
    # the expert believes what it was shown
    state = noisy.step(noisy.fork(state, 0), "Q17*4").state
    assert noisy.demonstrate(state, 0, **EXPERT) == f"Q{state.expression}"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_operations": 0}, "num_operations is 0; give an integer at least 1"),
        ({"nesting": -1}, "nesting is -1; give an integer at least 0"),
        ({"max_operand": 100}, "max_operand is 100; give an integer from 1 to 99"),
        ({"max_operand": 0}, "max_operand is 0"),
        ({"slack_turns": 0.5}, "slack_turns is 0.5; give an integer"),
        ({"errors": ""}, "errors is ''; choose one of"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(ValueError, match=message):
        Arithmetic(**settings)


def test_operation_errors_name_the_operation():
    with pytest.raises(ValueError, match="operation is '3/4'; give two numbers"):
        compute("3/4")
