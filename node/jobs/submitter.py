"""Hands studies from the listener, which must never wait for a database, to the durable executor, which may block.

A thread hands on a study at once, but each study at most once a second, because more objects of an association that is
still sending follow. It keeps the studies that the executor did not accept. While the database does not answer, it
tries once a second, however many studies wait. Nothing is lost if the process dies in
between: at start, the spool lists every study with files that no finished round covers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from node import log

_PAUSE_SECONDS: Final = 1.0


class Submitter:
    """Collects studies, and hands them on from `start` until `close`.

    touch_study: tells the executor that a study has unread files, if that is needed, and returns whether it was; gets
    the study and whether a file arrived now, false for a study found at start; may block or raise
    on_delayed: called each time the executor did not accept a study
    """

    def __init__(
        self, touch_study: Callable[[str, bool], bool], *, on_delayed: Callable[[], object] = lambda: None
    ) -> None:
        self._touch_study, self._on_delayed = touch_study, on_delayed
        self._waiting: dict[str, bool] = {}  # by study: whether a file arrived now
        self._resting: dict[str, float] = {}  # by study that was just handed on: when it may be handed on again
        self._failed_until = 0.0  # nothing is handed on before, of `time.monotonic`
        self._changed = threading.Condition()
        self._closing = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread that hands studies on."""
        self._thread = threading.Thread(target=self._run, name="submitter", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def submit(self, study_uid: str, *, is_new: bool = True) -> None:
        """Record that a study has unread files; never blocks."""
        with self._changed:
            self._waiting[study_uid] = is_new or self._waiting.get(study_uid, False)
            self._changed.notify()

    def close(self) -> None:
        """Hand on what waits, once, and stop."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(timeout=10)

    def _run(self) -> None:
        closing = False
        while not closing:
            batch, closing = self._due()
            self._hand_on(batch)

    def _due(self) -> tuple[dict[str, bool], bool]:
        """Wait until studies may be handed on, and return them; all of them at the end, and whether that is now."""
        with self._changed:
            while not self._closing:
                now = time.monotonic()
                if now < self._failed_until:
                    self._changed.wait(self._failed_until - now)
                    continue
                self._resting = {study: until for study, until in self._resting.items() if until > now}
                due = {study: is_new for study, is_new in self._waiting.items() if study not in self._resting}
                if due:
                    self._waiting = {study: is_new for study, is_new in self._waiting.items() if study not in due}
                    return due, False
                next_time = min((self._resting[study] for study in self._waiting), default=None)
                self._changed.wait(None if next_time is None else next_time - now)
            due = dict(self._waiting)
            self._waiting.clear()
            return due, True

    def _hand_on(self, batch: dict[str, bool]) -> None:
        """Hand on studies in order until the executor does not accept one; that study and the rest wait."""
        while batch:
            study_uid, is_new = next(iter(batch.items()))
            del batch[study_uid]
            try:
                is_submitted = self._touch_study(study_uid, is_new)
            except Exception as error:  # the boundary to the executor's database: try again, whatever the error
                log.get().warning("study.delayed", study=study_uid, reason=type(error).__name__)
                self._on_delayed()
                batch[study_uid] = is_new
                self._failed_until = time.monotonic() + _PAUSE_SECONDS
                break
            self._resting[study_uid] = time.monotonic() + _PAUSE_SECONDS
            if is_submitted:
                log.get().info("study.submitted", study=study_uid)
        for study_uid, is_new in batch.items():
            self.submit(study_uid, is_new=is_new)
