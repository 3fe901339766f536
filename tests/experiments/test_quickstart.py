"""The main job at its tiny size: what it writes, what it refuses, and that it can be killed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from experiments import quickstart, run_directory
from paper_figures import comparison
from rtpo_jax.training import Checkpoints

ROOT = Path(__file__).parents[2]
NOT_REPEATABLE = ("seconds", "compiled_programs", "tokens_per_second")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished tiny run."""
    results = tmp_path_factory.mktemp("results")
    config = quickstart.PRESETS["tiny"]
    directory = run_directory.create(results, "quickstart", "a", config)
    rows = quickstart.run(config, directory, Console(file=open(os.devnull, "w")))
    return directory, rows


def comparable(directory):
    """Metrics without times: these must be the same for the same seed."""
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [
        {k: v for k, v in line.items() if not any(word in k for word in NOT_REPEATABLE)}
        for line in lines
    ]


def final_leaves(directory):
    """All arrays of the last checkpoint."""
    checkpoints = Checkpoints(directory / "checkpoints")
    config = run_directory.load_config(directory, quickstart.Config)
    agent = quickstart.ToyAgent(config)
    from rtpo_jax.training import create_state

    state = create_state(agent.initial_params(), agent.reinforcement.optimizer)
    like = {"state": state, "start_params": agent.initial_params()}
    import jax

    return jax.tree.leaves(checkpoints.arrays(checkpoints.latest(), like))


def test_a_run_writes_what_it_promises(finished):
    directory, rows = finished
    for name in ("config.json", "metrics.jsonl", "table.md", "table.csv", "learning_curves.png",
                 "learning_curves.pdf"):  # fmt: skip
        assert (directory / name).stat().st_size > 0, name
    record = json.loads((directory / "config.json").read_text())
    assert record["config"]["seed"] == 0 and record["versions"]["jax"]
    assert record["git_revision"] and record["device"]
    assert [row["method"] for row in rows] == [
        "GRPO, full history",
        "GRPO, recorded contexts",
        "RTPO",
    ]


def test_every_method_takes_steps_and_moves_the_parameters(finished):
    """Otherwise the tests of resuming would compare parameters that nothing ever changed."""
    lines = [json.loads(x) for x in (finished[0] / "metrics.jsonl").read_text().splitlines()]
    for phase in quickstart.PRESETS["tiny"].methods:
        train = [x for x in lines if x["phase"] == phase and x["kind"] == "train"]
        assert sum(x.get("updates", 0) for x in train) > 0, phase


def test_the_csv_holds_numbers(finished):
    import csv

    with (finished[0] / "table.csv").open() as file:
        for row in csv.DictReader(file):
            method = row.pop("method")
            assert method and all(np.isfinite(float(value)) for value in row.values())


def test_tables_and_figures_of_an_unfinished_run_can_be_drawn(finished, tmp_path):
    """Cut after a sampled-only evaluation of the first method."""
    lines = (finished[0] / "metrics.jsonl").read_text().splitlines(keepends=True)
    kinds = [(json.loads(x)["phase"], json.loads(x)["kind"]) for x in lines]
    cut = kinds.index(("GRPO, full history", "evaluation")) + 1
    (tmp_path / "metrics.jsonl").write_text("".join(lines[:cut]))
    (row,) = comparison.write_table(tmp_path)
    assert row["method"] == "GRPO, full history"
    assert comparison.learning_curves(tmp_path).exists()
    (tmp_path / "metrics.jsonl").write_text(lines[0])
    with pytest.raises(ValueError, match="no trained method"):
        comparison.write_table(tmp_path)


def test_held_out_tasks_are_never_trained_on():
    for seed in (0, 100, 2**31 - 1):
        agent = quickstart.ToyAgent(quickstart.Config(seed=seed))
        held_out = {task.seed for task in agent.evaluation_tasks()}
        trained = {task.seed for task in agent.training_tasks(0, 2000)}
        demonstrated = {task.seed for task in agent.demonstrated_tasks()}
        assert not held_out & trained and not held_out & demonstrated
        assert not trained & demonstrated


def test_metrics_hold_what_a_reader_needs(finished):
    lines = [json.loads(x) for x in (finished[0] / "metrics.jsonl").read_text().splitlines()]
    train = [line for line in lines if line["kind"] == "train" and line["phase"] == "RTPO"]
    names = {"success", "return", "turns", "tool_calls", "generated_tokens", "entropy_before_update",
             "zero_advantage_share", "log_ratio_before_update_mean", "log_ratio_before_update_max",
             "sampling_seconds", "environment_seconds", "scoring_seconds", "update_seconds",
             "tokens_per_second", "compiled_programs"}  # fmt: skip
    assert names <= set(train[0])
    recorded = [x for x in lines if x["kind"] == "train" and x["phase"] in
                ("RTPO", "GRPO, recorded contexts")]  # fmt: skip
    assert max(x["log_ratio_before_update_max"] for x in recorded) < 1e-4


def test_programs_are_compiled_in_the_first_iteration_and_hardly_ever_after(finished):
    lines = [json.loads(x) for x in (finished[0] / "metrics.jsonl").read_text().splitlines()]
    for phase in quickstart.PRESETS["tiny"].methods:
        counts = [x["compiled_programs"] for x in lines if x["phase"] == phase]
        assert sum(counts[1:]) <= 4, (phase, counts)  # a count of rows may reach its next bucket


def test_methods_stop_within_one_iteration_of_the_budget(finished):
    config = quickstart.PRESETS["tiny"]
    lines = [json.loads(x) for x in (finished[0] / "metrics.jsonl").read_text().splitlines()]
    for phase in config.methods:
        train = [x for x in lines if x["phase"] == phase and x["kind"] == "train"]
        last = train[-1]["generated_tokens"]
        assert config.token_budget <= train[-1]["tokens"] < config.token_budget + last


def command(results, *extra):
    return [sys.executable, "-m", "experiments.quickstart", "--size", "tiny", "--results",
            str(results), *extra]  # fmt: skip


def wait_for_checkpoints(process, directory, count):
    """Wait until the run has saved checkpoint `count` (or ended)."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and process.poll() is None:
        saved = [int(p.name) for p in (directory / "checkpoints").glob("*") if p.name.isdigit()]
        if saved and max(saved) >= count:
            return
        time.sleep(0.02)
    raise AssertionError(f"no checkpoint {count} in time: {process.communicate()}")


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_run_goes_on_and_ends_bit_for_bit_the_same(finished, tmp_path, how):
    reference, _ = finished
    directory = tmp_path / "quickstart" / "b"
    process = subprocess.Popen(
        command(tmp_path, "--run", "b"), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    wait_for_checkpoints(process, directory, 3)
    process.send_signal(how)
    output = process.communicate(timeout=120)[0].decode()
    if how != signal.SIGKILL:
        assert process.returncode == 128 + how and "--resume" in output
    assert not (directory / "table.md").exists(), "the run had already finished"
    resume = [sys.executable, "-m", "experiments.quickstart", "--resume", "b", "--results",
              str(tmp_path)]  # fmt: skip
    subprocess.run(resume, cwd=ROOT, check=True, capture_output=True)
    assert comparable(directory) == comparable(reference)
    for ours, theirs in zip(final_leaves(directory), final_leaves(reference), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.slow
def test_another_seed_is_another_run(finished, tmp_path):
    subprocess.run(command(tmp_path, "--seed", "1"), cwd=ROOT, check=True, capture_output=True)
    assert comparable(tmp_path / "quickstart/tiny-toy-seed1") != comparable(finished[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--token-budget", "0"], "token_budget=0"),
        (["--grpo-group-size", "1"], "grpo_group_size=1"),
        (["--num-hops", "99"], "num_hops"),
        (["--tool-failure", "1.5"], "tool_failure"),
        (["--learning-rate", "-1"], "learning_rate=-1"),
        (["--learning-rate", "nan"], "learning_rate=nan"),
        (["--temperature", "inf"], "temperature=inf"),
        (["--warm-start-steps", "1"], "warm_start_steps=1"),
        (["--seed", str(2**40)], "seed="),
        (["--questions", "x.jsonl"], "--model smollm2"),
        (["--model", "smollm2", "--questions", "/nothing.jsonl"], "questions='/nothing.jsonl'"),
        (["--model", "smollm2", "--evaluation-tasks", "80"], "evaluation_tasks=80"),
        (["--resume", "nothing"], "no run 'nothing'"),
        (["--resume", "a", "--seed", "3"], "--seed"),
        (["--model", "smollm2", "--num-questions", "0"], "num_questions=0"),
    ],
)
def test_impossible_values_are_refused_with_the_fix(arguments, message, tmp_path, capsys):
    code = refused([*arguments, "--results", str(tmp_path)])
    output = capsys.readouterr()
    assert code == 2
    assert message in (output.out + output.err).replace("\n", "")


@pytest.mark.parametrize(
    "arguments", [["--tokens", "5"], ["--size", "huge"], ["--model", "gpt"], ["--seed", "x"],
                  ["--model", "smollm2", "--num-hops", "2"]]
)  # fmt: skip
def test_unknown_options_and_choices_are_refused(arguments, tmp_path, capsys):
    assert refused([*arguments, "--results", str(tmp_path)]) == 2
    assert arguments[-2] in "".join(capsys.readouterr())
    assert not list(tmp_path.iterdir())


def refused(arguments):
    try:
        return quickstart.main(arguments)
    except SystemExit as stop:
        return stop.code


def test_a_second_run_of_the_same_name_is_not_overwritten(finished, capsys):
    results = finished[0].parents[1]
    assert refused(["--run", "a", "--results", str(results)]) == 2
    assert "--resume a" in capsys.readouterr().err.replace("\n", "")


def test_help_lists_every_option(capsys):
    assert refused(["--help"]) == 0
    text = capsys.readouterr().out
    for name in quickstart.Config.__dataclass_fields__:
        assert "--" + name.replace("_", "-") in text
