"""Refused callers: what is logged about them, and the last ten for `node status`.

The first refusal is logged at once, and repetitions once a minute with their number. So a caller that is refused again
and again, from however many addresses, does not fill the disk with log lines. The metrics count every refusal.

Each listener keeps its last refused callers in a small file, with the settings that would admit them: the most common
fault of an installation is an AE title that the two sides spell differently.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from node import log
from node.domain import JsonObject
from node.store import files
from node.threads import Periodic

_TOLD_EVERY_SECONDS: Final = 60.0
_MOST_KNOWN: Final = 100
OTHERS: Final = "others"
"""Replaces the address in refusals while too many different callers are counted."""


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

    on_told: called for each log line, with its key and the number of refusals that it stands for
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        on_told: Callable[[RefusalKey, int], None] = lambda _key, _times: None,
    ) -> None:
        self._clock, self._changing, self._on_told = clock, threading.Lock(), on_told
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
        """Log what was counted for a minute; drop keys that were not repeated in that time."""
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
        self._on_told(key, int(facts.get("times", 1)))


_MOST_KEPT: Final = 10
_PAUSE_SECONDS: Final = 1.0
_UNPRINTABLE: Final = "?"
_REFUSED: Final = "association.refused"
_FILES: Final = "refused-callers*.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedCaller:
    """A refused caller; at: the last time, ISO 8601 in UTC. Titles are empty if no request was read."""

    at: str
    reason: str
    host: str
    calling_aet: str
    called_aet: str
    times: int


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
                files.write(self._path, files.to_json({"callers": [asdict(caller) for caller in callers]}))


def file_path(directory: Path, executor: str | None) -> Path:
    """Return the file in which a process keeps its list; executor: its name, if several share a folder."""
    return directory / (f"refused-callers-{executor}.json" if executor else "refused-callers.json")


def read_all(directory: Path) -> list[RefusedCaller]:
    """Return the last refused callers of all processes, newest last."""
    found = [caller for path in directory.glob(_FILES) for caller in read_file(path)]
    return sorted(found, key=lambda caller: caller.at)[-_MOST_KEPT:]


def read_file(path: Path) -> list[RefusedCaller]:
    """Read one list; empty when the file is missing or damaged."""
    content = files.read_json(path) or {}
    callers = content.get("callers")
    return [_caller(caller) for caller in callers if isinstance(caller, dict)] if isinstance(callers, list) else []


def to_do(reason: str, *, calling_aet: str, own_title: str) -> str:
    """Say what to correct at a refused caller; empty if its request is not at fault.

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
    """Say whether a displayed title is the complete title of the caller, so that settings can name it."""
    return bool(ae_title) and _UNPRINTABLE not in ae_title


def _caller(content: JsonObject) -> RefusedCaller:
    texts = {name: str(content.get(name, "")) for name in ("at", "reason", "host", "calling_aet", "called_aet")}
    return RefusedCaller(**texts, times=int(str(content.get("times", 1))))


def _key(caller: RefusedCaller) -> tuple[str, str, str, str]:
    return (caller.reason, caller.host, caller.calling_aet, caller.called_aet)
