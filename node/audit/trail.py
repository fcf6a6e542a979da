"""Records log events as audit messages, without delaying whoever logs them.

An event only joins a queue. One thread writes its message to the file and to the folder of what waits, synced; another
one sends what waits. Messages that no disk can take are counted as lost, never silently dropped.
"""

from __future__ import annotations

import fcntl
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

from node import log
from node.audit import message, syslog
from node.audit.events import RULES
from node.audit.message import Reporter
from node.audit.waiting import WaitingMessages
from node.config import Settings
from node.errors import DestinationDown, InputError, takes_nothing
from node.metrics import Metrics
from node.net import tls
from node.settings.audit import AuditSettings, Collector
from node.store import files

_MOST_QUEUED: Final = 20_000
_MOST_KEPT_BACK: Final = 20_000
_MOST_AT_ONCE: Final = 1000
_POLL_SECONDS: Final = 1.0
_LONGEST_WAIT_SECONDS: Final = 30.0
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
    trail = Trail(settings.audit, settings.storage.directory / "audit", reporter=reporter, metrics=metrics)
    try:
        with log.observed(trail.note):
            yield
    finally:
        trail.close()


class Trail:
    """The sinks of the audit messages of one process, and the threads that fill them."""

    def __init__(
        self,
        settings: AuditSettings,
        folder: Path,
        *,
        reporter: Reporter,
        metrics: Metrics,
        poll_seconds: float = _POLL_SECONDS,
    ) -> None:
        """Begin. poll_seconds: how soon what a disk or the collector did not take is tried again."""
        self._reporter, self._poll_seconds = reporter, poll_seconds
        self._queue: queue.Queue[Stamped] = queue.Queue(_MOST_QUEUED)
        self._overflown, self._counting, self._stopping = 0, threading.Lock(), threading.Event()
        self._sinks: list[_Sink] = []
        self._sender: _Sender | None = None
        if settings.file is not None:
            _append(settings.file, [])
            self._sinks.append(_Sink("file", partial(_append, settings.file), metrics))
        if settings.collector is not None:
            waiting = WaitingMessages(folder, max_mib=settings.max_waiting_mib)
            self._sinks.append(_Sink("collector", waiting.add, metrics))
            self._sender = _Sender(waiting, settings.collector, poll_seconds=poll_seconds)
            metrics.audit_waiting.set_function(waiting.count)
            _watch_certificate(settings.collector, metrics)
        self._writer = threading.Thread(target=self._write, name="audit", daemon=True)
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
        """Write what is queued, and send what the collector takes within seconds; the rest is sent after a start."""
        self._stopping.set()
        self._writer.join(_STOP_SECONDS)
        if self._sender is not None:
            self._sender.close()

    def _write(self) -> None:
        """Empty the queue until the trail is closed; messages that a disk does not take now are tried again."""
        while not (self._stopping.is_set() and self._queue.empty()):
            lines = self._next_lines()
            with self._counting:
                overflown, self._overflown = self._overflown, 0
            for sink in self._sinks:
                sink.write(lines, overflown=overflown)
            if lines and self._sender is not None:
                self._sender.wake()
        for sink in self._sinks:
            sink.close()

    def _next_lines(self) -> list[bytes]:
        """Wait for a message, and return it with those that came meanwhile."""
        events: list[Stamped] = []
        try:
            events.append(self._queue.get(timeout=self._poll_seconds if not self._stopping.is_set() else 0.01))
            while len(events) < _MOST_AT_ONCE:
                events.append(self._queue.get_nowait())
        except queue.Empty:
            pass
        written = ((at, message.write(event, at=at, reporter=self._reporter)) for at, event in events)
        return [syslog.line(text, at=at, reporter=self._reporter) for at, text in written if text is not None]


class _Sink:
    """One place for messages; what its disk refuses is kept back in memory and tried again, and lost beyond a limit.

    put: stores messages, synced; returns whether there was room, and raises OSError when the disk fails
    """

    def __init__(self, name: str, put: Callable[[Sequence[bytes]], bool], metrics: Metrics) -> None:
        self._name, self._put = name, put
        self._counter = metrics.audit_lost.labels(name)
        self._kept_back: list[bytes] = []
        self._lost, self._is_losing = 0, False

    def write(self, lines: Sequence[bytes], *, overflown: int = 0) -> None:
        """Store messages after those that were kept back. Counts and logs what is lost.

        overflown: how many were lost before, because they came faster than they were stored
        """
        self._lose(overflown, "queue")
        self._kept_back += lines
        if not self._kept_back:
            return
        try:
            has_room = self._put(self._kept_back)
        except OSError as error:
            lost = len(self._kept_back[_MOST_KEPT_BACK:])
            del self._kept_back[_MOST_KEPT_BACK:]
            self._lose(lost, error.strerror or type(error).__name__)
            return
        if has_room:
            self._resume()
        else:
            self._lose(len(self._kept_back), "full")
        self._kept_back = []

    def close(self) -> None:
        """Try once more; what the disk still refuses is lost."""
        self.write([])
        self._lose(len(self._kept_back), "stopped")

    def _lose(self, count: int, reason: str) -> None:
        if not count:
            return
        self._counter.inc(count)
        self._lost += count
        if not self._is_losing:
            self._is_losing = True
            log.get().error("audit.stopped", name=self._name, reason=reason)

    def _resume(self) -> None:
        if self._is_losing:
            log.get().warning("audit.resumed", name=self._name, times=self._lost)
            self._lost, self._is_losing = 0, False


class _Sender:
    """Sends what waits, in a thread of its own; while the collector is away it tries again, at most 30 s later."""

    def __init__(self, waiting: WaitingMessages, collector: Collector, *, poll_seconds: float) -> None:
        self._waiting, self._collector, self._poll_seconds = waiting, collector, poll_seconds
        self._is_new, self._stopping = threading.Event(), threading.Event()
        self._failures = 0
        self._thread = threading.Thread(target=self._run, name="audit-sender", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Say that there is a new message."""
        self._is_new.set()

    def close(self) -> None:
        """Try once more and end; a collector that does not answer is not waited for."""
        self._stopping.set()
        self._is_new.set()
        self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._try()
            if self._failures:
                self._stopping.wait(min(self._poll_seconds * 2 ** (self._failures - 1), _LONGEST_WAIT_SECONDS))
            else:
                self._is_new.wait(self._poll_seconds)  # another process may have left messages
                self._is_new.clear()
        self._try()

    def _try(self) -> None:
        end = time.monotonic() + _STOP_SECONDS
        try:
            self._waiting.send(
                partial(syslog.send, collector=self._collector),
                is_over=lambda: self._stopping.is_set() and time.monotonic() > end,
            )
        except (DestinationDown, OSError) as error:
            self._failures += 1
            if self._failures == 1:
                reason = str(error) if isinstance(error, DestinationDown) else error.strerror
                log.get().warning("audit.delayed", reason=reason)
            return
        if self._failures:
            self._failures = 0
            log.get().info("audit.back")


def _append(path: Path, lines: Sequence[bytes]) -> bool:
    """Add lines to a file (mode 0600), synced, after the end of a line that a crash may have cut off.

    Raises OSError, and InputError for a file that cannot be opened at all.
    """
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, files.PRIVATE)
    except OSError as error:
        if lines or takes_nothing(error):
            raise
        raise InputError(f"audit.file {path}: cannot be written ({error.strerror}); choose another file") from error
    with os.fdopen(handle, "rb+", buffering=0) as file:
        if not lines:
            return True
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
    return True


def _watch_certificate(collector: Collector, metrics: Metrics) -> None:
    """Publish the remaining days of the certificate that the node shows to the collector; 0 if it cannot be read."""
    if collector.tls is None or collector.tls.certificate is None:
        return
    certificate = collector.tls.certificate

    def days() -> float:
        try:
            return tls.days_left(certificate)
        except (OSError, ValueError):
            return 0.0

    metrics.certificate_days.labels("audit").set_function(days)
