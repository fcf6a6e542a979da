"""Work on a film or a study that may end the process: counted in a small file from its beginning to its end.

What is still counted at the next start was in hand when a process ended. Nobody can tell which of the films in hand did
that, so each of them is worked on alone from then on, until its work returns: then a process that ends has one cause.

The last death that parks work must be its own. Who kills the service again and again, or an OOM killer at each start,
meets the same work each time, for it comes first; so the last try waits until the process has worked for a while. What
is in hand when somebody stops the process is not counted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from node.errors import is_of_file
from node.threads import Turns

MOST_INTERRUPTIONS: Final = 4
"""How often the process may end while it reads one film, or writes the outputs of one study; then that is parked.

All but the first time the film was read alone: what is in hand beside a film that ends the process is never parked.
"""

_SETTLED_SECONDS: Final = 30.0
"""From the first work of a process until a death of the process may be the last one that work is allowed."""

SUFFIX: Final = ".begun"
"""Of the files that count; they belong to this machine, and are never copied elsewhere."""


class BegunWork(Turns):
    """The work that one process has in hand, in turns; used by several threads."""

    def __init__(self, *, settled_seconds: float = _SETTLED_SECONDS) -> None:
        super().__init__()
        self._in_hand: dict[Path, int] = {}  # by file: what it counted before
        self._settled_seconds, self._settled_at = settled_seconds, 0.0  # on the monotonic clock; 0: no work yet
        self._ending = threading.Event()

    @contextmanager
    def counted(self, path: Path, *, is_part: bool = False) -> Iterator[None]:
        """Count work as begun until it returns or raises; it stays counted only if the process ends.

        path: of the file that counts; in an existing folder
        is_part: whether this is a part of the work, after which what was counted before still counts
        Waits for a turn alone if the work was counted before, else while other work has one; and before the last try,
        until the process has worked for a while.
        """
        before = count(path)
        self._settled_at = self._settled_at or time.monotonic() + self._settled_seconds
        if before == MOST_INTERRUPTIONS - 1:
            self._ending.wait(max(0.0, self._settled_at - time.monotonic()))
        with self.alone() if before else self.together():
            if not self._ending.is_set():
                _set(path, before + 1)
                self._in_hand[path] = before
            try:
                yield
            finally:
                self._in_hand.pop(path, None)
                _set(path, before if is_part else 0)

    def end(self) -> None:
        """Count no work of this process as interrupted: it ends in order, and not because of a film."""
        self._ending.set()
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
