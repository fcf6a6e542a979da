"""Posts alerts to the webhook of `[alerts]`: one when a trouble of the node begins, and one when it ends.

A trouble must last before the first alert is sent, and be gone as long before the second. The state is a JSON file in
`storage.directory`, so a restart repeats no alert. A trouble stays in the state until the webhook has accepted its end;
one that began and ended while the webhook took nothing has that alert alone. A thread of its own posts it, directly and
never by a proxy of the environment; nothing waits for this thread. Several processes of a node take turns; a lock and
the file keep them from sending an alert twice.

While the disk is not writable, the state is in memory: a restart may repeat an alert or omit its end. If the lock
cannot be opened either, each process may send the alert.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal, TypeAlias
from urllib.parse import urlsplit

from models.documents import encode
from node import log
from node.config import WebhookSettings
from node.domain import JsonObject
from node.errors import RetryLater
from node.health.checks import Trouble
from node.net import tls
from node.store import files
from node.threads import Periodic

Status: TypeAlias = Literal["begun", "ended"]

FILE: Final = "told-troubles.json"
_FIRST_WAIT_SECONDS: Final = 5.0
_MOST_DOUBLINGS: Final = 10
_LONGEST_WAIT_SECONDS: Final = 3600.0
_LONGEST_PAUSE_SECONDS: Final = 5.0
_LIMIT_SECONDS: Final = 5.0
_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """An alert, without a patient; since: when the trouble began, if known; at: when the alert was due."""

    status: Status
    kind: str
    name: str
    title: str
    message: str
    since: str | None
    at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A trouble that is not over, or whose end was not told; times in seconds since the epoch.

    alert: its first one; found_at: when it was found first
    is_due: whether it has lasted long enough to be told; is_told: whether the webhook has accepted its first alert
    gone_at: since when it is not found any more; most_waiting: the most results that waited because of it
    """

    alert: Alert
    found_at: float
    is_due: bool = False
    is_told: bool = False
    gone_at: float | None = None
    most_waiting: int = 0


AlertState: TypeAlias = Mapping[str, Known]
"""The known troubles by their keys."""


def noted(state: AlertState, found: Sequence[Trouble], *, now: datetime, after_seconds: float) -> AlertState:
    """Compare the troubles found now with the known ones: which have lasted long enough, and which are gone."""
    before, known, at = dict(state), dict[str, Known](), now.timestamp()
    for trouble in found:
        alert = _begun(trouble, now)
        entry = before.pop(trouble.key, Known(alert=alert, found_at=at))
        found_at = min(entry.found_at, at)  # the clock may have been set back
        known[trouble.key] = replace(
            entry,
            alert=entry.alert if entry.is_due else alert,
            found_at=found_at,
            is_due=entry.is_due or at - found_at >= after_seconds,
            gone_at=None,
            most_waiting=max(entry.most_waiting, trouble.waiting),
        )
    for key, entry in before.items():
        is_unknown = _is_unknown(entry.alert, found)
        if is_unknown or entry.is_due:
            known[key] = replace(entry, gone_at=None if is_unknown else min(entry.gone_at or at, at))
    return known


def due(state: AlertState, *, now: datetime, after_seconds: float) -> Iterator[tuple[str, Alert]]:
    """Yield the alerts that the webhook has to get now, each with the key of its trouble."""
    for key, entry in state.items():
        if entry.gone_at is None and entry.is_due and not entry.is_told:
            yield key, entry.alert
        if entry.gone_at is not None and now.timestamp() - entry.gone_at >= after_seconds:
            yield key, _ended(entry, now, gone_at=entry.gone_at)


def told(state: AlertState, key: str, alert: Alert) -> AlertState:
    """Note that the webhook has accepted an alert; with its end a trouble is over."""
    if alert.status == "begun":
        return {**state, key: replace(state[key], is_told=True)}
    return {other: entry for other, entry in state.items() if other != key}


def wait_seconds(attempts: int, *, longest: float) -> float:
    """Return how long a webhook is left alone that has refused a message: 5 s, doubled after each earlier attempt."""
    return min(_FIRST_WAIT_SECONDS * 2.0 ** min(attempts, _MOST_DOUBLINGS), longest)


def read(directory: Path) -> AlertState:
    """Read the state; empty if there is none, or it cannot be understood."""
    return files.read_known(dict[str, Known], directory / FILE) or {}


def write(directory: Path, state: AlertState) -> None:
    """Write the state, synced. Raises OSError."""
    files.write(directory / FILE, files.to_json({key: encode(entry) for key, entry in state.items()}))


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


def _ended(entry: Known, now: datetime, *, gone_at: float) -> Alert:
    """Return the alert on the end of a trouble: how long it lasted, and how many results waited."""
    begun = entry.alert.since
    seconds = gone_at - (entry.found_at if begun is None else datetime.fromisoformat(begun).timestamp())
    waited = f"; up to {entry.most_waiting} results waited" if entry.most_waiting else ""
    message = f"It lasted {_duration(max(seconds, 0.0))}{waited}."
    at = now.astimezone(UTC).isoformat(timespec="seconds")
    return replace(entry.alert, status="ended", message=message, at=at)


def _duration(seconds: float) -> str:
    """Return a duration in its two largest units: "2 d 3 h", "5 min 10 s"."""
    counts = {"d": seconds // 86400, "h": seconds // 3600 % 24, "min": seconds // 60 % 60, "s": seconds % 60}
    units = [f"{int(count)} {unit}" for unit, count in counts.items() if count >= 1]
    return " ".join(units[:2]) or "less than 1 s"


def _is_unknown(alert: Alert, found: Sequence[Trouble]) -> bool:
    """Return whether nobody can tell now if a trouble is over, because its database or its disk does not answer."""
    kinds = {trouble.kind for trouble in found}
    return ("database" in kinds and alert.kind in ("destination", "parked")) or (
        any(trouble.title == "the disk fails" for trouble in found) and alert.kind in ("disk", "damaged")
    )


class Alerts:
    """Looks for troubles every five seconds and sends the alerts, until closed.

    look: returns the current troubles; send: sends one alert, or raises RetryLater, whose text says why
    after_seconds: how long a trouble must last, or be gone, before its alert is sent
    """

    def __init__(
        self,
        directory: Path,
        look: Callable[[], Sequence[Trouble]],
        send: Callable[[Alert], None],
        *,
        after_seconds: float,
    ) -> None:
        self._directory, self._look, self._send = directory, look, send
        self._after_seconds = after_seconds
        self._state: AlertState = {}
        self._attempts, self._next_at = 0, 0.0  # attempts in a row that were refused; the next, of `time.monotonic`
        self._refused = ""  # key of the trouble whose alert was refused last
        self._is_written = True
        self._turn = ExitStack()
        self._has_turn = False
        pause = min(_LONGEST_PAUSE_SECONDS, after_seconds)
        self._thread = Periodic(self._act, name="alerts", pause_seconds=pause, at_once=True)

    def close(self) -> None:
        """Stop; alerts that the webhook has not accepted are sent after the next start."""
        self._thread.close()
        if not self._thread.is_alive:
            self._turn.close()

    def _act(self) -> None:
        """Send alerts if no other process does; keep the lock until the state is on disk."""
        try:
            if self._has_turn or self._takes_turn():
                self._tell()
        finally:
            if self._is_written:
                self._turn.close()
                self._has_turn = False

    def _takes_turn(self) -> bool:
        """Take the lock; return whether to send: this process has it, or the disk does not let it be opened.

        If another process has it, its state counts, and the state in memory is dropped.
        """
        try:
            self._has_turn = self._turn.enter_context(files.try_lock(self._directory / "told-troubles.lock"))
        except OSError:
            return True
        if not self._has_turn:
            self._is_written = True  # the state of the process that has the lock counts
        return self._has_turn

    def _tell(self) -> None:
        if self._is_written:
            with suppress(OSError):  # the disk fails: the last state that this process knows counts
                self._state = read(self._directory)
        found, now = tuple(self._look()), datetime.now(UTC)
        state = noted(self._state, found, now=now, after_seconds=self._after_seconds)
        if state != self._state or not self._is_written:
            self._keep(state)
        alerts = due(state, now=now, after_seconds=self._after_seconds)
        for key, alert in sorted(alerts, key=lambda item: item[0] == self._refused):
            if time.monotonic() < self._next_at or not self._sent(key, alert):
                break
            self._keep(told(self._state, key, alert))

    def _keep(self, state: AlertState) -> None:
        """Write the state; while the disk is not writable, which is a trouble of its own, keep it in memory."""
        self._state, self._is_written = state, False
        with suppress(OSError):
            write(self._directory, state)
            self._is_written = True

    def _sent(self, key: str, alert: Alert) -> bool:
        """Send an alert; after a refusal the webhook is left alone for longer and longer, and others go first."""
        facts = {"name": alert.title, "attempts": self._attempts + 1}
        try:
            self._send(alert)
        except RetryLater as error:
            self._next_at = time.monotonic() + wait_seconds(self._attempts, longest=_LONGEST_WAIT_SECONDS)
            self._attempts += 1
            self._refused = key
            log.get().warning("alert.delayed", reason=str(error), **facts)
            return False
        self._attempts = 0
        log.get().info("alert.sent", outcome=alert.status, **facts)
        return True


def post_alert(alert: Alert, *, settings: WebhookSettings, node: str) -> None:
    """POST an alert as JSON; every 2xx status accepts it. Raises RetryLater, whose text says why.

    node: the name of this node in the alert, whose `text` is for chat programs
    """
    subject = f"ChEX Node {node}: {'over: ' if alert.status == 'ended' else ''}{alert.title}"
    content: JsonObject = {"version": 1, "node": node, **encode(alert), "text": f"{subject}. {alert.message}"}
    post(content, settings=settings)


def post(content: JsonObject, *, settings: WebhookSettings) -> None:
    """POST a JSON document; every 2xx status accepts it. Raises RetryLater, whose text says why."""
    import httpx2  # takes a tenth of a second, which a node without a webhook saves

    try:
        headers = {"User-Agent": "ChEX-Node", **_token(settings)}
        with (
            httpx2.Client(verify=tls.system_context(settings.ca), timeout=_LIMIT_SECONDS, trust_env=False) as client,
            client.stream("POST", settings.url, json=content, headers=headers) as answer,
        ):
            answer.close()
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError) as error:
        raise RetryLater(f"the webhook does not answer ({tls.cause(error)})") from error
    if not answer.is_success:  # a redirect may lead to a peer that the settings do not name
        raise RetryLater(f"the webhook answered with the status {answer.status_code}")


def reach_webhook(settings: WebhookSettings) -> None:
    """Connect to the webhook, by TLS if its URL is https, without a request. Raises RetryLater."""
    url = urlsplit(settings.url)
    try:
        _token(settings)
        with socket.create_connection((url.hostname, url.port or _PORTS[url.scheme]), _LIMIT_SECONDS) as connection:
            if url.scheme == "https":
                tls.system_context(settings.ca).wrap_socket(connection, server_hostname=url.hostname).close()
    except (OSError, ValueError) as error:
        raise RetryLater(f"the webhook cannot be reached ({tls.cause(error)})") from error


def _token(settings: WebhookSettings) -> Mapping[str, str]:
    if settings.token_file is None:
        return {}
    return {"Authorization": f"Bearer {settings.token_file.read_text(encoding='utf-8').strip()}"}
