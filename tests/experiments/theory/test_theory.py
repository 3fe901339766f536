"""What every theorem experiment shares: verdicts, files, the command line and replaying."""

import csv
import dataclasses
import json
from typing import Literal

import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

import tabular
from experiments import theory
from experiments.theory.claims import (
    Counterexample,
    Findings,
    at_least,
    at_most,
    load_counterexample,
    mdp_arrays,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    size: Literal["tiny", "cpu"] = "cpu"
    seed: int = 0
    worst: float = 1e-12

    def __post_init__(self):
        if self.worst < 0:
            raise ValueError(f"worst={self.worst}: use 0 or more")


def lowered():
    mdp, policy, _ = tabular.toy_reverse_order()
    arrays = {**mdp_arrays(mdp), "policy": policy}
    numbers = {"before": 0.475, "third": 1 / 3}
    return Counterexample(statement="A toy.", arrays=arrays, settings={"eps": 0.2}, numbers=numbers)


def run(config, say=theory.silent):
    say("checking")
    claims = [
        at_most("an identity | with a bar", "nowhere", 3, config.worst, 1e-10),
        at_least("never falls", "toy", 1, -0.2, 0.0, expected=False, counterexample="toy"),
    ]
    tables = {"curve": [{"x": 1, "y": 0.5}, {"x": 2, "y": 0.25}]}
    return Findings(claims=claims, tables=tables, counterexamples={"toy": lowered()})


def replay(counterexample):
    before = tabular.performance(counterexample.mdp, counterexample.arrays["policy"])
    return {"before": float(before), "third": 1 / 3}


PRESETS = {"cpu": Config(), "tiny": Config(size="tiny", worst=0.0)}
EXPERIMENT = theory.Experiment(
    name="fake", description="A fake.\n\nMore.", presets=PRESETS, run=run, replay=replay
)


def call(tmp_path, *arguments, experiment=EXPERIMENT):
    return theory.main(experiment, [*arguments, "--results", str(tmp_path)])


def test_a_claim_holds_only_on_the_right_side_of_its_bound():
    assert at_most("c", "w", 1, 1.0, 1.0).holds and not at_most("c", "w", 1, 1.1, 1.0).holds
    assert at_least("c", "w", 1, 1.0, 1.0).holds and not at_least("c", "w", 1, 0.9, 1.0).holds
    for claim in (at_most("c", "w", 1, np.nan, 1.0), at_least("c", "w", 1, np.nan, 1.0)):
        assert not claim.holds and not claim.as_expected
    # A counterexample that is not finite shows nothing.
    assert not at_most("c", "w", 1, np.nan, 1.0, expected=False).as_expected
    assert at_most("c", "w", 1, 2.0, 1.0, expected=False).as_expected
    lost = at_most("c", "w", 1, 0.5, 1.0, expected=False)
    assert not lost.as_expected and lost.row()["verdict"] == "holds (NOT EXPECTED)"


def test_a_claim_on_nothing_is_refused():
    with pytest.raises(ValueError, match="instances=0"):
        at_most("c", "w", 0, 0.0, 1.0)


def test_a_counterexample_that_is_named_has_to_be_there():
    claims = run(Config()).claims
    with pytest.raises(ValueError, match="toy"):
        Findings(claims=claims)


def test_main_writes_claims_tables_and_counterexamples(tmp_path):
    assert call(tmp_path) == 0
    folder = tmp_path / "fake" / "cpu-seed0"
    with open(folder / "claims.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["holds"] for row in rows] == ["True", "False"]
    assert float(rows[0]["worst"]) == 1e-12
    assert (folder / "curve.csv").read_text().splitlines() == ["x,y", "1,0.5", "2,0.25"]
    lines = (folder / "table.md").read_text().splitlines()
    assert len(lines) == 4 and "an identity \\| with a bar" in lines[2]
    assert json.loads((folder / "config.json").read_text())["config"]["worst"] == 1e-12
    # The same command again is another run; nothing is overwritten.
    assert call(tmp_path) == 0
    assert (tmp_path / "fake" / "cpu-seed0-2" / "claims.csv").exists()
    assert call(tmp_path, "--run", "cpu-seed0") == 2


def test_a_failing_claim_is_exit_code_1_and_marked(tmp_path):
    assert call(tmp_path, "--worst", "0.5") == 1
    table = (tmp_path / "fake" / "cpu-seed0" / "table.md").read_text()
    assert "| 0.5 <= 1e-10 | violated (NOT EXPECTED) |" in table


def test_bad_options_are_refused(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        call(tmp_path, "--worst", "-1")
    assert stop.value.code == 2 and "worst=-1.0: use 0 or more" in capsys.readouterr().err
    assert call(tmp_path, "--replay", "absent.json") == 2
    assert "absent.json" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "options, message",
    [(["--seed", "-1"], "seed=-1: use 0 or more"), (["--run", "../x"], "run='../x': give a name")],
)
def test_bad_runs_are_refused_by_name(tmp_path, capsys, options, message):
    assert theory.main(EXPERIMENT, [*options, "--results", str(tmp_path / "inner")]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_claim_that_fails_needs_a_counterexample():
    claim = at_most("c", "w", 1, 2.0, 1.0, expected=False)
    with pytest.raises(ValueError, match="fail name no counterexample: \\['c'\\]"):
        Findings(claims=[claim])


def test_unknown_options_are_refused(tmp_path):
    with pytest.raises(SystemExit):
        call(tmp_path, "--unknown", "1")
    with pytest.raises(SystemExit):
        call(tmp_path, "--size", "huge")


def test_size_picks_the_preset(tmp_path):
    assert call(tmp_path, "--size", "tiny") == 0
    assert call(tmp_path, "--size=tiny") == 0
    for name in ("tiny-seed0", "tiny-seed0-2"):
        config = json.loads((tmp_path / "fake" / name / "config.json").read_text())["config"]
        assert config["worst"] == 0.0


def test_counterexamples_come_back_bit_for_bit(tmp_path):
    path = tmp_path / "toy.json"
    lowered().save(path)
    found = load_counterexample(path)
    assert found.numbers == lowered().numbers and found.settings == {"eps": 0.2}
    for name, array in lowered().arrays.items():
        assert found.arrays[name].dtype == jnp.float64
        np.testing.assert_array_equal(found.arrays[name], array)
    assert found.mdp.num_turns == 2


def test_replay_computes_the_numbers_again(tmp_path):
    path = tmp_path / "toy.json"
    lowered().save(path)
    assert call(tmp_path, "--replay", str(path)) == 0
    record = json.loads(path.read_text())
    record["numbers"]["before"] += 1e-9
    path.write_text(json.dumps(record))
    assert call(tmp_path, "--replay", str(path)) == 1


def test_replay_takes_a_number_that_is_not_there_twice_as_agreement(tmp_path):
    path = tmp_path / "toy.json"
    dataclasses.replace(lowered(), numbers={"ratio": np.nan, "third": 1 / 3}).save(path)
    for again, code in ((np.nan, 0), (0.5, 1)):
        numbers = {"ratio": again, "third": 1 / 3}
        other = dataclasses.replace(EXPERIMENT, replay=lambda _, numbers=numbers: numbers)
        assert call(tmp_path, "--replay", str(path), experiment=other) == code


def test_replay_refuses_the_counterexample_of_another_experiment(tmp_path, capsys):
    path = tmp_path / "toy.json"
    lowered().save(path)
    for elsewhere in (lambda example: example.settings["kind"], lambda example: {"third": 1 / 3}):
        other = dataclasses.replace(EXPERIMENT, replay=elsewhere)
        assert call(tmp_path, "--replay", str(path), experiment=other) == 2
        assert "give a counterexample that this version of fake wrote" in capsys.readouterr().err


def test_replay_refuses_what_is_no_counterexample(tmp_path, capsys):
    path = tmp_path / "other.json"
    for text, message in (("{", "not JSON"), ('{"a": 1}', "not a counterexample"), ("3", "not a")):
        path.write_text(text)
        assert call(tmp_path, "--replay", str(path)) == 2
        assert message in capsys.readouterr().err
    none = dataclasses.replace(EXPERIMENT, replay=None)
    assert call(tmp_path, "--replay", str(path), experiment=none) == 2
    assert "no counterexamples" in capsys.readouterr().err


def test_progress_is_said_and_figures_are_drawn(tmp_path, capsys):
    drawn = []
    experiment = dataclasses.replace(EXPERIMENT, figures=drawn.append)
    theory.run_and_write(experiment, Config(), tmp_path / "a", Console())
    assert drawn == [tmp_path / "a"] and (tmp_path / "a" / "curve.csv").exists()
    printed = capsys.readouterr().out
    assert "checking" in printed and "fake:" in printed
