"""Decides what is told of the node's troubles: each once when it begins, and once when it is over.

The state is a JSON file in `storage.directory`, so a restart repeats nothing. A trouble must last before it is told,
and be gone as long before its end is told. A message waits in the state until the webhook has taken it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal, TypeAlias

from models.documents import decode, encode
from node.health.troubles import Trouble
from node.store import files

Status: TypeAlias = Literal["begun", "ended"]

FILE: Final = "told-troubles.json"
_FIRST_WAIT_SECONDS: Final = 5.0
_LONGEST_WAIT_SECONDS: Final = 3600.0
MOST_ATTEMPTS: Final = 15
"""After them a message is given up: in about five and a half hours."""
MOST_WAITING: Final = 200
"""The most messages that wait; the oldest are given up first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """A message, without a patient; since: when the trouble began, if that is known; at: when this was decided."""

    status: Status
    kind: str
    name: str
    title: str
    message: str
    since: str | None
    at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A trouble that is not over; times in seconds since the epoch.

    found_at: when it was found first; is_told: whether its beginning was; gone_at: since when it is not found any more
    """

    alert: Alert
    found_at: float
    is_told: bool = False
    gone_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A message that the webhook has not taken; next_at: when to try again, in seconds since the epoch."""

    alert: Alert
    attempts: int = 0
    next_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertState:
    """What is known and what waits, both oldest first; known: by the trouble's key."""

    known: tuple[tuple[str, Known], ...] = ()
    waiting: tuple[Waiting, ...] = ()


def decide(state: AlertState, found: Sequence[Trouble], *, now: datetime, after_seconds: float) -> AlertState:
    """Compare what is wrong now with what was known, and queue what is to be told."""
    known, told = dict[str, Known](), list[Alert]()
    before, at = dict(state.known), now.timestamp()
    for trouble in found:
        alert = _begun(trouble, now)
        entry = before.pop(trouble.key, Known(alert=alert, found_at=at))
        if not entry.is_told and at - entry.found_at >= after_seconds:
            entry = replace(entry, alert=alert, is_told=True)
            told.append(alert)
        known[trouble.key] = replace(entry, gone_at=None)
    for key, entry in before.items():
        gone_at = None if _is_unknown(entry.alert, found) else entry.gone_at or at
        if gone_at is None or (entry.is_told and at - gone_at < after_seconds):
            known[key] = replace(entry, gone_at=gone_at)
        elif entry.is_told:
            told.append(replace(entry.alert, status="ended", at=now.astimezone(UTC).isoformat(timespec="seconds")))
    return AlertState(known=tuple(known.items()), waiting=(*state.waiting, *(Waiting(alert=alert) for alert in told)))


def due(state: AlertState, *, now: float) -> Waiting | None:
    """Return the first message, if it is time to send it: messages keep their order."""
    first = next(iter(state.waiting), None)
    return first if first is not None and first.next_at <= now else None


def without(state: AlertState, sent: Waiting) -> AlertState:
    """Remove a message that was taken, or given up."""
    return replace(state, waiting=tuple(waiting for waiting in state.waiting if waiting is not sent))


def delayed(state: AlertState, failed: Waiting, *, now: float) -> AlertState:
    """Have a message tried again later: after 5 s, doubled each time, at most an hour."""
    wait = min(_FIRST_WAIT_SECONDS * 2**failed.attempts, _LONGEST_WAIT_SECONDS)
    again = replace(failed, attempts=failed.attempts + 1, next_at=now + wait)
    return replace(state, waiting=tuple(again if waiting is failed else waiting for waiting in state.waiting))


def given_up(state: AlertState) -> list[Waiting]:
    """Return the messages that are not tried any more: too often, or too many."""
    wanted = [waiting for waiting in state.waiting if waiting.attempts < MOST_ATTEMPTS]
    kept = wanted[-MOST_WAITING:]
    return [waiting for waiting in state.waiting if not any(waiting is other for other in kept)]


def read(directory: Path) -> AlertState:
    """Read the state; empty if there is none, or it cannot be understood."""
    content = files.read_json(directory / FILE)
    try:
        return AlertState() if content is None else decode(AlertState, content)
    except ValueError:
        return AlertState()


def write(directory: Path, state: AlertState) -> None:
    """Write the state, synced. Raises OSError."""
    files.write(directory / FILE, files.to_json(encode(state)))


def _begun(trouble: Trouble, now: datetime) -> Alert:
    return Alert(
        status="begun",
        kind=trouble.kind,
        name=trouble.name,
        title=trouble.title,
        message=trouble.message,
        since=None if trouble.since is None else trouble.since.astimezone(UTC).isoformat(timespec="seconds"),
        at=now.astimezone(UTC).isoformat(timespec="seconds"),
    )


def _is_unknown(alert: Alert, found: Sequence[Trouble]) -> bool:
    """Say whether it cannot be known now if a trouble is over: its database, or its disk, does not answer."""
    kinds = {trouble.kind for trouble in found}
    return ("database" in kinds and alert.kind in ("destination", "parked")) or (
        any(trouble.title == "the disk fails" for trouble in found) and alert.kind in ("disk", "damaged")
    )
