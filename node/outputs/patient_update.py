"""Corrected identities of patients: on headers of films, and what they reject of the node's own objects.

The title of the note is 113037, Rejected for Patient Safety Reasons: the objects name a patient who is another one, or
is called otherwise, by now, so nobody may use them (IHE RAD TF-2 4.66, PS3.16 CID 7010). 113001 is about quality, and
leaves an object usable; 113038 says that a modality's worklist entry was wrong, which a message does not tell; 113039
is about age alone.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo

from pydicom.dataset import Dataset

from node.dicom import header_reading
from node.dicom.rejection_note import TITLES, RejectionNote
from node.domain import OutputObject, Report
from node.errors import Undecodable, is_of_file
from node.hl7.patient import PatientUpdate
from node.outputs import person_name, rejection
from node.outputs.kinds import Written
from node.outputs.patient import said, whole_text
from node.outputs.rejection import ContentOf
from node.store.received import sop_instance_uid_of
from node.store.stored_updates import StoredUpdate
from node.store.study_facts import StudyFacts

TITLE: Final = TITLES["113037"]
_IDENTITY: Final = ("PatientID", "IssuerOfPatientID", "PatientName", "PatientBirthDate", "PatientSex")


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


def before(header: Dataset, file: str, updates: Sequence[StoredUpdate]) -> list[Dataset]:
    """Return the header of a film as it was before each update of it, the received one first; none if it has none."""
    own = [update for update in updates if file in update.files]
    return [corrected(header, file, own[:number]) for number in range(len(own))]


def names_another(update: PatientUpdate, header: Dataset) -> bool:
    """Say whether an update may be about another person than a film: their names share no letter."""
    return person_name.shares_no_letter(whole_text(header, "PatientName"), update)


def corrected(header: Dataset, file: str, updates: Iterable[StoredUpdate]) -> Dataset:
    """Return the header of a film as updates change it, and leave it as it was; updates: in the order of arrival."""
    own = [update for update in updates if file in update.files]
    if not own:
        return header
    changed = copy.deepcopy(header)  # a shallow copy of a pydicom dataset shares its elements
    for update in own:
        for keyword, value in update.changes.items():
            setattr(changed, keyword, value)
        if "PatientBirthDate" in update.changes and "PatientAge" in changed:
            del changed["PatientAge"]  # it was reckoned from the other date
    return changed


def notes(
    facts: StudyFacts,
    report: Report,
    *,
    headers: Mapping[str, Dataset],
    parts: Sequence[Collection[str]],
    written: Collection[OutputObject],
    content_of: ContentOf,
    zone: ZoneInfo,
) -> Iterator[Written]:
    """Write a note for each identity that new updates have ended, about the node's objects that carry it.

    facts: those that the round knows
    headers: as received, by file, of what the new updates change (`new_files`), as far as it can be read
    parts: films that are of one patient and accession number by now, by SOP Instance UID
    written: the other outputs of this round, which carry the new identity
    """
    known = _followed(facts)
    before = [update for update in facts.updates if update.id in known]
    ended = {file: corrected(headers[file], file, before) for file in new_files(facts) if file in headers}
    named: set[OutputObject] = set(written)

    def place(file: str) -> tuple[int, tuple[str, ...]]:
        own = (number for number, part in enumerate(parts) if sop_instance_uid_of(file) in part)
        return next(own, len(parts)), _identity(ended[file])

    for _, files in groupby(sorted(ended, key=place), key=place):
        group = list(files)
        found = (_carrying(facts, group, before, content_of), _answering(facts, group, known, content_of))
        own = [output for output in _by_series(*found) if output not in named]
        named.update(own)
        if own:
            films = frozenset(map(sop_instance_uid_of, group))
            note = RejectionNote(title=TITLE, rejected=films, header=ended[group[0]])
            yield from rejection.for_receivers(note, own, report, zone=zone)


def new_files(facts: StudyFacts) -> list[str]:
    """Return the files of the films that updates change which no earlier round has followed."""
    known = _followed(facts)
    return sorted(frozenset[str]().union(*(update.files for update in facts.updates if update.id not in known)))


def _followed(facts: StudyFacts) -> frozenset[str]:
    return frozenset[str]().union(*(mark.corrections for mark in facts.rounds))


def _carrying(
    facts: StudyFacts, files: Iterable[str], before: Iterable[StoredUpdate], content_of: ContentOf
) -> list[OutputObject]:
    """Return the outputs about films that no note has rejected: those since the last update of each film."""
    found = {}
    for file in files:
        ids = {update.id for update in before if file in update.files}
        first = next((place for place, mark in enumerate(facts.rounds) if ids <= set(mark.corrections)), 0)
        outputs = [output for mark in facts.rounds[first:] for output in mark.outputs]
        for output in rejection.outputs_about([sop_instance_uid_of(file)], outputs, content_of):
            found[output.sop_instance_uid] = output
    return list(found.values())


def _answering(
    facts: StudyFacts, files: Iterable[str], known: Collection[str], content_of: ContentOf
) -> list[OutputObject]:
    """Return the objects of answers about films that follow all known updates of their film, but not all others."""
    found: list[OutputObject] = []
    for file in files:
        of_film = [update for update in facts.updates if file in update.files]
        for answer in facts.answers:
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
