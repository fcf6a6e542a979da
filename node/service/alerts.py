"""Tells people of troubles by the channels of `[alerts]`, in a thread of its own that nothing waits for.

Of several processes of a node, each looks in its turn; a lock and a file keep them from telling twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from node import log
from node.errors import RetryLater, where
from node.health import alerts
from node.health.alerts import AlertState, Channel, Waiting
from node.health.channels import Send
from node.health.troubles import Trouble
from node.periodic import Periodic
from node.store import files

_LONGEST_PAUSE_SECONDS: Final = 5.0


class Alerts:
    """Looks at the troubles every five seconds, and sends what is to be told, until closed.

    look: returns the troubles of now; channels: how to send by each of them
    after_seconds: how long a trouble must last, or be gone, before it is told
    """

    def __init__(
        self,
        directory: Path,
        look: Callable[[], Sequence[Trouble]],
        channels: Mapping[Channel, Send],
        *,
        after_seconds: float,
    ) -> None:
        self._directory, self._look, self._channels = directory, look, channels
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
        state = alerts.decide(
            before,
            found,
            channels=tuple(self._channels),
            now=datetime.now(UTC),
            after_seconds=self._after_seconds,
        )
        for lost in alerts.given_up(state, channels=tuple(self._channels)):
            log.get().error("alert.lost", name=lost.alert.title, kind=lost.channel, attempts=lost.attempts)
            state = alerts.without(state, lost)
        if state != before:
            alerts.write(self._directory, state)
        for waiting in list(alerts.due(state, channels=self._channels, now=time.time())):
            state = self._sent(state, waiting)
            alerts.write(self._directory, state)

    def _sent(self, state: AlertState, waiting: Waiting) -> AlertState:
        """Send a message; the state without it, or with it for later."""
        facts = {"name": waiting.alert.title, "kind": waiting.channel, "attempts": waiting.attempts + 1}
        try:
            self._channels[waiting.channel](waiting.alert)
        except RetryLater as error:
            log.get().warning("alert.delayed", reason=str(error), **facts)
            return alerts.delayed(state, waiting, now=time.time())
        log.get().info("alert.sent", outcome=waiting.alert.status, **facts)
        return alerts.without(state, waiting)
