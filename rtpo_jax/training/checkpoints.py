"""Checkpoints with everything a run needs to go on, through orbax."""

from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _unwrap_keys(tree: Any) -> Any:
    """Typed random keys as raw data: array checkpoints hold numbers only."""
    return jax.tree.map(lambda leaf: jax.random.key_data(leaf) if _is_key(leaf) else leaf, tree)


class Checkpoints:
    """Numbered checkpoints in one directory; each is written whole or not at all.

    A checkpoint has a pytree of arrays (parameters, optimiser state, counters, random keys) and a
    JSON object (where the run stands). The last `keep` are kept.
    """

    def __init__(self, directory: Path | str, keep: int = 2):
        self._manager = ocp.CheckpointManager(
            Path(directory).absolute(),
            options=ocp.CheckpointManagerOptions(
                max_to_keep=keep, enable_async_checkpointing=False, cleanup_tmp_directories=True
            ),
        )

    def latest(self) -> int | None:
        """Number of the newest complete checkpoint; None when there is none."""
        return self._manager.latest_step()

    def save(self, number: int, arrays: Any, position: dict) -> None:
        """Write checkpoint `number` and wait until it is on disk.

        Raises:
          ValueError: `number` is not past the newest checkpoint.
        """
        saved = self._manager.save(
            number,
            args=ocp.args.Composite(
                arrays=ocp.args.StandardSave(_unwrap_keys(arrays)),
                position=ocp.args.JsonSave(position),
            ),
        )
        self._manager.wait_until_finished()
        if not saved:
            raise ValueError(
                f"number={number}: the newest checkpoint is {self.latest()}, go past it"
            )

    def position(self, number: int) -> dict:
        """The JSON object of checkpoint `number`."""
        args = ocp.args.Composite(position=ocp.args.JsonRestore())
        return self._manager.restore(number, args=args).position

    def arrays(self, number: int, like: Any) -> Any:
        """The arrays of checkpoint `number`, with the structure, dtypes and shardings of `like`."""
        args = ocp.args.Composite(arrays=ocp.args.StandardRestore(_unwrap_keys(like)))
        restored = self._manager.restore(number, args=args).arrays
        return jax.tree.map(
            lambda leaf, data: (
                jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
                if _is_key(leaf)
                else data
            ),
            like,
            restored,
        )

    def close(self) -> None:
        """Release the directory."""
        self._manager.close()
