"""Reads a workstation's stored presentation state or structured report as questions.

Pure: it looks at the object alone. Whether such an object is a question is a setting, and whether its films are here is
known to the spool; `node.jobs.object_questions` looks at both.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from pydicom.dataset import Dataset
from pydicom.uid import (
    Comprehensive3DSRStorage,
    ComprehensiveSRStorage,
    EnhancedSRStorage,
    GrayscaleSoftcopyPresentationStateStorage,
)

from node.dicom import attributes, gsps_questions, identity, sr_questions
from node.dicom.header import read_meta
from node.dicom.marked_question import LeftOut, MarkedQuestion, words
from node.domain import ObjectReference, is_uid
from node.errors import InputError, is_of_disk, is_of_file

STATES: Final = (GrayscaleSoftcopyPresentationStateStorage,)
REPORTS: Final = (EnhancedSRStorage, ComprehensiveSRStorage, Comprehensive3DSRStorage)
"""OHIF 3.13 writes the first."""
SOP_CLASSES: Final = frozenset(map(str, (*STATES, *REPORTS)))
MOST: Final = 20
"""Questions of one object that are answered, as many as in one request over the interface for programs."""
_MOST_KNOWN: Final = 65_536
"""Files whose SOP class is remembered: every step of a study asks for those of all its objects."""
_PERSON: Final = "121008"
_UNKNOWN: Final = frozenset(("", "unknown", "unknown unknown", "anonymous"))


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionObject:
    """The origin and the questions of an object.

    is_own: whether this program wrote it, with any weights
    creators: manufacturer and person, in lower case, without empty ones
    labels: label and descriptions, in lower case, without empty ones
    asked_by: the person, "" if the object names none
    instance_number: 0 if it has none
    questions: at most `MOST`
    left_out: why parts of the object are not answered, each reason once
    """

    reference: ObjectReference
    study_uid: str
    is_own: bool
    creators: frozenset[str]
    labels: frozenset[str]
    asked_by: str
    instance_number: int
    questions: tuple[MarkedQuestion, ...]
    left_out: tuple[str, ...]

    @property
    def is_report(self) -> bool:
        """Whether it is a structured report, which can be named as a predecessor."""
        return self.reference.sop_class_uid in REPORTS


def class_of(path: Path) -> str:
    """Return the SOP class of a stored object, "" for one that is removed, damaged, or on a bad sector.

    Raises OSError when the disk as a whole fails.
    """
    try:
        found = path.stat()
        return _class_in(path, found.st_ino, found.st_mtime_ns)
    except FileNotFoundError:
        return ""
    except Exception as error:  # the boundary to pydicom's parser, which documents no set of exceptions
        if is_of_disk(error) and not is_of_file(error):
            raise
        return ""


@lru_cache(maxsize=_MOST_KNOWN)
def _class_in(path: Path, _inode: int, _modified_ns: int) -> str:
    """Read the SOP class of a file; one that was replaced or changed is read again."""
    with path.open("rb") as file:
        return attributes.text(read_meta(file), "MediaStorageSOPClassUID")


def sender_of(dataset: Dataset) -> str:
    """Return the AE title that sent a stored object (PS3.10 7.1)."""
    return attributes.text(dataset.file_meta, "SourceApplicationEntityTitle")


def read(dataset: Dataset) -> QuestionObject:
    """Read an object. Raises InputError if it is of another class, or has no valid UIDs."""
    reference = ObjectReference(
        sop_class_uid=attributes.text(dataset, "SOPClassUID"),
        sop_instance_uid=attributes.text(dataset, "SOPInstanceUID"),
        series_instance_uid=attributes.text(dataset, "SeriesInstanceUID"),
    )
    study_uid = attributes.text(dataset, "StudyInstanceUID")
    if reference.sop_class_uid not in SOP_CLASSES:
        raise InputError("the object is neither a grayscale presentation state nor an enhanced or comprehensive report")
    if not all(map(is_uid, (reference.sop_instance_uid, reference.series_instance_uid, study_uid))):
        raise InputError("a UID of the object is not valid")
    reading = gsps_questions if reference.sop_class_uid in STATES else sr_questions
    found = list(reading.questions(dataset))
    asked = [item for item in found if isinstance(item, MarkedQuestion)]
    reasons = [item.reason for item in found if isinstance(item, LeftOut)]
    if len(asked) > MOST:
        reasons.append(f"{len(asked) - MOST} of {len(asked)} questions: one object may ask {MOST}")
    person = _person(dataset)
    number = attributes.whole(dataset, "InstanceNumber")
    return QuestionObject(
        reference=reference,
        study_uid=study_uid,
        is_own=identity.is_own(dataset),
        creators=_named(attributes.text(dataset, "Manufacturer"), person),
        labels=_named(
            *(
                attributes.text(dataset, keyword)
                for keyword in ("ContentLabel", "ContentDescription", "SeriesDescription")
            )
        ),
        asked_by=person,
        instance_number=number if number is not None and 0 < number < 2**31 - MOST - 1 else 0,
        questions=tuple(asked[:MOST]),
        left_out=tuple(dict.fromkeys(reasons)),
    )


def _person(dataset: Dataset) -> str:
    """Return who made an object, its content creator or first person observer (TID 1003); "" if it names nobody."""
    observers = (
        attributes.text(item, "PersonName")
        for item in attributes.items(dataset, "ContentSequence")
        if any(
            attributes.text(name, "CodeValue") == _PERSON for name in attributes.items(item, "ConceptNameCodeSequence")
        )
    )
    name = attributes.text(dataset, "ContentCreatorName") or next(observers, "")
    plain = words(name.split("=")[0].replace("^", " ")) or ""
    return "" if plain.lower() in _UNKNOWN else plain[:64]


def _named(*values: str) -> frozenset[str]:
    return frozenset(value.strip().lower() for value in values if value.strip())
