"""What the log says of those who are refused: the first at once, and how often it came again once a minute.

Whoever calls in vain, however often and from however many addresses, does not fill the disk with our log. The metrics
count them all.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from node import log

_TOLD_EVERY_SECONDS: Final = 60.0
_MOST_KNOWN: Final = 100
_OTHERS: Final = "others"


class _Case(NamedTuple):
    """What is told once: an event, why, and whose address, or `others` when too many are known already."""

    event: str
    reason: str
    host: str


@dataclass(slots=True, kw_only=True)
class _Tally:
    """How often a case came again since it was told, by the clock of `Refusals`."""

    told_at: float
    times: int = 0


class Refusals:
    """Tells of refusals; used by several threads, of which one calls `tell` every now and then."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._changing = clock, threading.Lock()
        self._tallies: dict[_Case, _Tally] = {}

    def note(self, event: str, *, reason: str, host: str, message: str | None = None) -> None:
        """Tell of a refusal, or count it when the same was told within a minute."""
        case = _Case(event, reason, host)
        with self._changing:
            if case not in self._tallies and len(self._tallies) >= _MOST_KNOWN:
                case = _Case(event, reason, _OTHERS)
            if (known := self._tallies.get(case)) is not None:
                known.times += 1
                return
            self._tallies[case] = _Tally(told_at=self._clock())
        facts = {} if message is None else {"message": message}
        log.get().warning(event, reason=reason, host=case.host, **facts)

    def tell(self) -> None:
        """Tell what was counted for a minute; forget what did not come again within one."""
        self._tell_since(self._clock() - _TOLD_EVERY_SECONDS)

    def close(self) -> None:
        """Tell everything that was counted."""
        self._tell_since(self._clock())

    def _tell_since(self, limit: float) -> None:
        again: list[tuple[_Case, int]] = []
        with self._changing:
            for case, tally in list(self._tallies.items()):
                if tally.told_at > limit:
                    continue
                del self._tallies[case]
                if tally.times:
                    self._tallies[case] = _Tally(told_at=self._clock())
                    again.append((case, tally.times))
        for case, times in again:
            log.get().warning(case.event, reason=case.reason, host=case.host, times=times)
