"""Live progress: phase, step, success, tokens per second and time left, on one line."""

import time

from rich.console import Console
from rich.progress import Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

NAME_WIDTH = 27
OTHER_WIDTH = 20  # per cent, "left", the time, and what stands between


class LiveProgress:
    """A line per phase. On a terminal it is redrawn in place; in a log, printed now and then."""

    def __init__(self, console: Console | None = None, log_seconds: float = 10.0):
        self.console = console or Console()
        self._log_seconds = log_seconds
        self._logged = time.monotonic()
        self._status = ""
        short = {"no_wrap": True}
        self._bars = Progress(
            TextColumn(
                "[bold]{task.description}", table_column=Column(min_width=NAME_WIDTH, **short)
            ),
            TextColumn("{task.percentage:>3.0f}%", table_column=Column(**short)),
            TextColumn("left", table_column=Column(**short)),
            TimeRemainingColumn(compact=True, table_column=Column(**short)),
            TextColumn("{task.fields[status]}", table_column=Column(**short)),
            console=self.console,
            disable=not self.console.is_terminal,
        )

    def __enter__(self):
        self._bars.start()
        return self

    def __exit__(self, *exception):
        self._bars.stop()

    def phase(self, name: str, total: float, completed: float = 0):
        """Start a phase; returns `update(completed, status)`."""
        task = self._bars.add_task(name, total=total, completed=completed, status="compiling ...")
        started = time.monotonic()
        if not self.console.is_terminal:
            self.console.print(f"{name}: started, {completed / total:.0%} done")

        def update(done: float, status: str) -> None:
            room = self.console.width - NAME_WIDTH - OTHER_WIDTH
            shown = status if len(status) <= room else status[: max(room - 1, 0)] + "…"
            self._bars.update(task, completed=done, status=shown)
            now = time.monotonic()
            quiet = now - self._logged < self._log_seconds and done < total
            if not self.console.is_terminal and not quiet:
                self._logged = now
                left = (now - started) * (total - done) / max(done - completed, 1e-9)
                line = f"{name}: {min(done / total, 1):4.0%}, about {left:.0f} s left, {status}"
                self.console.print(line, soft_wrap=True)

        return update
