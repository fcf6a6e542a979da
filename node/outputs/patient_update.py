"""Corrected identities of patients: as stored documents, on headers of films, and what they reject of the node's own.

The title of the note is 113037, Rejected for Patient Safety Reasons: the objects name a patient who is another one, or
is called otherwise, by now, so nobody may use them (IHE RAD TF-2 4.66, PS3.16 CID 7010). 113001 is about quality, and
leaves an object usable; 113038 says that a modality's worklist entry was wrong, which a message does not tell; 113039
is about age alone.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, groupby
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo

from pydicom.dataset import Dataset

from node.codec import decode, encode
from node.dicom import header_reading
from node.dicom.rejection_note import TITLES, RejectionNote
from node.domain import JsonObject, OutputObject, Report
from node.errors import Undecodable, is_of_file
from node.hl7.patient import PatientUpdate
from node.outputs import person_name, rejection
from node.outputs.patient import said, whole_text
from node.store.received import sop_instance_uid_of
from node.store.rounds import RoundMark
from node.store.sent_answers import SentAnswer

TITLE: Final = TITLES["113037"]
_IDENTITY: Final = ("PatientID", "IssuerOfPatientID", "PatientName", "PatientBirthDate", "PatientSex")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredUpdate:
    """The part of an update that a study follows.

    id: a number in the order of arrival, and a hash of the message
    at: when it came
    files: of the films that it changes
    changes: the new values, by keyword
    """

    id: str
    event: str
    at: datetime
    files: frozenset[str]
    changes: Mapping[str, str]


def to_json(update: StoredUpdate) -> JsonObject:
    """Return an update as it is stored."""
    return {**encode(update), "files": [*sorted(update.files)]}


def from_json(documents: Iterable[JsonObject], *, ids: Collection[str] | None = None) -> list[StoredUpdate]:
    """Return the stored updates of a study in the order of arrival; ids: only these."""
    stored = (decode(StoredUpdate, content) for content in documents if ids is None or content["id"] in ids)
    return sorted(stored, key=lambda update: update.id)


def changes_of(update: PatientUpdate, header: Dataset) -> dict[str, str]:
    """Return what an update changes in the header of a film, by keyword; empty if the film is another patient's."""
    number, issuer = whole_text(header, "PatientID"), whole_text(header, "IssuerOfPatientID")
    if not any(prior.is_of(number, issuer) for prior in update.prior):
        return {}
    name = person_name.merged(whole_text(header, "PatientName"), update)
    new = {"PatientName": name, "PatientBirthDate": update.birth_date, "PatientSex": update.sex}
    if (staying := update.merged_into) is not None:
        new["PatientID"] = staying.number
        if issuer and staying.issuers:
            new["IssuerOfPatientID"] = staying.issuers[0]
    return {keyword: value for keyword, value in new.items() if value and value != whole_text(header, keyword)}


def before(path: Path, updates: Sequence[StoredUpdate], *, character_set: str) -> list[Dataset]:
    """Return the header of a received film as it was before each update of it; none if it has none."""
    own = [update for update in updates if path.name in update.files]
    header = header_of(path, character_set=character_set) if own else None
    return [] if header is None else [corrected(header, path.name, own[:number]) for number in range(len(own))]


def names_another(update: PatientUpdate, header: Dataset) -> bool:
    """Say whether an update may be about another person than a film: their names share no letter."""
    return person_name.shares_no_letter(whole_text(header, "PatientName"), update)


def corrected(header: Dataset, file: str, updates: Iterable[StoredUpdate]) -> Dataset:
    """Return the header of a film as updates change it; updates: in the order of arrival."""
    own = [update for update in updates if file in update.files]
    if not own:
        return header
    changed = copy.copy(header)
    for update in own:
        for keyword, value in update.changes.items():
            setattr(changed, keyword, value)
        if "PatientBirthDate" in update.changes and "PatientAge" in changed:
            del changed["PatientAge"]  # it was reckoned from the other date
    return changed


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """The updates that the rounds of a study follow, and what its earlier rounds wrote.

    updates: of this round, in the order of arrival
    earlier: the rounds before this one
    answers: what a person has sent, with the updates that each follows
    header_of: reads the received header of a file; None if it cannot be read
    parts: films that are of one patient and accession number by now, by SOP Instance UID
    """

    updates: Sequence[StoredUpdate]
    earlier: Sequence[RoundMark]
    answers: Sequence[SentAnswer]
    header_of: Callable[[str], Dataset | None]
    parts: Sequence[Collection[str]]

    def notes(
        self,
        report: Report,
        *,
        written: Collection[OutputObject],
        content_of: Callable[[OutputObject], bytes | None],
        zone: ZoneInfo,
    ) -> Iterator[Dataset]:
        """Write a note for each identity that new updates have ended, about the node's objects that carry it.

        written: the other outputs of this round, which carry the new identity
        """
        known = {update for mark in self.earlier for update in mark.corrections}
        new = [update for update in self.updates if update.id not in known]
        before = [update for update in self.updates if update.id in known]
        headers = {}
        for file in sorted(frozenset[str]().union(*(update.files for update in new))):
            if (header := self.header_of(file)) is not None:
                headers[file] = corrected(header, file, before)
        named: set[OutputObject] = set(written)

        def place(file: str) -> tuple[int, tuple[str, ...]]:
            own = (number for number, part in enumerate(self.parts) if sop_instance_uid_of(file) in part)
            return next(own, len(self.parts)), _identity(headers[file])

        for _, files in groupby(sorted(headers, key=place), key=place):
            group = list(files)
            found = (self._carrying(group, before, content_of), self._answering(group, known, content_of))
            own = [output for output in _by_series(*found) if output not in named]
            named.update(own)
            if own:
                films = frozenset(map(sop_instance_uid_of, group))
                note = RejectionNote(title=TITLE, rejected=films, header=headers[group[0]])
                yield rejection.write(note, own, report, zone=zone)

    def _carrying(
        self,
        files: Iterable[str],
        before: Iterable[StoredUpdate],
        content_of: Callable[[OutputObject], bytes | None],
    ) -> list[OutputObject]:
        """Return the outputs about films that no note has rejected: those since the last update of each film."""
        found = {}
        for file in files:
            ids = {update.id for update in before if file in update.files}
            first = next((place for place, mark in enumerate(self.earlier) if ids <= set(mark.corrections)), 0)
            outputs = [output for mark in self.earlier[first:] for output in mark.outputs]
            for output in rejection.outputs_about([sop_instance_uid_of(file)], outputs, content_of):
                found[output.sop_instance_uid] = output
        return list(found.values())

    def _answering(
        self, files: Iterable[str], known: Collection[str], content_of: Callable[[OutputObject], bytes | None]
    ) -> list[OutputObject]:
        """Return the objects of answers about films that follow all known updates of their film, but not all others."""
        found: list[OutputObject] = []
        for file in files:
            of_film = [update for update in self.updates if file in update.files]
            for answer in self.answers:
                missing = [update.id for update in of_film if not answer.follows(update.id, at=update.at)]
                if missing and not set(missing) & set(known):
                    found += rejection.outputs_about([sop_instance_uid_of(file)], answer.outputs, content_of)
        return found


def _by_series(*several: Iterable[OutputObject]) -> list[OutputObject]:
    return sorted(chain(*several), key=lambda output: (output.series_instance_uid, output.sop_instance_uid))


def _identity(header: Dataset) -> tuple[str, ...]:
    return tuple(said(header, keyword) for keyword in _IDENTITY)


def header_of(path: Path, *, character_set: str) -> Dataset | None:
    """Read the header of a received object; None if it is damaged, removed, or this program's own."""
    try:
        return header_reading.read_header(path, character_set=character_set)
    except Undecodable:
        return None
    except OSError as error:
        if is_of_file(error):
            return None
        raise
