"""Keeps delays short when the clock is set back: what was to wait 5 s must not wait an hour and 5 s.

The executor records when work was queued and until when it waits, both by the clock, so that a delay survives a
restart. Work that was queued in the future was queued before the clock was set back: it waits as long again as it was
to wait, from now. So no delay becomes longer than twice its length, whenever the clock was set and the process started.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Final

from dbos import DBOS

LOOK_SECONDS: Final = 2.0
_TOLERATED_SECONDS: Final = 1.0
"""Clocks of several machines differ by less."""
_DELAYED: Final = "DELAYED"


def delay_left(*, queued_at: float, until: float, now: float) -> float | None:
    """Return how long delayed work waits from now on, if the clock was set back since; None if it was not.

    queued_at, until: when it was queued, and until when it waits; all in seconds since the epoch
    Work whose delay was set again since then ends before it was queued, and is left alone.
    """
    was_set_back = queued_at > now + _TOLERATED_SECONDS
    return until - queued_at if was_set_back and until > queued_at else None


def shorten_delays() -> None:
    """Let delayed work of this executor's database wait no longer because the clock was set back; never raises."""
    try:
        now = time.time()
        future = datetime.fromtimestamp(now + _TOLERATED_SECONDS, UTC).isoformat()
        for work in DBOS.list_workflows(status=_DELAYED, start_time=future, load_input=False, load_output=False):
            if work.created_at is None or work.delay_until_epoch_ms is None:
                continue
            left = delay_left(queued_at=work.created_at / 1000, until=work.delay_until_epoch_ms / 1000, now=now)
            if left is not None:
                DBOS.set_workflow_delay(work.workflow_id, delay_seconds=left)
    except Exception:  # the boundary to the executor's database, which its steps watch; it is looked at again
        return
