"""The README's example runs as it stands, and its two commands are the project's."""

import re
from pathlib import Path

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_the_two_commands_stand_there():
    assert "pip install -e . && python -m experiments.quickstart" in README
    assert 'pip install -e ".[test]" && python -m pytest' in README


def test_the_example_runs_and_its_log_ratio_is_that_of_recorded_contexts(capsys):
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
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
