"""Callers: admission to associations, the log of refused ones, and the last ten of these for `node status`.

Who may associate is decided from the settings and the associations that are open at that moment; that is pure.

The first refusal is logged at once, and repetitions once a minute with their number. So a caller that is refused again
and again, from however many addresses, does not fill the disk with log lines. The metrics count every refusal.

Each listener keeps its last refused callers in a small file, with the settings that would admit them: the most common
fault of an installation is an AE title that the two sides spell differently.
"""

from __future__ import annotations

import ipaddress
import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from models.documents import encode
from node import log
from node.config import Caller, ListenerSettings
from node.store import files
from node.threads import Periodic

_TOLD_EVERY_SECONDS: Final = 60.0
_MOST_KNOWN: Final = 100
OTHERS: Final = "others"
"""Replaces the address in refusals while too many different callers are counted."""
_MOST_KEPT: Final = 10
_PAUSE_SECONDS: Final = 1.0
_UNPRINTABLE: Final = "?"
_REFUSED: Final = "association.refused"
_FILES: Final = "refused-callers*.json"


class RefusalKey(NamedTuple):
    """Groups refusals that share one log line: event, reason and caller, or `others` when there are too many.

    The AE titles are empty if no association request was read.
    """

    event: str
    reason: str
    host: str
    calling_aet: str = ""
    called_aet: str = ""


@dataclass(slots=True, kw_only=True)
class _Tally:
    """How often a refusal was repeated since it was last logged, by the clock of `Refusals`."""

    told_at: float
    times: int = 0


class Refusals:
    """Logs refusals; used by several threads, one of which calls `tell` regularly.

    on_logged: called for each log line, with its key and the number of refusals in it
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        on_logged: Callable[[RefusalKey, int], None] = lambda _key, _times: None,
    ) -> None:
        self._clock, self._changing, self._on_logged = clock, threading.Lock(), on_logged
        self._tallies: dict[RefusalKey, _Tally] = {}

    def note(self, key: RefusalKey, *, message: str | None = None) -> None:
        """Log a refusal, or count it if the same one was logged within a minute."""
        with self._changing:
            if key not in self._tallies and len(self._tallies) >= _MOST_KNOWN:
                key = RefusalKey(key.event, key.reason, OTHERS)
            if (known := self._tallies.get(key)) is not None:
                known.times += 1
                return
            self._tallies[key] = _Tally(told_at=self._clock())
        self._log(key, {} if message is None else {"message": message})

    def tell(self) -> None:
        """Log the refusals counted for a minute; drop keys that were not repeated in that time."""
        self._tell_since(self._clock() - _TOLD_EVERY_SECONDS)

    def close(self) -> None:
        """Log everything that was counted."""
        self._tell_since(self._clock())

    def _tell_since(self, limit: float) -> None:
        again: list[tuple[RefusalKey, int]] = []
        with self._changing:
            for key, tally in list(self._tallies.items()):
                if tally.told_at > limit:
                    continue
                del self._tallies[key]
                if tally.times:
                    self._tallies[key] = _Tally(told_at=self._clock())
                    again.append((key, tally.times))
        for key, times in again:
            self._log(key, {"times": times})

    def _log(self, key: RefusalKey, facts: Mapping[str, str | int]) -> None:
        titles = {name: title for name in ("calling_aet", "called_aet") if (title := getattr(key, name))}
        log.get().warning(key.event, reason=key.reason, host=key.host, **titles, **facts)
        self._on_logged(key, int(facts.get("times", 1)))


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedCaller:
    """A refused caller; at: the last time, ISO 8601 in UTC. Titles are empty if no request was read."""

    at: str
    reason: str
    host: str
    calling_aet: str
    called_aet: str
    times: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """The refused callers of a process, newest last."""

    callers: tuple[RefusedCaller, ...]


class RefusedCallers:
    """Keeps the last refused callers of one process; used by several threads, which never wait for the disk."""

    def __init__(self, path: Path) -> None:
        self._path, self._changing = path, threading.Lock()
        self._kept, self._is_written = read_file(path), True
        self._writing = Periodic(self._write, name="refused-callers", pause_seconds=_PAUSE_SECONDS)

    def note(self, key: RefusalKey, times: int) -> None:
        """Record refusals, newest last."""
        if key.host == OTHERS or key.event != _REFUSED:  # unknown individually, or let in and ended later
            return
        who = (key.reason, key.host, key.calling_aet, key.called_aet)
        with self._changing:
            known = [caller for caller in self._kept if _key(caller) == who]
            caller = RefusedCaller(
                at=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
                reason=key.reason,
                host=key.host,
                calling_aet=key.calling_aet,
                called_aet=key.called_aet,
                times=times + sum(caller.times for caller in known),
            )
            self._kept = [*(caller for caller in self._kept if _key(caller) != who), caller][-_MOST_KEPT:]
            self._is_written = False

    def close(self) -> None:
        """Write changes that are not on disk yet."""
        self._writing.close()
        self._write()

    def _write(self) -> None:
        """Write the list if it has changed; a failing disk does not matter for admission."""
        with self._changing:
            callers, is_written, self._is_written = list(self._kept), self._is_written, True
        if not is_written:
            with suppress(OSError):
                files.write(self._path, files.to_json(encode(_File(callers=tuple(callers)))))


def read_all(directory: Path) -> list[RefusedCaller]:
    """Return the last refused callers of all processes, newest last."""
    found = [caller for path in directory.glob(_FILES) for caller in read_file(path)]
    return sorted(found, key=lambda caller: caller.at)[-_MOST_KEPT:]


def read_file(path: Path) -> list[RefusedCaller]:
    """Read one list; empty when the file is missing or damaged, or another version of the program wrote it."""
    found = files.read_known(_File, path)
    return [] if found is None else list(found.callers)


def to_do(reason: str, *, calling_aet: str, own_title: str) -> str:
    """Return the correction to make at a refused caller; "" if its request is not at fault.

    A wrong called title is the caller's: another one of the node would lock out every other sender.
    """
    return f"at {calling_aet or 'the sender'}, call {own_title.strip()}" if reason == "called_ae" else ""


def settings_for(caller: RefusedCaller) -> str:
    """Return the lines of node.toml that would admit a refused caller; empty if no setting would.

    A caller that is known at another address gets a table of its own, so that the known table stays as it is.
    """
    if caller.reason == "caller" and _is_whole(caller.calling_aet):
        lines = ("[[listener.callers]]", f"ae_title = {json.dumps(caller.calling_aet)}", f'hosts = ["{caller.host}"]')
        return "\n".join(lines)
    return ""


def printable(ae_title: str) -> str:
    """Return an AE title for display: at most 16 characters (PS3.5 6.2), without control characters."""
    return "".join(letter if letter.isprintable() else _UNPRINTABLE for letter in ae_title.strip()[:16])


def _is_whole(ae_title: str) -> bool:
    """Return whether a displayed title is the complete title of the caller, so that settings can name it."""
    return bool(ae_title) and _UNPRINTABLE not in ae_title


def _key(caller: RefusedCaller) -> tuple[str, str, str, str]:
    return (caller.reason, caller.host, caller.calling_aet, caller.called_aet)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a call is refused: one of `metrics.REFUSALS`, and result, source and reason for the caller (PS3.8 9.3.4)."""

    reason: str
    answer: tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """An association request: its AE titles and the address it came from."""

    calling_aet: str
    called_aet: str
    host: str


_CALLER_UNKNOWN: Final = Refusal(reason="caller", answer=(0x01, 0x01, 0x03))
_CALLED_UNKNOWN: Final = Refusal(reason="called_ae", answer=(0x01, 0x01, 0x07))
NO_ROOM: Final = Refusal(reason="disk", answer=(0x02, 0x03, 0x01))
_TOO_MANY: Final = Refusal(reason="limit", answer=(0x02, 0x03, 0x02))


def admit(
    call: Call, settings: ListenerSettings, *, may_report: bool, has_room: bool, open_callers: Sequence[Caller]
) -> Caller | Refusal:
    """Return as which caller a call is admitted, or why it is refused.

    may_report: whether it comes from a destination, which may have an answer to a storage commitment request; reports
    let films leave the disk, and films of such a caller are refused one by one
    has_room: whether films can be kept
    open_callers: whose associations are open, one entry for each of them
    """
    caller = caller_of(call, settings.callers)
    if caller is None and may_report:
        caller = Caller(ae_title=call.calling_aet, hosts=(call.host,))
    if caller is None:
        return _CALLER_UNKNOWN
    if call.called_aet.strip() != settings.ae_title.strip():
        return _CALLED_UNKNOWN
    if not (has_room or may_report):
        return NO_ROOM
    if len(open_callers) >= settings.max_associations:
        return _TOO_MANY
    if caller.max_associations is not None and open_callers.count(caller) >= caller.max_associations:
        return _TOO_MANY
    return caller


def caller_of(call: Call, callers: Sequence[Caller]) -> Caller | None:
    """Find the caller in the settings with this title and address."""
    title = call.calling_aet.strip()
    titled = (caller for caller in callers if caller.ae_title.strip() == title)
    return next((caller for caller in titled if is_among(call.host, caller.hosts)), None)


def is_among(host: str, hosts: Iterable[str]) -> bool:
    """Return whether an address is one of several addresses and networks, in any notation."""
    address = address_of(host)
    return any(_is_in(address, known) for known in hosts)


@lru_cache(maxsize=4096)  # it is called for every connection, before anything else
def _is_in(address: str, known: str) -> bool:
    if "/" not in known:
        return bool(address) and address == address_of(known)
    try:
        return ipaddress.ip_address(address) in ipaddress.ip_network(known)
    except ValueError:
        return False


@lru_cache(maxsize=1024)
def address_of(text: str) -> str:
    """Return an address in its shortest form, an IPv4 address also where IPv6 carries it; empty for other texts."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return ""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)
