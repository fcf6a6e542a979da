"""Whom the films of a study name, for the worklist: read off their headers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from node.dicom.header_reading import header_of
from node.outputs.patient import whole_of_request, whole_text
from node.store import questions
from node.store.ledger import Ledger
from node.store.spool import Spool
from node.store.worklist import PatientRow, folded

_NAMED: Final = {
    "name": "PatientName",
    "patient_id": "PatientID",
    "issuer": "IssuerOfPatientID",
    "study_date": "StudyDate",
    "modality": "Modality",
    "station": "StationName",
}
_IDENTITY: Final = ("name", "patient_id", "issuer", "accession")


def note_patients(spool: Spool, ledger: Ledger, study_uid: str) -> None:
    """Record whom a study names by now. Raises SQLAlchemyError, and OSError when the disk fails."""
    ledger.searchable.set_patients(study_uid, patients_of(spool, study_uid))


def patients_of(spool: Spool, study_uid: str) -> list[PatientRow]:
    """Return whom the films of a study name, the newest film first, each once.

    A study of which no header can be read has a blank row, so that nobody looks for it again.
    """
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for values in _named(spool, study_uid):
        found.setdefault(tuple(values[name] for name in _IDENTITY), values)
    blank = dict.fromkeys((*_NAMED, "accession"), "")
    return [_row(study_uid, number, values) for number, values in enumerate(list(found.values()) or [blank])]


def _named(spool: Spool, study_uid: str) -> Iterator[dict[str, str]]:
    asking = {mark.file for mark in questions.objects_of(spool, study_uid)}
    for instance in reversed(spool.study(study_uid).instances):
        if instance.path.name in asking:
            continue
        header = header_of(instance.path, character_set=spool.character_set)
        if header is not None and "Rows" in header:  # notes and reports that came with the films name them, too
            values = {name: whole_text(header, keyword) for name, keyword in _NAMED.items()}
            yield {**values, "accession": whole_of_request(header, "AccessionNumber")}


def _row(study_uid: str, number: int, values: dict[str, str]) -> PatientRow:
    date = values["study_date"]
    dashed = f"{date[:4]}-{date[4:6]}-{date[6:]}" if date else ""
    said = (*(values[name] for name in ("name", "patient_id", "accession", "modality", "station")), date, dashed)
    return PatientRow(study_uid=study_uid, number=number, search=folded(" ".join(said)), **values)
