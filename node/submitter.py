"""Between the listener, which must never wait for a database, and the durable engine, which may block.

A thread hands studies on, each at most once a second, and keeps those the engine did not take: of a database that is
away it asks once a second, whatever waits. Nothing is lost when the process dies in between: at start, the spool names
every study with something that no finished round covers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from node import log

_PAUSE_SECONDS = 1.0


class Touch(Protocol):
    """Tells the engine of studies, and may block or raise; is_new: something came, and was not only found at start."""

    def __call__(self, study_uid: str, *, is_new: bool) -> None:
        """Tell of one study."""
        ...


class Submitter:
    """Hands on the studies it is told of until closed; `on_delayed` hears each time the engine did not take one."""

    def __init__(self, touch_study: Touch, *, on_delayed: Callable[[], object] = lambda: None) -> None:
        self._touch_study, self._on_delayed = touch_study, on_delayed
        self._waiting: dict[str, bool] = {}  # and whether something of it is new
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="submitter", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether it still hands on."""
        return self._thread.is_alive()

    def submit(self, study_uid: str, *, is_new: bool = True) -> None:
        """Note that a study has something that was not read; never blocks."""
        with self._changed:
            self._waiting[study_uid] = is_new or self._waiting.get(study_uid, False)
            self._changed.notify()

    def close(self) -> None:
        """Hand on what waits, once, and stop."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout=10)

    def _run(self) -> None:
        closing = False
        while not closing:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing)
                batch, closing = dict(self._waiting), self._closing
                self._waiting.clear()
            self._hand_on(batch)
            with self._changed:  # gather the objects of an association that is still sending
                self._changed.wait_for(lambda: self._closing, timeout=_PAUSE_SECONDS)

    def _hand_on(self, batch: dict[str, bool]) -> None:
        """Hand on one after the other until one is not taken: the rest waits before it."""
        while batch:
            study_uid, is_new = next(iter(batch.items()))
            del batch[study_uid]
            try:
                self._touch_study(study_uid, is_new=is_new)
            except Exception as error:  # the boundary to the engine's database: whatever ails it, try again
                log.get().warning("study.delayed", study=study_uid, reason=type(error).__name__)
                self._on_delayed()
                batch[study_uid] = is_new
                break
            log.get().info("study.submitted", study=study_uid)
        for study_uid, is_new in batch.items():
            self.submit(study_uid, is_new=is_new)
