"""Update order: toys by their numbers, refusals, and the whole experiment at its smallest."""

import dataclasses
import os
import re

import jax
import numpy as np
import pytest

from experiments import update_order_tabular as experiment
from experiments.theory import order_fidelity, order_toys
from experiments.theory.claims import load_counterexample

FRESH = int(os.environ["FRESH_SEED"])


def test_toys_have_the_numbers_worked_out_by_hand():
    found = order_toys.toys()
    assert all(claim.as_expected for claim in found.claims)
    numbers = found.counterexamples["hidden_action"].numbers
    expected = {
        "before": 0.4 * 0.6 * 2,
        "greedy, all at once": 0.0,
        "clipped, all at once": 0.48 * 0.52 * 2,  # both turns play action 0 with 0.4 x 1.2 or 0.52
        "greedy, reverse with M": 1.0,
        "greedy, natural with M": 1.0,
    }
    assert numbers == pytest.approx(expected, abs=1e-12)
    assert experiment.replay(found.counterexamples["hidden_action"]) == numbers


def test_schedules_hold_every_turn_once():
    config = experiment.Config(num_mdps=50, num_sweeps=20, seed=FRESH)
    schedules = experiment.draw_schedules(config)
    assert set(schedules) == set(experiment.ORDERS)
    for order in schedules.values():
        np.testing.assert_array_equal(np.sort(order, -1), np.tile([0, 1, 2], (50, 20, 1)))
    assert (schedules["reverse"][..., 0] == 2).all() and (schedules["natural"][..., 0] == 0).all()
    share = (schedules["random"][..., 0] == 0).mean()
    assert abs(share - 1 / 3) < 5 * np.sqrt(2 / 9 / 1000), f"{FRESH=}"


def test_rows_by_hand():
    reached = np.array([[0.0, 0.5, 0.96], [0.0, 0.99, 1.0]])
    found, best = {("greedy", "SeeUPO", "reverse"): reached}, np.ones(2)
    (row,) = experiment.arrival_rows(found, best)
    assert (row["q10"], row["q90"], row["never"]) == (1, 2, 0.0)
    assert row["gap left, worst"] == pytest.approx(0.04)
    rows = experiment.curve_rows(found, best)
    assert [r["arrived"] for r in rows] == [0.0, 0.5, 1.0]
    assert rows[1]["closed"] == pytest.approx(0.745)
    assert rows[1]["half_width"] == pytest.approx(1.96 * 0.49 / 2)


def test_impossible_options_are_refused():
    with pytest.raises(ValueError, match="num_mdps=1"):
        experiment.Config(num_mdps=1)
    with pytest.raises(ValueError, match="num_sweeps=2"):
        experiment.Config(num_sweeps=2)
    with pytest.raises(ValueError, match=re.escape("clip=1.0")):
        experiment.Config(clip=1.0)


def test_shared_trees_give_every_turn_the_same_policy():
    family = order_fidelity.family_of("shared")
    policy = family.policy(family.init(jax.random.key(FRESH)))
    np.testing.assert_array_equal(policy[0], policy[2])
    own = order_fidelity.family_of("per turn")
    policy = own.policy(own.init(jax.random.key(FRESH)))
    assert abs(policy[0] - policy[2]).max() > 1e-3


@pytest.mark.slow
def test_everything_at_its_smallest_is_as_expected(tmp_path):
    config = dataclasses.replace(experiment.PRESETS["tiny"], seed=FRESH)
    lines = []
    found = experiment.run(config, lines.append)
    assert len(lines) >= 3
    wrong = [claim for claim in found.claims if not claim.as_expected]
    assert not wrong, f"{FRESH=}"
    compound = {(r["parameters"], r["steps"], r["rule"]): r for r in found.tables["compound"]}
    assert compound["per turn", "large", "product (Eq. 8)"]["error / gain"] < 1e-10
    assert compound["shared", "large", "product (Eq. 8)"]["error / gain"] > 0.5
    losses = [r["gap after one greedy sweep, mean"] for r in found.tables["last_turns"]]
    assert losses == sorted(losses, reverse=True) and losses[-1] < 1e-12
    few = found.counterexamples["few_turns"].numbers
    assert few["last 2 one by one"] == pytest.approx(few["optimum"], abs=1e-12)
    assert few["last 1 one by one"] < few["optimum"] - 0.01
    for name, counterexample in found.counterexamples.items():
        path = tmp_path / f"{name}.json"
        counterexample.save(path)
        again = experiment.replay(load_counterexample(path))
        assert again == pytest.approx(counterexample.numbers, abs=1e-12), name
