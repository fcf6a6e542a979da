"""The spool's content of one study, read once, so that decisions about the study need no disk.

It holds what is small. Pixels and outputs stay on disk until they are needed.

Films are looked up by study and UID, or by UID in all studies. A UID should name one object (PS3.5 9.1), but a film
that was sent under the wrong study is sent again into the right one unchanged: its UID alone is ambiguous.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from pydicom.uid import KeyObjectSelectionDocumentStorage

from node.dicom import header_reading, rejection_note
from node.dicom.question_object import class_of
from node.dicom.rejection_note import RejectionNote
from node.domain import Film
from node.errors import InputError, Undecodable
from node.store import correction, questions, received, rounds
from node.store.correction import Correction
from node.store.questions import SentAnswer
from node.store.received import Instance
from node.store.rounds import RoundMark
from node.store.spool import Spool

REASONS: Final = {"113001": "quality", "113037": "patient_safety", "113038": "worklist", "113039": "retention"}
"""The reason label of the metric, by the code of the note's title."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyFacts:
    """The spool's content of one study at one moment.

    folder: the folder of its received objects
    instances: the newest version of each received object, in order of arrival
    rounds: the marks of its finished rounds, oldest first
    notes: rejection notes among all versions of its received objects, by file name
    corrections: radiologists' corrections; waiting: ids of those that may not be sent yet
    answers: sent by people, in that order
    readings: the requested stored answers about films, by key
    """

    uid: str
    folder: Path
    is_stat: bool
    instances: tuple[Instance, ...]
    rounds: tuple[RoundMark, ...]
    notes: Mapping[str, RejectionNote]
    corrections: tuple[Correction, ...]
    waiting: frozenset[str]
    answers: tuple[SentAnswer, ...]
    readings: Mapping[str, Film]

    @property
    def unread(self) -> tuple[Instance, ...]:
        """The newest version of each object that no finished round covers; all, if a correction was released since."""
        covered = rounds.covered(self.rounds, corrections=self.followed_corrections)
        return tuple(instance for instance in self.instances if instance.path.name not in covered)

    @property
    def followed_corrections(self) -> tuple[str, ...]:
        """The ids of the corrections that a round follows: all but the waiting ones."""
        return tuple(item.id for item in self.corrections if item.id not in self.waiting)

    @property
    def rejected(self) -> frozenset[str]:
        """The SOP Instance UIDs that the newest version of any note rejects."""
        return rejected_by(self.notes[item.path.name] for item in self.instances if item.path.name in self.notes)

    def new_notes(self) -> Iterator[tuple[RejectionNote, frozenset[str]]]:
        """Yield each note that no finished round covers, with the films that no note before it rejects."""
        covered = {file for mark in self.rounds for file in mark.files}
        known = rejected_by(note for file, note in self.notes.items() if file in covered)
        for note in (note for file, note in self.notes.items() if file not in covered):
            yield note, note.rejected - known
            known |= note.rejected


def load(spool: Spool, study_uid: str, *, keys: Iterable[str] = ()) -> StudyFacts:
    """Read a study from the spool; keys: of the readings to load, since those of every model are stored.

    The received objects are listed last, so that one that arrives meanwhile is included. Releases are read after
    corrections, so that no correction counts as released before its release is read.
    Raises OSError, and OtherForm for a document that another program wrote.
    """
    folder = spool.received_path(study_uid, "")
    made = tuple(spool.corrections(study_uid))
    marks = tuple(spool.rounds(study_uid))
    return StudyFacts(
        uid=study_uid,
        folder=folder,
        is_stat=spool.is_stat(study_uid),
        rounds=marks,
        corrections=made,
        waiting=correction.waiting({item.id for item in made}, marks, spool.releases(study_uid)),
        answers=tuple(questions.answers_of(spool, study_uid)),
        readings={key: found for key in keys if (found := spool.reading(study_uid, key)) is not None},
        notes=notes_among(received.listed(folder)),
        instances=spool.instances(study_uid),
    )


def notes_among(paths: Iterable[Path]) -> dict[str, RejectionNote]:
    """Return the rejection notes among received objects, by file name; a damaged object is skipped."""
    notes = {}
    for path in paths:
        if class_of(path) != KeyObjectSelectionDocumentStorage or not received.is_intact(path):
            continue
        try:
            note = rejection_note.parse(header_reading.read_header(path))
        except Undecodable:
            continue
        if note is not None:
            notes[path.name] = note
    return notes


def rejected_by(notes: Iterable[RejectionNote]) -> frozenset[str]:
    """Return the SOP Instance UIDs that any of the notes rejects."""
    return frozenset[str]().union(*(note.rejected for note in notes))


def film_in(spool: Spool, study_uid: str, uid: str) -> Instance | None:
    """Return the newest version of a received object of a study; None if it is unknown or removed."""
    instances = spool.instances(study_uid)
    return next((instance for instance in instances if instance.sop_instance_uid == uid), None)


def films_of(spool: Spool, uid: str) -> list[Instance]:
    """Return the newest version of every received object with a SOP Instance UID, one for each study that has it."""
    return _in_each(spool, spool.find_studies(uid), uid)


def elsewhere(spool: Spool, film: Instance) -> list[Instance]:
    """Return the received objects of other studies with a film's SOP Instance UID, by the index as it is.

    Fast enough for every object that arrives: entries that a power cut lost are not searched for.
    """
    studies = spool.index.noted(film.sop_instance_uid)
    return _in_each(spool, (study for study in studies if study != film.study_uid), film.sop_instance_uid)


def _in_each(spool: Spool, studies: Iterable[str], uid: str) -> list[Instance]:
    return [film for study in studies if (film := film_in(spool, study, uid)) is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class FilmRejection:
    """Why a film is rejected: the title (DCM) and the arrival of the first note that names it."""

    code: str
    meaning: str
    at: datetime

    @property
    def text(self) -> str:
        """The rejection in words."""
        return f"rejected by the archive: {self.meaning} ({self.code} DCM)"


def rejections_of(instances: Iterable[Instance]) -> dict[str, FilmRejection]:
    """Return the rejections by a study's notes, by SOP Instance UID, also of films that never arrived."""
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
    """Raise InputError with the reason for a film that an archive has rejected: it takes no question or correction."""
    why = rejections_of(spool.instances(film.study_uid)).get(film.sop_instance_uid)
    if why is not None:
        raise InputError(f"this film was {why.text}; what the node reported on it is void")
