"""Pure: which study is read next.

Every study has its place by the second in which its oldest unread film arrived, so it keeps it when more films come. An
urgent one goes where it would stand had it arrived `stat_seconds` earlier. So a study that has waited that long is
overtaken by no newcomer, however many urgent ones come, and among equals the one that came first is read first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

# What the durable engine orders its queue by: 1 to 2^31 - 1, lower first. Seconds since 2025 last until 2093.
_FIRST, _LAST = 1, 2**31 - 1
_EPOCH: Final = datetime(2025, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A study that waits to be read: since when, and whether somebody called it urgent."""

    arrived_at: datetime
    is_urgent: bool


def place(study: Waiting, *, stat_seconds: float) -> int:
    """Return a study's place in the queue; the lower one is read first."""
    head_start = math.floor(stat_seconds) if study.is_urgent else 0
    seconds = math.floor((study.arrived_at - _EPOCH).total_seconds()) - head_start
    return min(max(seconds, _FIRST), _LAST)
