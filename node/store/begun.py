"""Work on a film or a study that may end the process: counted in a small file from its beginning to its end.

What is still counted at the next start was in hand when a process ended. Nobody can tell which of the films in hand did
that, so each of them is worked on alone from then on, until its work returns: then a process that ends has one cause.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from node.errors import is_of_file

SUFFIX: Final = ".begun"
"""Of the files that count; they belong to this machine, and are never copied elsewhere."""


class BegunWork:
    """The work that one process has in hand; used by several threads. Work in a turn must not ask for another turn."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._turns = 0  # of work that others may stand beside
        self._is_alone = False
        self._waiting = 0  # for a turn alone
        self._in_hand: dict[Path, int] = {}  # by file: what it counted before

    @contextmanager
    def counted(self, path: Path, *, is_part: bool = False) -> Iterator[None]:
        """Count work as begun until it returns or raises; it stays counted only if the process ends.

        path: of the file that counts; in an existing folder
        is_part: whether this is a part of the work, after which what was counted before still counts
        Waits for a turn alone if the work was counted before, else while other work has one.
        """
        before = count(path)
        with self.alone() if before else self.together():
            _set(path, before + 1)
            self._in_hand[path] = before
            try:
                yield
            finally:
                self._in_hand.pop(path, None)
                _set(path, before if is_part else 0)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Work beside others, but not beside work that is done alone."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._is_alone or self._waiting))
            self._turns += 1
        try:
            yield
        finally:
            with self._changed:
                self._turns -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Work alone; whoever waits for that goes before those that work together."""
        with self._changed:
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: not (self._is_alone or self._turns))
                self._is_alone = True
            finally:
                self._waiting -= 1
        try:
            yield
        finally:
            with self._changed:
                self._is_alone = False
                self._changed.notify_all()

    def end(self) -> None:
        """Count no work of this process as interrupted: it ends in order, and not because of a film."""
        for path, before in tuple(self._in_hand.items()):
            with suppress(OSError):
                _set(path, before)


def count(path: Path) -> int:
    """Return how often a process ended during this work since the work last returned. Raises OSError."""
    try:
        return int(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return 0
    except OSError as error:
        if is_of_file(error):
            return 0
        raise


def _set(path: Path, times: int) -> None:
    """Write a count. It is not synced, for it must outlive the process, and no film cuts the power."""
    if times:
        path.write_bytes(str(times).encode())
    else:
        path.unlink(missing_ok=True)
