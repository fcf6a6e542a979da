"""The node's current troubles: a line on every page, a list on the page `/system`, and alerts.

A trouble names destinations, tables of the settings and counts; it never has a patient or a UID.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, TypeAlias

from node.check_result import Check, CheckState, run_check
from node.config import Settings
from node.domain import DeliveryState
from node.errors import NodeError
from node.health.checks import check_certificates, check_room
from node.settings.destinations import DestinationSettings
from node.store import database, ledger_queries, received
from node.store.ledger_queries import Overview

TroubleKind: TypeAlias = Literal["destination", "parked", "disk", "certificate", "damaged", "database"]

_DAMAGE_LASTS: Final = timedelta(hours=1)
_KNOWN_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Something that a person must or should act on.

    name: its subject, if the node has several: a destination, a table of the settings
    title: a few words; message: a sentence with the finding and the remedy
    since: when it began, if that is known
    waiting: how many results wait because of it
    """

    kind: TroubleKind
    title: str
    message: str
    name: str = ""
    since: datetime | None = None
    waiting: int = 0

    @property
    def key(self) -> str:
        """The trouble's identity, independent of its wording."""
        return f"{self.kind} {self.name}".strip()


def troubles(settings: Settings, *, now: datetime | None = None) -> tuple[Trouble, ...]:
    """Return everything that is wrong now; settings: those in force."""
    storage, now = settings.storage, now or datetime.now(UTC)
    found = [*_certificates(settings)]
    try:
        found = [*_of_work(ledger_queries.overview(storage), settings.destinations), *found]
    except NodeError as error:
        found.append(Trouble(kind="database", title="the database does not answer", message=str(error)))
    try:
        found += [*_room(check_room(storage)), *_damaged(settings, now)]
    except OSError as error:
        message = f"storage.directory cannot be read ({error.strerror}); check the disk and its mount"
        found.append(Trouble(kind="disk", title="the disk fails", message=message))
    return tuple(found)


def _of_work(overview: Overview, destinations: Sequence[DestinationSettings]) -> Iterator[Trouble]:
    for destination in destinations:
        if pause := overview.pauses.get(destination.name):
            yield Trouble(
                kind="destination",
                name=destination.name,
                title=f"{destination.name} is down",
                message=f"{destination.name} takes no results: {pause.reason or 'see the log'}. They wait.",
                since=datetime.fromtimestamp(pause.since, UTC),
                waiting=overview.deliveries.get((destination.name, DeliveryState.WAITING), 0),
            )
    if count := overview.parked:
        verb = "is" if count == 1 else "are"
        message = f"{count} {'study or delivery' if count == 1 else 'studies or deliveries'} {verb} parked and must be "
        yield Trouble(kind="parked", title=f"{count} parked", message=f"{message}looked at; see the worklist.")


def _room(room: Check) -> Iterator[Trouble]:
    if room.state is not CheckState.OK:
        title = "the disk is full" if room.state is CheckState.FAULT else "the disk is nearly full"
        yield Trouble(kind="disk", title=title, message=room.message)


def _certificates(settings: Settings) -> Iterator[Trouble]:
    """One trouble for each table of the settings, with its worst certificate."""
    checks = run_check("certificates", lambda: check_certificates(settings))
    bad = [check for check in checks if check.state is not CheckState.OK]
    worst = {check.name: check for check in sorted(bad, key=lambda check: check.state is CheckState.FAULT)}
    for name, check in worst.items():
        is_over = check.state is CheckState.FAULT
        title = f"{name} {'is not valid' if is_over else 'expires soon'}"
        yield Trouble(kind="certificate", name=name.removeprefix("certificate "), title=title, message=check.message)


def _damaged(settings: Settings, now: datetime) -> Iterator[Trouble]:
    directory = settings.storage.directory
    for what, at in received.found_damaged(directory).items():
        if at > now - _DAMAGE_LASTS:
            message = f"A stored {what} was found damaged within the last hour; check the disk."
            yield Trouble(kind="damaged", name=what, title=f"damaged {what}", message=message, since=at)
    if aside := database.files_set_aside(settings.storage):
        message = f"{aside[-1]} was damaged, and a new one was built; check the disk, then remove the file."
        yield Trouble(kind="damaged", name="database", title="damaged database", message=message)


class LastTroubles:
    """The troubles as they were found at most five seconds ago; used by several threads."""

    def __init__(self, look: Callable[[], tuple[Trouble, ...]], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._look, self._clock, self._looking = look, clock, threading.Lock()
        self._found: tuple[Trouble, ...] = ()
        self._until = -1.0

    def __call__(self) -> tuple[Trouble, ...]:
        """Return the troubles."""
        with self._looking:
            if self._clock() >= self._until:
                self._found, self._until = self._look(), self._clock() + _KNOWN_SECONDS
            return self._found
