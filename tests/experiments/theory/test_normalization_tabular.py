"""Normalisation: both toys by hand, junk at placeholders, and the smallest whole run."""

import dataclasses
import os

import jax
import numpy as np
import pytest

from experiments import normalization_tabular as experiment
from experiments.theory import ragged_batches, task_mixtures
from experiments.theory.claims import load_counterexample

FRESH = int(os.environ["FRESH_SEED"])


def test_two_tasks_with_one_parameter_by_hand():
    # Slopes p(1-p) = 0.25 and -10 x 0.01; over deviations 0.5 and 0.1 they are 0.5 and -1.
    slopes = task_mixtures.sign_flip()
    assert slopes == pytest.approx({"none": 0.25 - 0.1, "group": 0.5 - 1.0}, abs=1e-12)


def test_two_tasks_that_look_alike_by_hand():
    # Both rows move from (1/2, 1/2) to (0.6, 0.4) or back: dJ = 0.1 (0.1 - 0.04) / 2.
    found = experiment.shared_tasks()
    assert all(claim.as_expected for claim in found.claims)
    numbers = found.counterexamples["alike_tasks"].numbers
    assert numbers == pytest.approx({"none": 0.003, "group scale": -0.003}, abs=1e-12)
    assert experiment.replay(found.counterexamples["alike_tasks"]) == numbers


def test_junk_at_placeholders_changes_nothing():
    assert ragged_batches.junk_changes(FRESH) < 1e-14, f"{FRESH=}"


def test_mixtures_have_outcomes_of_0_or_1():
    mdp, features = jax.jit(task_mixtures.draw)(jax.random.key(FRESH))
    assert set(np.unique(mdp.rewards)) <= {0.0, 1.0} and (np.asarray(mdp.rewards[:-1]) == 0).all()
    assert features.shape == (*task_mixtures.SHAPE, task_mixtures.FEATURES)


def test_difference_rows_by_hand():
    base = np.array([[0.0, 0.5], [0.0, 0.3]])
    found = {("s", "g", "none"): base, ("s", "g", "group"): np.array([[0.0, 0.6], [0.0, -0.1]])}
    (row,) = task_mixtures.difference_rows(found)
    assert row["difference at the end"] == pytest.approx(-0.15)
    assert (row["better"], row["worse"], row["iterations that lower J"]) == (0.5, 0.5, 0.5)
    assert row["half_width"] == pytest.approx(12.7062 * 0.25)  # t with 1 degree of freedom


def test_impossible_options_are_refused():
    with pytest.raises(ValueError, match="num_mixtures=1"):
        experiment.Config(num_mixtures=1)
    with pytest.raises(ValueError, match="num_iterations=0"):
        experiment.Config(num_iterations=0)


@pytest.mark.slow
def test_group_scale_ascends_the_arcsine():
    assert task_mixtures.arcsine_error(FRESH, 20) < 1e-10, f"{FRESH=}"


@pytest.mark.slow
def test_everything_at_its_smallest_is_as_expected(tmp_path):
    config = dataclasses.replace(experiment.PRESETS["tiny"], seed=FRESH)
    found = experiment.run(config)
    assert not [claim for claim in found.claims if not claim.as_expected], f"{FRESH=}"
    rows = found.tables["placeholders"]
    reach = [row["real share"] for row in rows]
    assert reach[0] == pytest.approx(1.0) and reach == sorted(reach, reverse=True)
    assert rows[0]["sign changed"] == 0 and rows[0]["scale with placeholders"] == pytest.approx(1)
    assert rows[-1]["scale with placeholders"] < 0.9
    assert found.counterexamples["pool_mean"].numbers["largest change"] > 0.01
    assert found.counterexamples["placeholders"].numbers["sign changed"] > 0.01
    for name, counterexample in found.counterexamples.items():
        counterexample.save(tmp_path / f"{name}.json")
        again = experiment.replay(load_counterexample(tmp_path / f"{name}.json"))
        assert again == pytest.approx(counterexample.numbers, abs=1e-12), name
