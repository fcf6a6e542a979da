"""Notifies the webhooks of `[[notify]]` of critical findings: once for each study and finding, by a random link.

A notice is a file before its round goes on, so a crash loses none, and a repeated step makes no second one. A webhook
that takes nothing is asked again until it takes the notice, or the study is gone. A notice is dropped if its finding is
not critical any more, and waits while a correction against the finding can be taken back: until something changes in
its study, or as long as after a refusal. A process that is killed between the answer of the webhook and its own note
sends the notice again, with the same `id`.

    notices/key                      from which ids are made: without it an id says nothing of its study
    notices/waiting/<id>.json        a notice that its webhook has not taken
    notices/told/<id>.json           one that it has; kept as long as its study, for the link
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from models.documents import encode
from node import log
from node.config import NotifySettings
from node.domain import JsonObject
from node.errors import RetryLater
from node.health import alerts
from node.store import files
from node.store.spool import Spool
from node.threads import Periodic

_FOLDER: Final = "notices"
_LONGEST_WAIT_SECONDS: Final = 300.0
_PAUSE_SECONDS: Final = 1.0
_DECIDING: Final = ("received", "readings", "corrections", "released", "rounds")
"""The folders of a study that say whether a finding is critical."""
_ID: Final = re.compile(r"[0-9a-f]{32}")
_KEY_BYTES: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A finding to notify a webhook of; study: stays on this node.

    finding: key of its prompt; title: its name
    """

    id: str
    webhook: str
    study: str
    finding: str
    title: str
    at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """A look at a waiting notice; study: its files as they were; times: such looks; next_at: the next, by the clock."""

    study: str
    times: int
    next_at: float


def take(directory: Path, webhooks: Sequence[NotifySettings], study_uid: str, findings: Mapping[str, str]) -> None:
    """Store a notice of each finding for each webhook, unless there was one; synced. Raises OSError.

    findings: name by key of the prompt
    """
    for prompt, title in findings.items():
        for webhook in webhooks:
            notice = Notice(
                id=_id(directory, webhook.name, study_uid, prompt),
                webhook=webhook.name,
                study=study_uid,
                finding=prompt,
                title=title,
                at=datetime.now(UTC).isoformat(timespec="seconds"),
            )
            if not _told(directory, notice.id).exists():
                files.write_new(_waiting(directory, notice.id), files.to_json(encode(notice)))


def remove_gone(spool: Spool) -> None:
    """Remove the notices of studies that are gone. Raises OSError."""
    for name in ("waiting", "told"):
        for path in files.documents(spool.directory / _FOLDER / name):
            if (notice := files.read_known(Notice, path)) is not None and not _is_here(spool, notice):
                path.unlink(missing_ok=True)


def _is_here(spool: Spool, notice: Notice) -> bool:
    return bool(spool.instances(notice.study))


def study_of(directory: Path, notice_id: str) -> str | None:
    """Return the study of a notice; None if this node has no such notice. notice_id: any text."""
    if not _ID.fullmatch(notice_id):
        return None
    places = (_told(directory, notice_id), _waiting(directory, notice_id))
    return next((found.study for path in places if (found := files.read_known(Notice, path)) is not None), None)


class Notices:
    """Sends what waits, until closed; of several processes of a node, each looks in its turn.

    send: sends a notice to a webhook, or raises RetryLater, whose text says why
    stands: whether the finding of a notice is still critical; None if nobody can tell yet
    clock: in seconds, of the waits between looks
    """

    def __init__(
        self,
        spool: Spool,
        webhooks: Sequence[NotifySettings],
        send: Callable[[Notice, NotifySettings], None],
        *,
        stands: Callable[[Notice], bool | None],
        clock: Callable[[], float] = time.monotonic,
        pause_seconds: float = _PAUSE_SECONDS,
    ) -> None:
        self._spool, self._send, self._stands, self._clock = spool, send, stands, clock
        self._webhooks = {webhook.name: webhook for webhook in webhooks}
        self._looks: dict[str, _Look] = {}
        _make_folders(spool.directory)
        self._thread = Periodic(self._act, name="notices", pause_seconds=pause_seconds, at_once=True)

    def close(self) -> None:
        """Stop; what waits is sent after the next start."""
        self._thread.close()

    def _act(self) -> None:
        with files.try_lock(self._spool.directory / _FOLDER / "lock") as is_free:
            if is_free:
                self._tell()

    def _tell(self) -> None:
        """Send every notice that is due; a webhook that fails once gets nothing more in this look."""
        directory, failing = self._spool.directory, set[str]()
        waiting = files.documents(directory / _FOLDER / "waiting")
        self._looks = {path.stem: self._looks[path.stem] for path in waiting if path.stem in self._looks}
        for path in waiting:
            notice = files.read_known(Notice, path)
            webhook = None if notice is None else self._webhooks.get(notice.webhook)
            if notice is None or webhook is None or webhook.name in failing:
                continue
            if (look := self._due(notice)) is None:
                continue
            self._looks[notice.id] = look  # before it: a look that fails waits, too
            if _told(directory, notice.id).exists() or not _is_here(self._spool, notice):
                path.unlink(missing_ok=True)
            elif (stands := self._stands(notice)) is False:
                path.unlink(missing_ok=True)
                log.get().warning("notice.dropped", study=notice.study, name=webhook.name)
            elif stands and not self._sent(notice, webhook, attempts=look.times):
                failing.add(webhook.name)

    def _due(self, notice: Notice) -> _Look | None:
        """Return the look that is due at a notice: its study has changed since the last one, or its wait is over."""
        now, study, last = self._clock(), self._spool.stamp(notice.study, _DECIDING), self._looks.get(notice.id)
        if last is None or last.study != study:
            last = _Look(study=study, times=0, next_at=now)
        if last.next_at > now:
            return None
        wait = alerts.wait_seconds(last.times, longest=_LONGEST_WAIT_SECONDS)
        return _Look(study=study, times=last.times + 1, next_at=now + wait)

    def _sent(self, notice: Notice, webhook: NotifySettings, *, attempts: int) -> bool:
        """Send a notice, and store that it was taken."""
        directory, facts = self._spool.directory, {"name": webhook.name, "attempts": attempts}
        try:
            self._send(notice, webhook)
        except RetryLater as error:
            log.get().warning("notice.delayed", study=notice.study, reason=str(error), **facts)
            return False
        _waiting(directory, notice.id).rename(_told(directory, notice.id))
        files.sync_folder(directory / _FOLDER / "told")
        log.get().info("notice.sent", study=notice.study, **facts)
        return True


def post_notice(notice: Notice, webhook: NotifySettings, *, node: str) -> None:
    """POST a notice as JSON, without a patient or a UID. Raises RetryLater, whose text says why."""
    link = f"{webhook.pages.rstrip('/')}/notices/{notice.id}"
    title = f"{notice.title}: present"
    content: JsonObject = {
        "version": 1,
        "node": node,
        "kind": "finding",
        "id": notice.id,
        "finding": notice.finding,
        "title": title,
        "at": notice.at,
        "link": link,
        "text": f"ChEX Node {node}: {title}. RESEARCH, NOT FOR DIAGNOSIS. {link}",
    }
    alerts.post(content, settings=webhook)


def _id(directory: Path, webhook: str, study_uid: str, prompt: str) -> str:
    said = "\n".join((webhook, study_uid, prompt)).encode()
    return hmac.new(_key(directory), said, hashlib.sha256).hexdigest()[:32]


def _key(directory: Path) -> bytes:
    """Return the key of this node, which the first who asks makes. Raises OSError."""
    _make_folders(directory)
    return files.secret(directory / _FOLDER / "key", length=_KEY_BYTES)


def _make_folders(directory: Path) -> None:
    for name in (f"{_FOLDER}/waiting", f"{_FOLDER}/told"):
        files.make_folder(directory / name)


def _waiting(directory: Path, notice_id: str) -> Path:
    return directory / _FOLDER / "waiting" / f"{notice_id}.json"


def _told(directory: Path, notice_id: str) -> Path:
    return directory / _FOLDER / "told" / f"{notice_id}.json"
