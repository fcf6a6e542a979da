"""Tells the webhook of `[alerts]` of troubles, in a thread of its own that nothing waits for.

Of several processes of a node, each looks in its turn; a lock and a file keep them from telling twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from node import log
from node.errors import RetryLater, where
from node.health import alerts
from node.health.alerts import Alert, AlertState, Waiting
from node.health.troubles import Trouble
from node.store import files
from node.threads import Periodic

_LONGEST_PAUSE_SECONDS: Final = 5.0


class Alerts:
    """Looks at the troubles every five seconds, and sends what is to be told, until closed.

    look: returns the troubles of now; send: sends one alert, or raises RetryLater, whose text says why
    after_seconds: how long a trouble must last, or be gone, before it is told
    """

    def __init__(
        self,
        directory: Path,
        look: Callable[[], Sequence[Trouble]],
        send: Callable[[Alert], None],
        *,
        after_seconds: float,
    ) -> None:
        self._directory, self._look, self._send = directory, look, send
        self._after_seconds = after_seconds
        pause = min(_LONGEST_PAUSE_SECONDS, after_seconds)
        self._thread = Periodic(self._act, name="alerts", pause_seconds=pause, at_once=True)

    def close(self) -> None:
        """Stop; what waits is sent after the next start."""
        self._thread.close()

    def _act(self) -> None:
        try:
            with files.try_lock(self._directory / "told-troubles.lock") as is_free:
                if is_free:
                    self._tell()
        except Exception as error:  # a boundary: alerts never end the process, and try again
            log.get().error("alert.delayed", reason=where(error))

    def _tell(self) -> None:
        before, found = alerts.read(self._directory), tuple(self._look())
        state = alerts.decide(before, found, now=datetime.now(UTC), after_seconds=self._after_seconds)
        for lost in alerts.given_up(state):
            log.get().error("alert.lost", name=lost.alert.title, attempts=lost.attempts)
            state = alerts.without(state, lost)
        if state != before:
            alerts.write(self._directory, state)
        if (waiting := alerts.due(state, now=time.time())) is not None:
            alerts.write(self._directory, self._sent(state, waiting))

    def _sent(self, state: AlertState, waiting: Waiting) -> AlertState:
        """Send a message; the state without it, or with it for later."""
        facts = {"name": waiting.alert.title, "attempts": waiting.attempts + 1}
        try:
            self._send(waiting.alert)
        except RetryLater as error:
            log.get().warning("alert.delayed", reason=str(error), **facts)
            return alerts.delayed(state, waiting, now=time.time())
        log.get().info("alert.sent", outcome=waiting.alert.status, **facts)
        return alerts.without(state, waiting)
