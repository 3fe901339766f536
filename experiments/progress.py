"""Live progress: phase, step, success, tokens per second and time left, on one line."""

import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class LiveProgress:
    """A bar per phase. On a terminal it is redrawn in place; in a log a line appears now and then."""

    def __init__(self, console: Console | None = None, log_seconds: float = 10.0):
        self.console = console or Console()
        self._log_seconds = log_seconds
        self._logged = time.monotonic()
        self._status = ""
        self._bars = Progress(
            TextColumn("[bold]{task.description:<18}"),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[status]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(elapsed_when_finished=False),
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
        task = self._bars.add_task(name, total=total, completed=completed, status="")
        if not self.console.is_terminal:
            self.console.print(f"{name}: started at {completed:g} of {total:g}")

        def update(done: float, status: str) -> None:
            self._bars.update(task, completed=done, status=status)
            now = time.monotonic()
            quiet = now - self._logged < self._log_seconds and done < total
            if not self.console.is_terminal and not quiet:
                self._logged = now
                self.console.print(f"{name}: {min(done / total, 1):4.0%}  {status}")

        return update
