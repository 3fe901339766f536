"""What every environment promises: values, forks, hidden luck, horizon, repeatability."""

import hashlib
import os
import subprocess
import sys
from itertools import pairwise

import pytest

from rtpo_jax.envs import Arithmetic, Chance, Lock, Lookup, Questions

SUMS = (("What is 3+4?", "7"), ("What is 9+9?", "18"), ("What is 1+0?", "1"))
CALL = '<tool_call>{"name": "calculator", "arguments": {"expression": "3+4"}}</tool_call>'
RATES = {"error_rate": 0.3, "systematic_rate": 0.3}


def environments(chance, tool=True):
    """Every environment, with and without slack; the lock has no tool and only luck."""
    lock_chance = Chance(luck=chance.luck)
    with_tool = [
        Lookup(num_hops=3, chance=chance),
        Lookup(num_hops=2, slack_turns=3, chance=chance),
        Lookup(num_hops=3, slack_turns=1, errors="fatal", chance=chance),
        Arithmetic(num_operations=4, nesting=2, chance=chance),
        Arithmetic(num_operations=3, slack_turns=2, max_operand=99, chance=chance),
        Arithmetic(num_operations=3, errors="fatal", chance=chance),
        Questions(SUMS, num_turns=4, chance=chance),
    ]
    without = [
        Lock(code_length=4, num_actions=3, chance=lock_chance),
        Lock(4, 3, random_code=True, errors="repairable", slack_turns=2, chance=lock_chance),
        Lock(3, 2, show_progress=True, chance=lock_chance),
    ]
    return with_tool if tool else with_tool + without


NOISY = environments(Chance(tool_failure=0.2, observation_noise=0.2, luck=0.5), tool=False)
WITH_TOOL = environments(Chance(tool_failure=0.5))


def name(environment):
    return repr(environment)[:60]


def play(environment, seed, stream):
    """Return states, actions and steps of one noisy demonstration."""
    task = environment.make_task(seed)
    state, question = environment.reset(task)
    states, actions, steps = [environment.fork(state, stream)], [question], []
    while not steps or not steps[-1].ended:
        action = environment.demonstrate(states[-1], stream, **RATES)
        steps.append(environment.step(states[-1], action))
        states.append(steps[-1].state)
        actions.append(action)
    return states, actions, steps


@pytest.mark.parametrize("environment", NOISY, ids=name)
def test_states_are_values(environment):
    task = environment.make_task(5)
    assert task == environment.make_task(5)
    assert hash(task) == hash(environment.make_task(5))
    state, _ = environment.reset(task)
    before = (hash(state), repr(state))
    first = environment.step(state, environment.demonstrate(state, 0, **RATES))
    for action in ("", "Qa0k", "Q1+1", "A7", "b", CALL):
        environment.step(state, action)
    environment.fork(state, 99)
    assert (hash(state), repr(state)) == before
    again = environment.step(state, environment.demonstrate(state, 0, **RATES))
    assert again == first
    assert first.state != state
    with pytest.raises((AttributeError, TypeError)):  # frozen
        state.task = None


@pytest.mark.parametrize("environment", NOISY, ids=name)
def test_same_task_stream_and_actions_give_the_same_episode(environment):
    for seed in range(20):
        assert play(environment, seed, 1000 + seed) == play(environment, seed, 1000 + seed)


@pytest.mark.parametrize("environment", NOISY, ids=name)
def test_reset_uses_the_tasks_seed_as_stream(environment):
    task = environment.make_task(77)
    state, _ = environment.reset(task)
    assert environment.fork(state, 77) == state
    assert environment.fork(state, 78) != state


@pytest.mark.parametrize("environment", NOISY, ids=name)
def test_horizon_rewards_and_endings(environment):
    for action in ("", "Qa0k", "Q1+1", "zz", CALL):
        state, question = environment.reset(environment.make_task(3))
        assert question
        turns = 0
        while True:
            step = environment.step(state, action)
            turns += 1
            assert step.state.episode.turn == turns
            assert (step.observation == "") == step.ended
            outcome = environment.outcome(step.state)
            if step.ended:
                break
            assert step.reward == 0.0 and outcome.success is False
            state = step.state
        assert turns <= environment.num_turns
        if action in ("", "zz", CALL) and not isinstance(environment, Questions):
            assert turns == environment.num_turns
        with pytest.raises(ValueError, match=f"ended after {turns} turns"):
            environment.step(step.state, action)
        with pytest.raises(ValueError, match=f"ended after {turns} turns"):
            environment.demonstrate(step.state, 0, **RATES)


@pytest.mark.parametrize("environment", NOISY, ids=name)
def test_terminal_reward_is_success_plus_luck(environment):
    for seed in range(40):
        _, _, steps = play(environment, seed, seed)
        assert [step.reward for step in steps[:-1]] == [0.0] * (len(steps) - 1)
        success = environment.outcome(steps[-1].state).success
        assert abs(steps[-1].reward - success) == 0.5


def test_luck_is_never_seen():
    """Luck on or off: same observations and success; rewards differ by exactly +-luck."""
    noise = {"tool_failure": 0.2, "observation_noise": 0.2}
    plain = environments(Chance(**noise), tool=False)
    lucky = environments(Chance(**noise, luck=0.75), tool=False)
    for without, with_luck in zip(plain, lucky, strict=True):
        differences = set()
        for seed in range(60):
            _, actions, steps = play(without, seed, 500 + seed)
            _, lucky_actions, lucky_steps = play(with_luck, seed, 500 + seed)
            assert lucky_actions == actions
            assert [s.observation for s in lucky_steps] == [s.observation for s in steps]
            last, lucky_last = steps[-1], lucky_steps[-1]
            assert with_luck.outcome(lucky_last.state) == without.outcome(last.state)
            differences.add(lucky_last.reward - last.reward)
        assert differences == {0.75, -0.75}, name(without)


@pytest.mark.parametrize("environment", NOISY, ids=name)
def test_luck_is_shared_by_forks_after_turn_zero_only(environment):
    state, _ = environment.reset(environment.make_task(8))
    action = CALL if isinstance(environment, Questions) else "?"
    redrawn = [environment.step(environment.fork(state, s), action).state for s in range(200)]
    lucks = [new.episode.luck for new in redrawn]
    # 200 fair draws: 100 +- 7.1; five standard deviations
    assert set(lucks) == {0.5, -0.5} and 65 <= lucks.count(0.5) <= 135
    shared = redrawn[0]
    for seed in range(50):
        branch = environment.fork(shared, seed)
        while not branch.episode.ended:
            branch = environment.step(branch, action).state
        assert branch.episode.luck == lucks[0]


@pytest.mark.parametrize("environment", WITH_TOOL, ids=name)
def test_fork_redraws_tool_failures_and_keeps_the_past(environment):
    state, _ = environment.reset(environment.make_task(11))
    rates = {"error_rate": 0.0, "systematic_rate": 0.0}
    questions = isinstance(environment, Questions)

    def act(state):
        return CALL if questions else environment.demonstrate(state, 0, **rates)

    state = environment.step(environment.fork(state, 4), act(state)).state
    branches = [environment.fork(state, seed) for seed in range(200)]
    for branch in branches:
        assert environment.fork(branch, state.episode.stream) == state
    replies = [environment.step(branch, act(branch)).observation for branch in branches]
    failed = [reply.startswith(("error", ">~.")) for reply in replies]
    assert 65 <= sum(failed) <= 135  # 200 draws at 0.5, five standard deviations
    assert len(set(replies)) == 2  # the truth itself is not redrawn


@pytest.mark.parametrize("environment", NOISY, ids=name)
def test_symbols_cover_everything_that_is_written(environment):
    symbols = environment.symbols
    assert len(set(symbols)) == len(symbols)
    if symbols == "":
        return
    seen = set()
    for seed in range(300):
        _, actions, steps = play(environment, seed, seed)
        seen |= set("".join(actions + [step.observation for step in steps]))
        state, _ = environment.reset(environment.make_task(seed))
        seen |= set(environment.step(state, "%").observation)
    assert seen == set(symbols)


@pytest.mark.parametrize("environment", NOISY, ids=name)
def test_argument_errors(environment):
    state, _ = environment.reset(environment.make_task(0))
    with pytest.raises(ValueError, match="action_text is b'A'; give the action as a string"):
        environment.step(state, b"A")
    for seed in ("3", 1.0, None):
        with pytest.raises(ValueError, match="seed is .*; give an integer"):
            environment.make_task(seed)
        with pytest.raises(ValueError, match="seed is .*; give an integer"):
            environment.fork(state, seed)
    with pytest.raises(ValueError, match="error_rate is 1.5; give a probability"):
        environment.demonstrate(state, 0, error_rate=1.5, systematic_rate=0.0)
    with pytest.raises(ValueError, match="systematic_rate is nan; give a probability"):
        environment.demonstrate(state, 0, error_rate=0.0, systematic_rate=float("nan"))


def test_numpy_integers_are_seeds():
    numpy = pytest.importorskip("numpy")
    for environment in NOISY:
        assert environment.make_task(numpy.int64(9)) == environment.make_task(9)


def fingerprint():
    episodes = [play(environment, seed, seed + 7) for environment in NOISY for seed in range(10)]
    return hashlib.sha256(repr(episodes).encode()).hexdigest()


def test_processes_agree():
    """Another process, another hash salt, same episodes."""
    script = (
        "import importlib.util as u\n"
        f"spec = u.spec_from_file_location('contract', {__file__!r})\n"
        "module = u.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "print(module.fingerprint())"
    )
    environment = os.environ | {"PYTHONHASHSEED": "12345"}
    result = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == fingerprint()


def test_neighbouring_task_seeds_give_unrelated_tasks():
    environment = Lookup(num_hops=3)
    tasks = [environment.make_task(seed) for seed in range(400)]
    assert len({(task.start, task.relations) for task in tasks}) > 390
    same_start = sum(first.start == second.start for first, second in pairwise(tasks))
    assert same_start <= 30  # mean 399 / 40 = 10, standard deviation 3.1
