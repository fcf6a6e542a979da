"""Reads rejection notes: Key Object Selection Documents by which an archive rejects objects (IHE RAD TF-2, RAD-66).

Pure: it looks at the document alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pydicom.dataset import Dataset

from node.dicom import attributes, identity
from node.dicom.sr_questions import evidence
from node.domain import Code

TITLES: Final = {
    value: Code(value=value, scheme="DCM", meaning=meaning)
    for value, meaning in (
        ("113001", "Rejected for Quality Reasons"),
        ("113037", "Rejected for Patient Safety Reasons"),
        ("113038", "Incorrect Modality Worklist Entry"),
        ("113039", "Data Retention Policy Expired"),
    )
}
"""The document titles that reject (PS3.16 CID 7010, CID 7011)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectionNote:
    """A rejection note that another program wrote.

    rejected: SOP Instance UIDs of the objects of the note's own study that it rejects
    header: the note itself, whose patient and study are those of the rejected objects
    """

    title: Code
    rejected: frozenset[str]
    header: Dataset


def parse(dataset: Dataset) -> RejectionNote | None:
    """Return the rejection in a Key Object Selection Document; None without one, or if this program wrote it."""
    codes = attributes.items(dataset, "ConceptNameCodeSequence")
    is_dcm = [attributes.text(code, "CodingSchemeDesignator") == "DCM" for code in codes] == [True]
    title = TITLES.get(attributes.text(codes[0], "CodeValue")) if is_dcm else None
    rejected = frozenset(_rejected(dataset))
    if title is None or not rejected or identity.is_own(dataset):
        return None
    return RejectionNote(title=title, rejected=rejected, header=dataset)


def _rejected(dataset: Dataset) -> Iterator[str]:
    """Yield the objects of the evidence that lie in the note's own study (PS3.3 C.17.2), and of the content items."""
    yield from evidence(dataset, study_uid=attributes.text(dataset, "StudyInstanceUID"))
    for item in attributes.items(dataset, "ContentSequence"):  # PS3.16 TID 2010
        yield from attributes.references(item)
