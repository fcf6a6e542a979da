"""Checks the clock: a clock that is slow writes wrong times into reports and keeps studies waiting."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from node.checks import Check, fault, note, ok
from node.config import ZONE_IS_LEFT, Settings
from node.store import received

_NAME: Final = "clock"
_STEP: Final = timedelta(seconds=60)
"""A time service may set a clock back by this much without harm."""


def check_clock(
    settings: Settings, *, now: datetime | None = None, last_change: datetime | None = None
) -> Iterator[Check]:
    """Compare the clock with times in its past: the newest received film and the program's own files; name the zone.

    last_change: when a study changed last, if the database has said so; no film is looked at then
    """
    now = now or datetime.now(UTC)
    zone = settings.site.zone
    local = f"{now.astimezone(zone):%Y-%m-%d %H:%M:%S} {settings.site.timezone}"
    program = datetime.fromtimestamp(Path(__file__).stat().st_mtime, UTC)
    work = ("a study changed", last_change)
    if last_change is None:
        work = ("the newest film was received", received.newest_arrival(settings.storage.directory / "studies"))
    for what, moment in (work, ("the program was installed", program)):
        if moment is not None and now < moment - _STEP:
            yield fault(
                _NAME,
                f"it is {local} by this machine, but {what} at {moment.astimezone(zone):%Y-%m-%d %H:%M:%S}; "
                "set the clock and have a time service keep it",
            )
            return
    if settings.site.is_zone_left:
        yield note(_NAME, f"{local}; {ZONE_IS_LEFT}")
        return
    yield ok(_NAME, f"{local}; whether a time service keeps it is not checked: see timedatectl or chronyc tracking")
