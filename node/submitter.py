"""Between the listener, which must never wait for a database, and the durable engine, which may block.

A thread hands studies on, each at most once a second, and keeps those the engine did not take. Nothing is lost when
the process dies in between: at start, the spool names every study with something that no finished round covers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from node import log

_PAUSE_SECONDS = 1.0


class Submitter:
    """Hands on the studies it is told of until closed."""

    def __init__(self, touch_study: Callable[[str], None]) -> None:
        self._touch_study = touch_study
        self._waiting: dict[str, None] = {}
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="submitter", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether it still hands on."""
        return self._thread.is_alive()

    def submit(self, study_uid: str) -> None:
        """Note that a study has something new; never blocks."""
        with self._changed:
            self._waiting[study_uid] = None
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
                batch, closing = list(self._waiting), self._closing
                self._waiting.clear()
            for study_uid in batch:
                self._hand_on(study_uid)
            with self._changed:  # gather the objects of an association that is still sending
                self._changed.wait_for(lambda: self._closing, timeout=_PAUSE_SECONDS)

    def _hand_on(self, study_uid: str) -> None:
        try:
            self._touch_study(study_uid)
        except Exception as error:  # the boundary to the engine's database: whatever ails it, try again
            log.get().warning("study.delayed", study=study_uid, reason=type(error).__name__)
            self.submit(study_uid)
        else:
            log.get().info("study.submitted", study=study_uid)
