"""Checks of a node's environment: its certificate files, its clock, room on its disk, and all destinations at once.

A clock that is slow writes wrong times into reports and keeps studies waiting. A disk below its reserve accepts
nothing. Each destination is examined as its type does it (`deliver.kinds.Sender`), and gets no object.

What is wrong with a node now are its troubles: a line on every page, a list on the page `/system`, and alerts. A
trouble names destinations, tables of the settings and counts; it never has a patient or a UID.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Final, Literal, TypeAlias

from node import config
from node.check_result import Check, CheckState, fault, note, ok, run_check
from node.config import ZONE_IS_LEFT, Settings, StorageSettings, TlsTable, tls_tables
from node.deliver.kinds import Calling, sender_of
from node.domain import DeliveryState
from node.errors import NodeError
from node.net import tls
from node.settings.destinations import DestinationSettings
from node.store import database, ledger_queries, received
from node.store.ledger_queries import Overview

TroubleKind: TypeAlias = Literal["destination", "parked", "disk", "certificate", "damaged", "database"]

_SOON_DAYS: Final = 30.0
_CLOCK: Final = "clock"
_STEP: Final = timedelta(seconds=60)
"""A time service may set a clock back by this much without harm."""
_STORAGE: Final = "storage"
_MIB, _GIB = 2**20, 2**30
_LIMIT_SECONDS: Final = 10.0
_DAMAGE_LASTS: Final = timedelta(hours=1)
_KNOWN_SECONDS: Final = 5.0


def check_certificates(settings: Settings) -> Iterator[Check]:
    """Check the node's own certificates, their keys, and the trusted authorities."""
    for table, files in tls_tables(settings):
        name = f"certificate {table}"
        try:
            mistakes = [fault(name, mistake) for mistake in tls.mistakes_in(table, files)]
            yield from mistakes or list(_lasting_of(name, files))
        except (OSError, ValueError) as error:  # OpenSSL takes forms of files that cannot be read for their dates
            yield fault(name, f"cannot be read ({tls.complaint(error)}); correct its files")


def _lasting_of(name: str, files: TlsTable) -> Iterator[Check]:
    """Raises OSError or ValueError for a file that cannot be read."""
    ca = tls.ca_of(files)
    if ca is not None:
        yield _lasting(name, f"the authority in {ca}", tls.authorities_days_left(ca))
    if files.certificate is not None:
        subject = f"{files.certificate}, which matches its key,"
        yield _lasting(name, subject, tls.days_left(files.certificate))


def _lasting(name: str, subject: str, days: float) -> Check:
    if days < 0:
        return fault(name, f"{subject} expired {_days(-days)} ago; connections fail until it is renewed")
    if days < _SOON_DAYS:
        return note(name, f"{subject} expires in {_days(days)}; renew it in time")
    return ok(name, f"{subject} is valid for {_days(days)}")


def _days(count: float) -> str:
    return f"{count:.0f} day{'' if round(count) == 1 else 's'}"


def check_clock(
    settings: Settings, *, now: datetime | None = None, last_change: datetime | None = None
) -> Iterator[Check]:
    """Compare the clock with times in its past: the newest received film and the program's own files; name the zone.

    last_change: when a study changed last, if the database is available; films are not examined then
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
                _CLOCK,
                f"it is {local} by this machine, but {what} at {moment.astimezone(zone):%Y-%m-%d %H:%M:%S}; "
                "set the clock and have a time service keep it",
            )
            return
    if settings.site.is_zone_left:
        yield note(_CLOCK, f"{local}; {ZONE_IS_LEFT}")
        return
    yield ok(_CLOCK, f"{local}; whether a time service keeps it is not checked: see timedatectl or chronyc tracking")


def check_room(storage: StorageSettings) -> Check:
    """Compare the free space with `storage.min_free_mib`. Raises OSError."""
    free, reserve = shutil.disk_usage(storage.directory).free, storage.min_free_mib * _MIB
    sizes = f"{_size(free)} free, storage.min_free_mib keeps {_size(reserve)}"
    if free < reserve:
        return fault(_STORAGE, f"{storage.directory} is full: {sizes}; films are refused until space is freed")
    if free < 2 * reserve:
        return note(_STORAGE, f"{storage.directory} is nearly full: {sizes}; free space or lower storage.keep_days")
    return ok(_STORAGE, f"{_size(free)} free")


def _size(count: float) -> str:
    return f"{count / _GIB:.{0 if count >= 10 * _GIB else 1}f} GiB"


def check_destinations(settings: Settings, *, limit_seconds: float = _LIMIT_SECONDS) -> Iterator[Check]:
    """Ask every destination in a thread of its own; one that does not answer in time is a fault."""
    if not settings.destinations:
        yield note("destinations", config.NOTHING_IS_SENT)
        return
    yield from examine(settings.destinations, ae_title=settings.listener.ae_title, limit_seconds=limit_seconds)


def examine(
    destinations: Sequence[DestinationSettings], *, ae_title: str, limit_seconds: float = _LIMIT_SECONDS
) -> Iterator[Check]:
    """Ask destinations at once, called from an AE title; without an answer in time, each has a fault."""
    calling = Calling(ae_title=ae_title)
    pool = ThreadPoolExecutor(len(destinations), thread_name_prefix="examine")
    asked = [
        (each, pool.submit(run_check, f"destination {each.name}", partial(_ask, each, calling)))
        for each in destinations
    ]
    wait([future for _, future in asked], timeout=limit_seconds)
    pool.shutdown(wait=False, cancel_futures=True)
    for each, future in asked:
        if future.done():
            yield from future.result()
        else:
            why = f"no answer from {each.host}:{each.port} in {limit_seconds:g} s; see its log and the network"
            yield fault(f"destination {each.name}", why)


def _ask(destination: DestinationSettings, calling: Calling) -> Iterable[Check]:
    return sender_of(destination).examine(destination, calling)


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
