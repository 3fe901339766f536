"""Draws: frequencies, independence, and checks of the settings."""

from collections import Counter

import numpy as np
import pytest

from rtpo_jax.envs import Chance
from rtpo_jax.envs.chance import pick, pick_other, uniform


def test_uniform_is_uniform_over_each_of_its_parts():
    count = 20_000
    for draws in (
        [uniform(stream, 3, "tool") for stream in range(count)],
        [uniform(3, turn, "tool") for turn in range(count)],
        [uniform(3, 3, place) for place in range(count)],
    ):
        draws = np.sort(draws)
        assert draws[0] >= 0.0 and draws[-1] < 1.0
        # Kolmogorov-Smirnov distance; 1.95 / sqrt(n) is exceeded with probability 0.001
        distance = np.max(np.abs(draws - (np.arange(count) + 0.5) / count))
        assert distance < 1.95 / np.sqrt(count)


def test_uniform_draws_of_neighbours_are_uncorrelated():
    count = 20_000
    draws = np.array([[uniform(s, t, "tool") for t in (0, 1)] for s in range(count)])
    pairs = [(draws[:, 0], draws[:, 1]), (draws[:-1, 0], draws[1:, 0])]
    for first, second in pairs:
        assert abs(np.corrcoef(first, second)[0, 1]) < 5 / np.sqrt(count)


def test_parts_are_not_run_together():
    assert uniform(1, 23) != uniform(12, 3)


def test_pick_and_pick_other_frequencies():
    count = 12_000
    picked = Counter(pick("abc", seed) for seed in range(count))
    others = Counter(pick_other("abcd", "b", seed) for seed in range(count))
    assert set(picked) == set("abc") and set(others) == set("acd")
    deviation = np.sqrt(count * (1 / 3) * (2 / 3))
    for frequency in (*picked.values(), *others.values()):
        assert abs(frequency - count / 3) < 5 * deviation


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.85])
def test_rates(rate):
    count = 10_000
    chance = Chance(tool_failure=rate, observation_noise=rate, luck=2.0)
    failures = sum(chance.tool_fails(stream, 2) for stream in range(count))
    untruths = sum(chance.reply_is_wrong(stream, 2) for stream in range(count))
    both = sum(chance.tool_fails(s, 2) and chance.reply_is_wrong(s, 2) for s in range(count))
    for frequency, probability in ((failures, rate), (untruths, rate), (both, rate**2)):
        deviation = np.sqrt(count * probability * (1 - probability))
        assert abs(frequency - count * probability) < 5 * deviation
    lucks = Counter(chance.draw_luck(stream) for stream in range(count))
    assert set(lucks) == {2.0, -2.0}
    assert abs(lucks[2.0] - count / 2) < 5 * np.sqrt(count / 4)


def test_certain_and_impossible():
    never, always = Chance(), Chance(tool_failure=1.0, observation_noise=1.0)
    for stream in range(500):
        assert not never.tool_fails(stream, 0) and not never.reply_is_wrong(stream, 0)
        assert always.tool_fails(stream, 0) and always.reply_is_wrong(stream, 0)
        assert never.draw_luck(stream) == 0.0


@pytest.mark.parametrize("field", ["tool_failure", "observation_noise"])
@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), float("inf"), "0.5", None])
def test_probabilities_are_checked(field, value):
    with pytest.raises(ValueError, match=f"{field} is .*; give a probability from 0 to 1"):
        Chance(**{field: value})


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), "1"])
def test_luck_is_checked(value):
    with pytest.raises(ValueError, match="luck is .*; give a finite number"):
        Chance(luck=value)
