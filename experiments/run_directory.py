"""Run directories: `results/<experiment>/<run>/` with its configuration, metrics and checkpoints."""

import dataclasses
import json
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

PACKAGES = ("rtpo-jax", "jax", "jaxlib", "flax", "optax", "numpy", "orbax-checkpoint")


def _git_revision() -> str:
    """Commit of the checkout the code runs from, with a mark when it has local changes."""
    try:
        describe = ["git", "describe", "--always", "--dirty", "--abbrev=40"]
        return subprocess.run(
            describe, cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown (not a git checkout)"


def provenance() -> dict[str, Any]:
    """Versions, device and revision: what a number has to be traced to besides its config."""
    return {
        "versions": {name: metadata.version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "device": str(jax.devices()[0].device_kind),
        "num_devices": jax.device_count(),
        "git_revision": _git_revision(),
    }


def create(
    results: Path, experiment: str, run: str, config: Any, *, resumable: bool = True
) -> Path:
    """Make the directory of a new run and write `config.json`.

    Raises:
      FileExistsError: the run exists; the message names the ways on.
    """
    directory = results / experiment / run
    if (directory / "config.json").exists():
        resume = f", or go on with --resume {run}" if resumable else ""
        raise FileExistsError(
            f"run={run!r} exists in {directory.parent}: choose another --run{resume}"
        )
    directory.mkdir(parents=True, exist_ok=True)
    record = {"config": dataclasses.asdict(config), **provenance()}
    temporary = directory / "config.json.tmp"
    temporary.write_text(json.dumps(record, indent=2, default=str) + "\n")
    temporary.replace(directory / "config.json")
    return directory


def unused_name(results: Path, experiment: str, run: str) -> str:
    """`run`, or the first of run-2, run-3, ... that does not exist yet."""
    name, number = run, 1
    while (results / experiment / name / "config.json").exists():
        number += 1
        name = f"{run}-{number}"
    return name


def find(results: Path, experiment: str, run: str) -> Path:
    """Directory of an existing run, given by name or by path.

    Raises:
      FileNotFoundError: no such run; the message lists those that exist.
    """
    for directory in (results / experiment / run, Path(run)):
        if (directory / "config.json").exists():
            return directory
    known = sorted(path.parent.name for path in (results / experiment).glob("*/config.json"))
    raise FileNotFoundError(
        f"no run {run!r} in {results / experiment}: "
        + (f"choose one of {', '.join(known)}" if known else "there are none, start one")
    )


def stored_config(directory: Path) -> dict[str, Any]:
    """The configuration of a run as its `config.json` has it."""
    return json.loads((directory / "config.json").read_text())["config"]


def forget_unfinished(results: Path, experiment: str, run: str, model: str) -> None:
    """Let a run of `model` that ended without its table be started again under the same name."""
    directory = results / experiment / run
    if not (directory / "config.json").exists() or (directory / "table.md").exists():
        return
    if stored_config(directory).get("model") == model:
        (directory / "config.json").unlink()


def load_config(directory: Path, kind: type) -> Any:
    """The configuration, a dataclass of the given kind, that a run was started with.

    Raises:
      ValueError: the file has other fields than `kind`; the message names them.
    """
    stored = stored_config(directory)
    names = {field.name for field in dataclasses.fields(kind)}
    different = sorted(names ^ set(stored))
    if different:
        raise ValueError(
            f"{directory} cannot be resumed by this version: its config.json differs in "
            f"{', '.join(different)}; start another run"
        )
    return kind(**stored)
