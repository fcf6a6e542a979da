"""Counts work on a film or a study that may end the process, in a small file, from its beginning to its end.

Work that is still counted at the next start was in progress when a process ended. It is unknown which film ended the
process, so each of these films is read alone from then on, until a reading of it returns.

The last death before the work is parked must be its own. Somebody who kills the service repeatedly, or an OOM killer at
each start, interrupts the same work each time, because it is first in the queue; so the last try waits until the
process has worked for a while. Work that an ordered shutdown interrupts is not counted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from node.store import files
from node.threads import Turns

MOST_INTERRUPTIONS: Final = 4
"""How often the process may end while it reads one film, or writes the outputs of one study, before that is parked.

All tries but the first run alone, so a film that was only read beside the one that ends the process is never parked.
"""

_SETTLED_SECONDS: Final = 30.0
"""How long the process must have worked before it makes the last try of any work."""

SUFFIX: Final = ".begun"
"""Pattern of the count files. They belong to this machine; a copy of the spool leaves them out."""


class BegunWork(Turns):
    """The work in progress in one process, in turns; thread-safe."""

    def __init__(self) -> None:
        super().__init__()
        self._in_hand: dict[Path, int] = {}  # by file: its count before
        self._settled_at = 0.0  # on the monotonic clock; 0: no work yet
        self._ending = threading.Event()

    @contextmanager
    def counted(self, path: Path, *, is_part: bool = False) -> Iterator[None]:
        """Count work as begun until it returns or raises; the count remains only if the process ends.

        path: count file, in an existing folder
        is_part: whether this is a part of the work; the count before it is kept afterwards
        Work with a count runs alone. The last try waits until the process has worked for a while.
        """
        before = count(path)
        self._settled_at = self._settled_at or time.monotonic() + _SETTLED_SECONDS
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
        """Remove the counts of the work in progress: the process ends in order, and not because of a film."""
        self._ending.set()
        for path, before in tuple(self._in_hand.items()):
            with suppress(OSError):
                _set(path, before)


def count(path: Path) -> int:
    """Return the number of process ends during this work since the work last returned. Raises OSError."""
    try:
        return int(files.content_of(path))
    except ValueError:
        return 0


def _set(path: Path, times: int) -> None:
    """Write a count, unsynced: it must outlive the process, not a power cut."""
    if times:
        path.write_bytes(str(times).encode())
    else:
        path.unlink(missing_ok=True)
