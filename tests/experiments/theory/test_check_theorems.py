"""All theorem experiments in one go: every one is there, one table, exit codes."""

import csv
import dataclasses
import importlib
import json
from pathlib import Path

import pytest

from experiments import check_theorems
from experiments.theory.claims import Counterexample, Findings, at_least, at_most

ROOT = Path(__file__).parents[3]


def fake(name, worst):
    def run(config, say):
        say(f"seed {config.seed}")
        claims = [
            at_most("identity", "here", 2, worst, 1e-10),
            at_least("gain", "there", 1, -1.0, 0.0, expected=False, counterexample="toy"),
        ]
        toy = Counterexample(statement="A toy.", arrays={}, settings={}, numbers={"gain": -1.0})
        return Findings(claims=claims, tables={"t": [{"x": 1}]}, counterexamples={"toy": toy})

    real = check_theorems.EXPERIMENTS[name]
    return dataclasses.replace(real, run=run, figures=None)


@pytest.fixture
def call(monkeypatch, tmp_path):
    def calling(worst, *arguments):
        for name in check_theorems.EXPERIMENTS:
            monkeypatch.setitem(check_theorems.EXPERIMENTS, name, fake(name, worst))
        return check_theorems.main([*arguments, "--results", str(tmp_path)])

    return calling


def test_every_theorem_experiment_takes_part():
    entry_points = {
        path.stem
        for path in (ROOT / "experiments").glob("*.py")
        if "theory.Experiment(" in path.read_text()
    }
    assert set(check_theorems.EXPERIMENTS) == entry_points
    for name, experiment in check_theorems.EXPERIMENTS.items():
        assert importlib.import_module(f"experiments.{name}").EXPERIMENT is experiment
        assert f"    {name} " in check_theorems.__doc__


@pytest.mark.parametrize("name", list(check_theorems.EXPERIMENTS))
def test_presets_take_the_seed_and_name_their_size(name):
    experiment = check_theorems.EXPERIMENTS[name]
    assert set(experiment.presets) == {"tiny", "cpu"}
    for size, preset in experiment.presets.items():
        assert preset.size == size
        assert dataclasses.replace(preset, seed=7).seed == 7
    assert f"python -m experiments.{name}" in experiment.description


def test_one_table_of_all_claims(call, tmp_path):
    assert call(0.0, "--size", "tiny", "--seed", "3") == 0
    folder = tmp_path / "check_theorems" / "tiny-seed3"
    with open(folder / "claims.csv") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * len(check_theorems.EXPERIMENTS)
    assert rows[0]["claim"] == "theorem_credit: identity"
    assert {row["counterexample"] for row in rows[1::2]} == {
        f"{name}/counterexamples/toy.json" for name in check_theorems.EXPERIMENTS
    }
    for row in rows[1::2]:
        assert json.loads((folder / row["counterexample"]).read_text())["numbers"] == {"gain": -1}
    assert len((folder / "table.md").read_text().splitlines()) == 2 + len(rows)


def test_a_claim_that_fails_fails_the_command(call, capsys):
    assert call(1.0) == 1
    words = " ".join(capsys.readouterr().out.split())
    count = len(check_theorems.EXPERIMENTS)
    assert f"{2 * count} claims, {count} not as expected" in words


def test_some_experiments_alone(call, tmp_path):
    assert call(0.0, "--only", "regimes", "theorem_drift") == 0
    folders = {path.name for path in (tmp_path / "check_theorems/cpu-seed0").iterdir()}
    assert folders == {"config.json", "claims.csv", "table.md", "regimes", "theorem_drift"}


@pytest.mark.parametrize("arguments", [["--only", "regimes", "regimes"], ["--only", "unknown"]])
def test_bad_choices_are_refused(call, arguments):
    with pytest.raises(SystemExit) as stop:
        call(0.0, *arguments)
    assert stop.value.code == 2
