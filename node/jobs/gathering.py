"""Gathers the corrections of a study: each is stored at once, and all waiting ones are sent together.

They are released when the radiologist has finished, or some time after the last of them. A release is stored and
synced, and the next round of the study follows all released corrections (`node.store.correction`).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain

from models.documents import encode
from node.errors import OtherForm
from node.store import correction
from node.store.correction import Correction, Release
from node.store.spool import Spool


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """The corrections of a study that no report follows yet, because the radiologist may not have finished.

    corrections: oldest first
    changes: how many corrections the next report adds or drops; 0 if all waiting ones were withdrawn, so that nothing
        new is sent
    """

    corrections: tuple[Correction, ...]
    changes: int

    def leave_at(self, quiet_seconds: float) -> datetime | None:
        """Return when they are released if no correction follows; None if none waits."""
        last = self.corrections[-1] if self.corrections else None
        return None if last is None else last.at + timedelta(seconds=quiet_seconds)


def waiting(spool: Spool, study_uid: str) -> Waiting:
    """Return the waiting corrections of a study. Raises OtherForm for one that another program wrote."""
    stored = spool.corrections(study_uid)
    if not stored:
        return Waiting(corrections=(), changes=0)
    ids = correction.waiting({item.id for item in stored}, spool.rounds(study_uid), spool.releases(study_uid))
    left = [item for item in stored if item.id not in ids]
    return Waiting(
        corrections=tuple(sorted((item for item in stored if item.id in ids), key=lambda item: (item.at, item.id))),
        changes=len(set(correction.active(stored)) ^ set(correction.active(left))),
    )


def release(spool: Spool, study_uid: str, found: Waiting) -> None:
    """Release waiting corrections, synced; a correction that came meanwhile waits on. Raises OSError."""
    if found.corrections:
        named = Release(corrections=tuple(item.id for item in found.corrections), at=datetime.now(UTC))
        spool.keep_document(study_uid, "released", uuid.uuid4().hex, encode(named))


def are_released(spool: Spool, study_uid: str) -> bool:
    """Whether a study has released corrections that no round follows yet."""
    followed = chain.from_iterable(mark.corrections for mark in spool.rounds(study_uid))
    released = chain.from_iterable(found.corrections for found in spool.releases(study_uid))
    return not {*released} <= {*followed}


def wait_again(
    spool: Spool,
    study_uid: str,
    run_gather: Callable[[str, str, float], None],
    *,
    quiet_seconds: float,
    queued: Collection[str] = (),
) -> None:
    """Queue the release of a study's waiting corrections, for the rest of their time.

    run_gather: `executor.Client.run_gather`; queued: ids of the corrections that are queued already
    """
    try:
        found = waiting(spool, study_uid)
    except OtherForm:
        run_gather(study_uid, "", 0.0)  # parks the study, with the reason
        return
    end = found.leave_at(quiet_seconds)
    if end is not None and found.corrections[-1].id not in queued:
        left = (end - datetime.now(UTC)).total_seconds()
        run_gather(study_uid, found.corrections[-1].id, min(max(left, 0.0), quiet_seconds))
