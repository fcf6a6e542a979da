"""Gathers the corrections of a study: each is stored at once, and all that wait leave together.

They leave when their reader says that he has finished, or some time after the last of them. Either is a release, stored
and synced, and the next round of the study follows all corrections that were released (`node.store.correction`).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Final

from models.documents import encode
from node.errors import OtherForm
from node.store import correction
from node.store.correction import Correction, Release
from node.store.spool import Spool


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """The corrections of a study that no report follows yet, because their reader may not have finished.

    corrections: oldest first
    changes: how many corrections the next report follows for the first time, or follows no more; 0 if all that waits
        was taken back, so that nothing new is sent
    """

    corrections: tuple[Correction, ...] = ()
    changes: int = 0

    def leave_at(self, quiet_seconds: float) -> datetime | None:
        """Return when they leave if nothing more is corrected; None if none waits."""
        last = self.corrections[-1] if self.corrections else None
        return None if last is None else last.at + timedelta(seconds=quiet_seconds)


NOTHING: Final = Waiting()


def waiting(spool: Spool, study_uid: str) -> Waiting:
    """Return what waits in a study. Raises OtherForm for a correction that another program wrote."""
    stored = spool.corrections(study_uid)
    if not stored:
        return NOTHING
    ids = correction.waiting({item.id for item in stored}, spool.rounds(study_uid), spool.releases(study_uid))
    left = [item for item in stored if item.id not in ids]
    return Waiting(
        corrections=tuple(sorted((item for item in stored if item.id in ids), key=lambda item: (item.at, item.id))),
        changes=len(set(correction.active(stored)) ^ set(correction.active(left))),
    )


def release(spool: Spool, study_uid: str, found: Waiting) -> None:
    """Let corrections leave that wait, synced; one that came meanwhile waits on. Raises OSError."""
    if found.corrections:
        named = Release(corrections=tuple(item.id for item in found.corrections), at=datetime.now(UTC))
        spool.keep_document(study_uid, "released", uuid.uuid4().hex, encode(named))


def are_released(spool: Spool, study_uid: str) -> bool:
    """Whether a study has corrections that may leave, and that no round follows yet."""
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
    """Queue what releases the corrections that wait in a study, for what is left of their time.

    run_gather: `executor.Client.run_gather`; queued: ids of the corrections for which that is done
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
