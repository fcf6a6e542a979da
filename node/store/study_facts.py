"""What the spool holds of one study, read once, so that whoever decides about the study touches no disk.

It has what is small. Pictures and the content of outputs stay on the disk until somebody needs one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from node.dicom import header_reading, rejection_note
from node.dicom.rejection_note import RejectionNote
from node.domain import JsonObject
from node.errors import Undecodable
from node.store import correction, received, rounds, sent_answers
from node.store.correction import Correction
from node.store.received import Instance
from node.store.rounds import RoundMark
from node.store.sent_answers import SentAnswer
from node.store.spool import Spool


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyFacts:
    """One study as the spool held it at one moment.

    folder: of its received objects
    instances: the newest version of each received object, in order of arrival
    rounds: the marks of its finished rounds, oldest first
    notes: the rejection notes among all versions of its received objects, by file name
    corrections: of readers; waiting: the ids of those that may not leave yet
    answers: what a person has sent, in that order
    readings: the stored answers about films, by key; only those that were asked for
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
    readings: Mapping[str, JsonObject]

    @property
    def unread(self) -> tuple[Instance, ...]:
        """The newest version of each object that no finished round covers; all, if something was said since."""
        covered = rounds.covered(self.rounds, said=self.said)
        return tuple(instance for instance in self.instances if instance.path.name not in covered)

    @property
    def said(self) -> tuple[str, ...]:
        """The ids of its corrections that a round follows: all but those that wait."""
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
    """Read what the spool holds of a study; keys: of the readings to load, since those of every model are kept.

    The received objects are listed last: one that comes meanwhile is rather among them than left out. Releases are read
    after corrections, so that no correction passes for released before its release is seen.
    Raises OSError, and ValueError for a document that another program wrote.
    """
    folder = spool.received_path(study_uid, "")
    made = tuple(map(correction.from_json, spool.documents(study_uid, "corrections")))
    marks = tuple(spool.rounds(study_uid))
    return StudyFacts(
        uid=study_uid,
        folder=folder,
        is_stat=spool.is_stat(study_uid),
        rounds=marks,
        corrections=made,
        waiting=correction.waiting({item.id for item in made}, marks, spool.releases(study_uid)),
        answers=tuple(sent_answers.all_of(spool, study_uid)),
        readings={key: found for key in keys if (found := spool.reading(study_uid, key)) is not None},
        notes=notes_among(received.listed(folder)),
        instances=spool.study(study_uid).instances,
    )


def notes_among(paths: Iterable[Path]) -> dict[str, RejectionNote]:
    """Return the rejection notes among received objects, by file name; a damaged object is none."""
    notes = {}
    for path in paths:
        if not (rejection_note.may_be(path) and received.is_intact(path)):
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
