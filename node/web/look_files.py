"""Films that are viewed without a study: a few files for some minutes, in a folder that each start empties.

They are in no study of the spool: nothing of them is sent, and no backup or database knows them.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final
from uuid import uuid4

from node.domain import Film
from node.threads import Periodic
from node.web.problems import Problem

MOST: Final = 8
SECONDS: Final = 900.0
_PAUSE_SECONDS: Final = 30.0
_AT_ONCE, _WAITING = 2, 8
_TURN_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LookFile:
    """A film that is looked at; until: when it is removed, by `time.monotonic`."""

    id: str
    path: Path
    film: Film
    until: float


class Looks:
    """The films that are looked at, at most 8; the oldest is removed for a new one. May be called from any thread.

    folder: is removed with its content at the start and at the end; made (mode 0700) when the first film comes
    """

    def __init__(self, folder: Path, *, seconds: float = SECONDS, pause_seconds: float = _PAUSE_SECONDS) -> None:
        self._folder, self._seconds = folder, seconds
        self._lock = threading.Lock()
        self._turns = threading.BoundedSemaphore(_AT_ONCE)
        self._places = threading.BoundedSemaphore(_AT_ONCE + _WAITING)
        self._looks: OrderedDict[str, LookFile] = OrderedDict()
        shutil.rmtree(folder, ignore_errors=True)
        self._cleaner = Periodic(self._forget_old, name="looks", pause_seconds=pause_seconds)

    def create(self, suffix: str) -> tuple[BinaryIO, Path]:
        """Open a new file (mode 0600) to be written, which the caller adds or removes. Raises OSError."""
        self._folder.parent.mkdir(mode=0o700, exist_ok=True)
        self._folder.mkdir(mode=0o700, exist_ok=True)
        path = self._folder / f"{uuid4().hex}{suffix}"
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb"), path

    def add(self, path: Path, film: Film) -> LookFile:
        """Keep a written file and its answer for a while."""
        look = LookFile(id=path.stem, path=path, film=film, until=time.monotonic() + self._seconds)
        with self._lock:
            self._looks[look.id] = look
            while len(self._looks) > MOST:
                self._remove(next(iter(self._looks)))
        return look

    def find(self, look_id: str) -> LookFile | None:
        """Return a film by its id; None if it is unknown or removed."""
        with self._lock:
            look = self._looks.get(look_id)
        return look if look is not None and look.until > time.monotonic() else None

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for a turn at the model: two films are read or asked about at once, and eight wait.

        Each that waits holds a thread, and the pages need threads, too. Raises Problem for more, and after 30 seconds.
        """
        busy = Problem(503, "the model is busy; try again", headers={"Retry-After": "5"})
        if not self._places.acquire(blocking=False):
            raise busy
        try:
            if not self._turns.acquire(timeout=_TURN_SECONDS):
                raise busy
            try:
                yield
            finally:
                self._turns.release()
        finally:
            self._places.release()

    def close(self) -> None:
        """Remove everything."""
        self._cleaner.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _forget_old(self) -> None:
        with self._lock:
            for look in [look for look in self._looks.values() if look.until <= time.monotonic()]:
                self._remove(look.id)

    def _remove(self, look_id: str) -> None:
        with suppress(OSError):  # the folder is removed at the next start
            self._looks.pop(look_id).path.unlink(missing_ok=True)
