"""The lock against its closed forms, by enumeration of all action sequences."""

from itertools import product
from math import comb

import pytest

from rtpo_jax.envs import Chance, Lock

EXPERT = {"error_rate": 0.0, "systematic_rate": 0.0}


def run(lock, state, actions):
    """Act until the episode ends; return rewards, observations and last state."""
    rewards, observations = [], []
    for action in actions:
        step = lock.step(state, action)
        state = step.state
        rewards.append(step.reward)
        observations.append(step.observation)
        if step.ended:
            break
    return rewards, observations, state


@pytest.mark.parametrize(("length", "p"), [(4, 0.6), (6, 0.7), (2, 0.1)])
def test_value_of_the_alive_state_is_a_power_of_p(length, p):
    """V_k = p^(K-k): sum over all action sequences of probability times return."""
    lock = Lock(code_length=length, num_actions=2)
    state, _ = lock.reset(lock.make_task(0))
    assert lock.num_turns == length
    for k in range(length):
        value = 0.0
        for actions in product("ab", repeat=length - k):
            probability = 1.0
            for action in actions:
                probability *= p if action == "a" else 1 - p
            rewards, _, last = run(lock, state, actions)
            assert len(rewards) == length - k and last.episode.ended
            value += probability * sum(rewards)
        assert value == pytest.approx(p ** (length - k), abs=1e-12)
        state = lock.step(state, "a").state


def test_a_dead_lock_stays_dead_and_shows_nothing():
    lock = Lock(code_length=4, num_actions=3)
    start, question = lock.reset(lock.make_task(0))
    assert question == "?"
    for actions in product("abc", repeat=4):
        rewards, observations, last = run(lock, start, actions)
        assert rewards == [0.0, 0.0, 0.0, float(actions == ("a",) * 4)]
        assert observations == [">1.", ">2.", ">3.", ""]
        assert lock.outcome(last) == (actions == ("a",) * 4, 0, 0)


@pytest.mark.parametrize(("length", "slack", "p"), [(2, 2, 0.4), (3, 3, 0.6), (3, 0, 0.6)])
def test_repairable_lock_is_a_binomial_tail(length, slack, p):
    """K right actions among K+slack turns: sum_{j>=K} C(K+slack, j) p^j (1-p)^(K+slack-j)."""
    lock = Lock(code_length=length, errors="repairable", slack_turns=slack)
    start, _ = lock.reset(lock.make_task(0))
    turns = length + slack
    value = 0.0
    for actions in product("ab", repeat=turns):
        weight = p ** actions.count("a") * (1 - p) ** actions.count("b")
        rewards, _, _ = run(lock, start, actions)
        value += weight * sum(rewards)
        used = len(rewards)
        assert used == turns or actions[:used].count("a") == length
    tail = sum(comb(turns, j) * p**j * (1 - p) ** (turns - j) for j in range(length, turns + 1))
    assert value == pytest.approx(tail, abs=1e-12)


def test_progress_is_shown_when_asked_for():
    lock = Lock(code_length=4, show_progress=True)
    start, _ = lock.reset(lock.make_task(0))
    assert run(lock, start, "aaaa")[1] == [">1+.", ">2+.", ">3+.", ""]
    assert run(lock, start, "abaa")[1] == [">1+.", ">1-.", ">1-.", ""]
    repairable = Lock(4, show_progress=True, errors="repairable", slack_turns=1)
    start, _ = repairable.reset(repairable.make_task(0))
    assert run(repairable, start, "abaaa")[1] == [">1+.", ">1-.", ">2+.", ">3+.", ""]
    noisy = Lock(4, show_progress=True, chance=Chance(observation_noise=1.0))
    start, _ = noisy.reset(noisy.make_task(0))
    assert run(noisy, start, "abaa")[1] == [">1-.", ">1+.", ">1+.", ""]


def test_random_codes_are_shown_and_only_they_open():
    lock = Lock(code_length=3, num_actions=3, random_code=True)
    codes = set()
    for seed in range(300):
        task = lock.make_task(seed)
        state, question = lock.reset(task)
        assert question == task.code + "?"
        codes.add(task.code)
        for actions in product("abc", repeat=3):
            rewards, _, _ = run(lock, state, actions)
            assert sum(rewards) == ("".join(actions) == task.code)
    assert len(codes) == 27  # 300 draws of 27: each is missed with probability 1e-5


@pytest.mark.parametrize("action", ["", "aa", "a ", "c", "A", "\n"])
def test_malformed_actions_are_wrong_and_counted_but_not_told_apart(action):
    lock = Lock(code_length=2, num_actions=2)
    start, _ = lock.reset(lock.make_task(0))
    step = lock.step(start, action)
    assert step.observation == lock.step(start, "b").observation == ">1."
    last = lock.step(step.state, "a")
    assert last.reward == 0.0 and lock.outcome(last.state) == (False, 0, 1)


def test_expert():
    lock = Lock(code_length=7, num_actions=4, random_code=True)
    for seed in range(50):
        state, _ = lock.reset(lock.make_task(seed))
        places = []
        for place in range(7):
            right = lock.demonstrate(state, seed, **EXPERT)
            assert right == state.task.code[place]
            misled = lock.demonstrate(state, seed, error_rate=0.0, systematic_rate=1.0)
            if misled != right:
                places.append(place)
                assert misled == "bcda"["abcd".index(right)]
            assert lock.demonstrate(state, seed, error_rate=1.0, systematic_rate=0.0) != right
            step = lock.step(state, right)
            state = step.state
        assert places == [0, 3, 6]
        assert step.reward == 1.0


def test_expert_error_rate():
    """K turns, each right with probability 1 - e: success (1 - e)^K."""
    lock = Lock(code_length=3, num_actions=3)
    start, _ = lock.reset(lock.make_task(0))
    wins, count = 0, 3000
    for seed in range(count):
        state = start
        while not state.episode.ended:
            action = lock.demonstrate(state, seed, error_rate=0.25, systematic_rate=0.0)
            state = lock.step(state, action).state
        wins += lock.outcome(state).success
    p = 0.75**3
    assert abs(wins - count * p) < 5 * (count * p * (1 - p)) ** 0.5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"code_length": 0}, "code_length is 0; give an integer from 1 to 36"),
        ({"code_length": 2.0}, "code_length is 2.0; give an integer"),
        ({"num_actions": 1}, "num_actions is 1; give an integer from 2 to 26"),
        ({"num_actions": 27}, "num_actions is 27"),
        ({"errors": "Fatal"}, "errors is 'Fatal'; choose one of 'fatal', 'repairable'"),
        ({"slack_turns": 1}, "slack_turns is 1 and has no use with errors='fatal'"),
        ({"slack_turns": -1, "errors": "repairable"}, "slack_turns is -1"),
        ({"slack_turns": 33, "errors": "repairable"}, "slack_turns is 33"),
        ({"chance": Chance(tool_failure=0.1)}, "tool_failure is 0.1; a lock has no tool"),
        ({"chance": Chance(observation_noise=0.1)}, "observation_noise is 0.1 and has no use"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        Lock(**settings)
