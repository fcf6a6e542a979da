"""Objects of workstations that may ask: what becomes of each, in a small synced file of its study.

It is written before anything is queued, so a question that was received is not lost with the databases. An object is
answered once: it is known by its SOP Instance UID.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from models.documents import decode, encode
from node.store.received import sop_instance_uid_of
from node.store.spool import Spool


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectMark:
    """What is known of an object.

    file: its name in the spool
    received_at: aware UTC
    is_open: whether it is still to be looked at
    questions: ids of its questions whose answers are sent
    reasons: why it, or a part of it, has no effect
    """

    file: str
    received_at: datetime
    is_open: bool = True
    questions: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()

    @property
    def sop_instance_uid(self) -> str:
        """The UID of the object."""
        return sop_instance_uid_of(self.file)


def keep(spool: Spool, study_uid: str, mark: ObjectMark) -> None:
    """Store what is known of an object, synced. Raises FileNotFoundError if its study was removed."""
    spool.keep_document(study_uid, "objects", mark.sop_instance_uid, encode(mark))


def find(spool: Spool, study_uid: str, sop_instance_uid: str) -> ObjectMark | None:
    """Return what is known of an object; None if nothing is."""
    return next((mark for mark in all_of(spool, study_uid) if mark.sop_instance_uid == sop_instance_uid), None)


def all_of(spool: Spool, study_uid: str) -> list[ObjectMark]:
    """Return what is known of the objects of a study, in order of arrival."""
    found = (decode(ObjectMark, content) for content in spool.documents(study_uid, "objects"))
    return sorted(found, key=lambda mark: (mark.received_at, mark.file))
