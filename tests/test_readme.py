"""The README's example runs as it stands, and its two commands are the project's."""

import re
from pathlib import Path

import numpy as np

from tests.algorithms.test_golden import Worked, batch_of

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_the_two_commands_stand_there():
    assert "pip install -e . && python -m experiments.quickstart" in README
    assert 'pip install -e ".[test]" && python -m pytest' in README


def test_the_example_runs_and_its_log_ratio_is_that_of_recorded_contexts(capsys):
    example, _ = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(example, "README.md", "exec"), {"__name__": "example"})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    for line in lines:
        success, gap = re.match(r"success (\S+), .* (\S+)$", line).groups()
        assert 0 <= float(success) <= 1 and float(gap) < 1e-4


def test_files_that_the_readme_names_exist():
    root = Path(__file__).parents[1]
    for target in re.findall(r"\]\((?!http)([^)]+)\)", README):
        assert (root / target).exists(), target


def test_the_method_of_ones_own_is_what_it_says():
    """The worked chains; the second has one turn, so that its task's last turns are three."""
    _, source = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(source.splitlines()) < 60
    names = {"__name__": "example"}
    exec(compile(source, "README.md", "exec"), names)
    method = names["ReverseTurnRLOO"](group_size=4)
    last, first = method.stages(2, None)
    assert (last.turns, first.turns) == ((1,), (0,))
    engine = Worked(lengths=(2, 1, 2, 2))
    for stage, wanted in ((last, [0.5, None, -1.0, 0.5]), (first, [2 / 3, -2 / 3, -2 / 3, 2 / 3])):
        batch = batch_of(method, stage, engine=engine)
        for row, trajectory in enumerate(batch.rows.trajectory_ids):
            if trajectory >= 0:
                np.testing.assert_allclose(batch.advantages[row], wanted[trajectory], rtol=1e-6)
