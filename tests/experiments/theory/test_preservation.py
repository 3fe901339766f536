"""What breaks whom: settings, one run against the updates it is made of, and the smallest whole run."""

import dataclasses
import os

import jax
import numpy as np
import pytest

import tabular
from experiments import preservation as experiment
from experiments.theory import preservation_runs
from experiments.theory.claims import load_counterexample
from tabular.orders.breakage import Breakage

FRESH = int(os.environ["FRESH_SEED"])


def draw(*settings):
    breakages = [experiment.breakage_of(*setting) for setting in settings]
    stacked = Breakage(*map(np.array, zip(*breakages, strict=True)))
    runs = preservation_runs.draw_runs(jax.random.split(jax.random.key(FRESH), 2), stacked)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), runs)


def test_one_axis_is_broken_at_a_time():
    for axis, level in experiment.all_settings():
        found = experiment.breakage_of(axis, level)._asdict()
        assert found.pop(axis) == level
        others = {name: number for name, number in found.items() if number}
        assert others == ({} if axis == "transitions" else {"transitions": 1.0})


def test_rows_by_hand():
    share = np.array([[0.0, 0.5, 0.4], [0.0, 0.2, 0.6]])
    row = experiment.row_of("forks", 0.1, "RTPO", "exact", share)
    assert row["closed"] == pytest.approx(0.5) and row["lowering"] == 0.25
    assert row["worst fall"] == pytest.approx(0.1)
    assert row["half_width"] == pytest.approx(1.96 * 0.1)


def test_siblings_run_is_the_update_repeated():
    runs = draw(("observation", 0.3), ("forks", 0.0))
    found = preservation_runs.share_closed(runs, 1.0, method="RTPO", data="exact", num_iterations=2)
    clip, order = preservation_runs.CLIP, np.array([2, 1, 0])
    sweep = jax.jit(lambda m, p, c: tabular.siblings(m, p, order, *clip, c))
    for index in (0, 3):
        mdp, policy, contexts = jax.tree.map(lambda leaf, i=index: leaf[i], runs.instance)
        best = tabular.optimal_values(mdp)[0] @ mdp.start
        start, expected = tabular.performance(mdp, policy), [0.0]
        for _ in range(2):
            policy = sweep(mdp, policy, contexts)
            expected.append((tabular.performance(mdp, policy) - start) / (best - start))
        np.testing.assert_allclose(found[index], expected, rtol=0, atol=1e-11, err_msg=f"{FRESH=}")


def test_equal_budgets():
    turns = preservation_runs.SIZE[0]
    flat = preservation_runs.GROUPS * preservation_runs.MEMBERS * turns
    siblings = preservation_runs.SIBLINGS * turns * (turns + 1) // 2
    assert flat == preservation_runs.TRUNKS * (turns + siblings) == 180


def test_impossible_options_are_refused():
    with pytest.raises(ValueError, match="num_mdps=1"):
        experiment.Config(num_mdps=1)
    with pytest.raises(ValueError, match="num_iterations=0"):
        experiment.Config(num_iterations=0)


@pytest.mark.slow
def test_exact_ppo_with_the_right_critic_is_the_simultaneous_update():
    runs = draw(("value_noise", 0.0))
    found = preservation_runs.share_closed(runs, 0.0, method="PPO", data="exact", num_iterations=1)
    paths = tabular.all_paths(3, 4, 3, early_end=False)
    mdp, policy, contexts = jax.tree.map(lambda leaf: leaf[1], runs.instance)
    weights = tabular.path_probabilities(mdp, policy, paths)
    advantages = tabular.value_advantages(mdp, paths, tabular.values(mdp, policy).V, 0.0)
    clip = preservation_runs.CLIP
    update = jax.jit(lambda p, w, a: tabular.simultaneous(p, paths, w, a, *clip, contexts))
    new = update(policy, weights, advantages)
    start, best = tabular.performance(mdp, policy), tabular.optimal_values(mdp)[0] @ mdp.start
    expected = (tabular.performance(mdp, new) - start) / (best - start)
    assert abs(found[1, 1] - expected) < 1e-11, f"{FRESH=}"


@pytest.mark.slow
def test_everything_at_its_smallest_is_as_expected(tmp_path):
    config = dataclasses.replace(experiment.PRESETS["tiny"], seed=FRESH)
    found = experiment.run(config)
    assert not [claim for claim in found.claims if not claim.as_expected], f"{FRESH=}"
    rows = {
        (r["axis"], r["level"], r["method"], r["data"]): r for r in found.tables["preservation"]
    }
    assert len(rows) == 6 * 5 * 4 * 2
    for axis, method in (("value_noise", "SeeUPO"), ("forks", "PPO, lambda 0"), ("forks", "SeeUPO"),
                         ("value_bias", "RTPO")):  # fmt: skip
        ends = {rows[axis, level, method, "sampled"]["closed"] for level in experiment.LEVELS[axis]}
        assert len(ends) == 1, "an axis that does not touch a method moves it"
    for axis, method in (("rewards", "SeeUPO"), ("value_bias", "PPO, lambda 0"), ("forks", "RTPO")):
        levels = experiment.LEVELS[axis]
        ends = [rows[axis, levels[n], method, "sampled"]["closed"] for n in (0, -1)]
        assert ends[0] - ends[1] > 0.1, f"{FRESH=} {axis=}"
    for name, counterexample in found.counterexamples.items():
        counterexample.save(tmp_path / f"{name}.json")
        again = experiment.replay(load_counterexample(tmp_path / f"{name}.json"))
        assert again == pytest.approx(counterexample.numbers, abs=1e-12), name
