"""Records log events as audit messages in the file of `[audit]`, without delaying their callers.

An event only joins a queue. One thread writes its message, synced. Messages that the disk does not take are counted as
lost, never silently dropped. rsyslog sends the lines of the file on (`deploy/rsyslog`).
"""

from __future__ import annotations

import fcntl
import os
import queue
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from node import log
from node.audit import message
from node.audit.events import RULES
from node.audit.message import Reporter
from node.config import Settings
from node.errors import InputError, is_not_writable
from node.metrics import Metrics
from node.store import files

_MOST_QUEUED: Final = 20_000
_MOST_KEPT_BACK: Final = 20_000
_MOST_AT_ONCE: Final = 1000
_POLL_SECONDS: Final = 1.0
"""How long the thread waits for a message before it tries again what the disk refused."""
_STOP_SECONDS: Final = 3.0
_LAST_BYTES: Final = 1

Stamped = tuple[datetime, Mapping[str, object]]


@contextmanager
def recording(settings: Settings, metrics: Metrics, *, executor: str) -> Iterator[None]:
    """Record log events while the context is open, if the settings have an audit trail.

    Raises InputError when the file cannot be written.
    """
    if settings.audit is None:
        yield
        return
    reporter = Reporter(
        ae_title=settings.listener.ae_title.strip(),
        machine=socket.gethostname(),
        executor=executor,
        process_id=os.getpid(),
    )
    trail = Trail(settings.audit.file, reporter=reporter, metrics=metrics)
    try:
        with log.observed(trail.note):
            yield
    finally:
        trail.close()


class Trail:
    """The audit messages of one process, and the thread that writes them.

    Messages that the disk refuses are kept in memory and tried again, and lost beyond a limit.
    """

    def __init__(self, path: Path, *, reporter: Reporter, metrics: Metrics) -> None:
        self._path, self._reporter = path, reporter
        self._counter = metrics.audit_lost
        self._queue: queue.Queue[Stamped] = queue.Queue(_MOST_QUEUED)
        self._overflown, self._counting, self._stopping = 0, threading.Lock(), threading.Event()
        self._kept_back: list[bytes] = []
        self._lost = 0  # since the disk last took messages
        _append(path, [])
        self._writer = threading.Thread(target=self._run, name="audit", daemon=True)
        self._writer.start()

    def note(self, event: Mapping[str, object]) -> None:
        """Take a log event with its fields. Never waits and never raises."""
        if event.get("event") not in RULES:
            return
        try:
            self._queue.put_nowait((datetime.now(UTC), dict(event)))
        except queue.Full:
            with self._counting:
                self._overflown += 1

    def close(self) -> None:
        """Write the queued messages."""
        self._stopping.set()
        self._writer.join(_STOP_SECONDS)

    def _run(self) -> None:
        """Empty the queue until the trail is closed, then try once more; messages still refused are lost."""
        while not (self._stopping.is_set() and self._queue.empty()):
            self._write(self._next_lines())
        self._write([])
        self._lose(len(self._kept_back), "stopped")

    def _next_lines(self) -> list[bytes]:
        """Wait for a message, and return it with later ones."""
        events: list[Stamped] = []
        try:
            events.append(self._queue.get(timeout=_POLL_SECONDS if not self._stopping.is_set() else 0.01))
            while len(events) < _MOST_AT_ONCE:
                events.append(self._queue.get_nowait())
        except queue.Empty:
            pass
        written = ((at, message.write(event, at=at, reporter=self._reporter)) for at, event in events)
        return [message.line(text, at=at, reporter=self._reporter) for at, text in written if text is not None]

    def _write(self, lines: Sequence[bytes]) -> None:
        """Store messages after those that were kept back. Counts and logs lost ones."""
        with self._counting:
            overflown, self._overflown = self._overflown, 0
        self._lose(overflown, "queue")
        self._kept_back += lines
        if not self._kept_back:
            return
        try:
            _append(self._path, self._kept_back)
        except OSError as error:
            lost = len(self._kept_back[_MOST_KEPT_BACK:])
            del self._kept_back[_MOST_KEPT_BACK:]
            self._lose(lost, error.strerror or type(error).__name__)
            return
        self._kept_back = []
        if self._lost:
            log.get().warning("audit.resumed", times=self._lost)
            self._lost = 0

    def _lose(self, count: int, reason: str) -> None:
        if not count:
            return
        self._counter.inc(count)
        if not self._lost:
            log.get().error("audit.stopped", reason=reason)
        self._lost += count


def _append(path: Path, lines: Sequence[bytes]) -> None:
    """Add lines to a file (mode 0600), synced, after the end of a line that a crash may have cut off.

    Raises OSError, and InputError for a file that cannot be opened at all.
    """
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, files.PRIVATE)
    except OSError as error:
        if lines or is_not_writable(error):
            raise
        raise InputError(f"audit.file {path}: cannot be written ({error.strerror}); choose another file") from error
    with os.fdopen(handle, "rb+", buffering=0) as file:
        if not lines:
            return
        fcntl.flock(file, fcntl.LOCK_EX)
        size = os.fstat(handle).st_size
        cut_off = size > 0 and os.pread(handle, _LAST_BYTES, size - _LAST_BYTES) != b"\n"
        rest = memoryview((b"\n" if cut_off else b"") + b"\n".join(lines) + b"\n")
        try:
            while rest:
                rest = rest[os.write(handle, rest) :]
        except OSError:
            os.ftruncate(handle, size)  # all of it is written again later
            raise
        os.fsync(handle)
