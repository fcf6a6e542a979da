"""Takes the time of the steps in which a listener receives objects, in its own process."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Final

from node.net.pynetdicom_adapter import PduSocket
from node.receive import intake
from node.receive.intake import Intake
from node.store.files import Aside
from node.store.incoming import Incoming
from node.store.spool import Spool

REST: Final = "pynetdicom, other Python, waiting for other threads"

_FIRST: Final = "file meta information, a new file"
_LAST: Final = "its name, with locks, folders and their syncs"
STEPS: Final[tuple[tuple[str, object, str], ...]] = (
    ("waiting for the sender", PduSocket, "_arrives"),
    ("receiving from the socket", PduSocket, "_receive"),
    (_FIRST, Intake, "begin"),
    ("room on the disk", Incoming, "_write"),
    ("writing", Aside, "write"),
    ("SHA-256", Incoming, "write"),
    ("reading the header back", intake, "identify"),
    ("syncing the file", Aside, "sync"),
    (_LAST, Spool, "settle"),
)
"""A function of each step. What one calls that has a line of its own counts there only."""


class _Calls(threading.local):
    """The steps that one thread is in, each with the seconds, and core seconds, of the steps that it has called."""

    def __init__(self) -> None:
        self.inner: list[list[float]] = []


class Steps:
    """Seconds, and core seconds, of each step, from the first call of any to the end of the last one."""

    def __init__(self) -> None:
        self._lock, self._calls = threading.Lock(), _Calls()
        self._seconds, self._core_seconds = defaultdict[str, float](float), defaultdict[str, float](float)
        self._began: tuple[float, float] | None = None
        self._ended = (0.0, 0.0)
        self._objects = 0

    def timed(self, name: str, function: Callable[..., object]) -> Callable[..., object]:
        """Return a function that also takes its time."""

        @wraps(function)
        def call(*arguments: object, **options: object) -> object:
            if name == _FIRST:
                self._begin()
            began = (time.perf_counter(), time.thread_time())
            self._calls.inner.append([0.0, 0.0])
            try:
                return function(*arguments, **options)
            finally:
                self._add(name, time.perf_counter() - began[0], time.thread_time() - began[1])

        return call

    def of_each(self) -> dict[str, dict[str, float]]:
        """Return milliseconds and core milliseconds of each step for one object, with their shares."""
        if self._began is None:
            raise RuntimeError("no object was received")
        whole = [end - begin for begin, end in zip(self._began, self._ended, strict=True)]
        taken = {name: (self._seconds[name], self._core_seconds[name]) for name, _, _ in STEPS}
        taken[REST] = (whole[0] - sum(self._seconds.values()), whole[1] - sum(self._core_seconds.values()))
        taken["all"] = (whole[0], whole[1])
        return {name: self._row(*times, whole=whole) for name, times in taken.items()}

    def _row(self, seconds: float, core_seconds: float, *, whole: list[float]) -> dict[str, float]:
        return {
            "milliseconds": round(1000 * seconds / self._objects, 2),
            "share": round(seconds / whole[0], 3),
            "core_milliseconds": round(1000 * core_seconds / self._objects, 2),
            "core_share": round(core_seconds / whole[1], 3),
        }

    def _begin(self) -> None:
        with self._lock:
            self._objects += 1
            self._began = self._began or (time.perf_counter(), time.process_time())

    def _add(self, name: str, seconds: float, core_seconds: float) -> None:
        own = self._calls.inner.pop()
        if self._calls.inner:
            self._calls.inner[-1][0] += seconds
            self._calls.inner[-1][1] += core_seconds
        with self._lock:
            if self._began is not None:
                self._seconds[name] += seconds - own[0]
                self._core_seconds[name] += core_seconds - own[1]
                if name == _LAST:
                    self._ended = (time.perf_counter(), time.process_time())


@contextmanager
def timed_steps() -> Iterator[Steps]:
    """Take the time of the steps while the block runs."""
    steps = Steps()
    with ExitStack() as stack:
        for name, place, function in STEPS:
            original = getattr(place, function)
            stack.callback(setattr, place, function, original)
            setattr(place, function, steps.timed(name, original))
        yield steps
