"""Finds received films: one by its study and UID, and all that have one UID in several studies.

A SOP Instance UID names one object (PS3.5 9.1), but a film that was taken under the wrong study is sent again into the
right one as it is. So a UID alone names no film for certain.
"""

from __future__ import annotations

from collections.abc import Iterable

from node.store.received import Instance
from node.store.spool import Spool


def film_in(spool: Spool, study_uid: str, uid: str) -> Instance | None:
    """Return the newest version of a received object of a study; None if it is unknown or removed."""
    instances = spool.study(study_uid).instances
    return next((instance for instance in instances if instance.sop_instance_uid == uid), None)


def films_of(spool: Spool, uid: str) -> list[Instance]:
    """Return the newest version of every received object with a SOP Instance UID, one for each study that has it."""
    return _in_each(spool, spool.find_studies(uid), uid)


def elsewhere(spool: Spool, film: Instance) -> list[Instance]:
    """Return the received objects of other studies with the SOP Instance UID of a film, as far as they are noted.

    Quick enough for every object that arrives: what a power cut took from the index is not looked for.
    """
    studies = spool.index.noted(film.sop_instance_uid)
    return _in_each(spool, (study for study in studies if study != film.study_uid), film.sop_instance_uid)


def _in_each(spool: Spool, studies: Iterable[str], uid: str) -> list[Instance]:
    return [film for study in studies if (film := film_in(spool, study, uid)) is not None]
