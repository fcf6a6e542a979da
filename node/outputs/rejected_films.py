"""Which films of a study an archive has rejected, why and when: for pages, interface, `explain` and metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from node.errors import InputError
from node.store.received import Instance
from node.store.spool import Spool
from node.store.study_facts import StudyFacts, notes_among

REASONS: Final = {"113001": "quality", "113037": "patient_safety", "113038": "worklist", "113039": "retention"}
"""The reasons of the metric, by the code of the note's title."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilmRejection:
    """Why a film is rejected: the title of the first note that names it (DCM), and when the note came."""

    code: str
    meaning: str
    at: datetime

    @property
    def said(self) -> str:
        """The rejection in words."""
        return f"rejected by the archive: {self.meaning} ({self.code} DCM)"


def rejections_of(instances: Iterable[Instance]) -> dict[str, FilmRejection]:
    """Return what the notes among a study's objects reject, by SOP Instance UID, films that never came included."""
    received_at = {instance.path: instance.received_at for instance in instances}
    notes = notes_among(received_at)
    found: dict[str, FilmRejection] = {}
    for path in sorted((path for path in received_at if path.name in notes), key=received_at.__getitem__):
        note = notes[path.name]
        rejected = FilmRejection(code=note.title.value, meaning=note.title.meaning, at=received_at[path])
        for film in note.rejected:
            found.setdefault(film, rejected)
    return found


def require_valid(spool: Spool, film: Instance) -> None:
    """Raise InputError with the reason for a film that an archive has rejected: nobody asks about it or corrects it."""
    why = rejections_of(spool.study(film.study_uid).instances).get(film.sop_instance_uid)
    if why is not None:
        raise InputError(f"this film was {why.said}; what the node reported on it is void")


def count_new(facts: StudyFacts) -> Counter[str]:
    """Count by reason the films that the notes of a round reject and no earlier round has; unknown films count.

    facts: those that the round knows
    """
    counted: Counter[str] = Counter()
    for note, films in facts.new_notes():
        counted[REASONS[note.title.value]] += len(films)
    return +counted  # a note about films that are rejected already rejects none
