"""The progress of a long command: a bar on a terminal, lines of text elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from time import monotonic
from typing import Protocol, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

_SECONDS_BETWEEN_LINES = 2.0


class ProgressReport(Protocol):
    """What a long function calls to report its progress."""

    def __call__(self, stage: str, done: int = 0, total: int = 0) -> None:
        """Report how far a stage is, in any unit. A stage without a total is a message, not a measure of work."""


def quiet(stage: str, done: int = 0, total: int = 0) -> None:
    """Report nothing."""


@contextlib.contextmanager
def on(stream: TextIO) -> Iterator[ProgressReport]:
    """Show progress on a stream: bars on a terminal; elsewhere a line now and then, and one at each stage's end."""
    if stream.isatty():
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
        with Progress(*columns, TimeElapsedColumn(), console=Console(file=stream)) as progress:
            yield _Bars(progress)
    else:
        yield _ProgressLines(stream)


class _Bars:
    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, stage: str, done: int = 0, total: int = 0) -> None:
        if not total:
            self._progress.console.print(stage, markup=False, highlight=False)
            return
        if stage not in self._tasks:
            self._tasks[stage] = self._progress.add_task(stage, total=total)
        self._progress.update(self._tasks[stage], completed=done, total=total)


class _ProgressLines:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._stage, self._at = "", monotonic()
        self._percent = 0

    def __call__(self, stage: str, done: int = 0, total: int = 0) -> None:
        if not total:
            self._say(stage)
            return
        if stage != self._stage:
            self._stage, self._at, self._percent = stage, monotonic(), 0
        percent = done * 100 // total
        if done >= total or (percent > self._percent and monotonic() - self._at > _SECONDS_BETWEEN_LINES):
            self._at, self._percent = monotonic(), percent
            self._say(f"{stage}: {percent} %")

    def _say(self, line: str) -> None:
        self._stream.write(f"{line}\n")
        self._stream.flush()
