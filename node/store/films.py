"""Finds a received film among all studies of a spool."""

from __future__ import annotations

from node.store.instances import Instance
from node.store.spool import Spool


def find_film(spool: Spool, uid: str) -> Instance | None:
    """Return the newest version of a received object by its SOP Instance UID; None if it is unknown or removed."""
    study_uid = spool.find_study(uid)
    if study_uid is None:
        return None
    instances = spool.study(study_uid).instances
    return next((instance for instance in instances if instance.sop_instance_uid == uid), None)
