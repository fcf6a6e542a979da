"""Read attributes of received objects; a broken value counts as absent.

Objects come from any device. pydicom converts a value on first access and raises whatever error the conversion meets
(a US of three bytes, a DS that is a word). Such an error must not stop the decision about a film. pydicom's warnings
quote the value, which may identify a patient, so they must not reach a log.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from pydicom.dataelem import DataElement, RawDataElement
from pydicom.dataset import Dataset
from pydicom.hooks import hooks, raw_element_vr
from pydicom.tag import BaseTag, Tag

from node.character_sets import LOST
from node.domain import is_uid

Key = str | BaseTag
"""The keyword of an attribute, or its tag if the keyword stands for several (60xx, PS3.5 7.6)."""

_CHARACTER_SET: Final = Tag("SpecificCharacterSet")

REQUIRED: Final = (
    "PatientName",
    "PatientID",
    "PatientBirthDate",
    "PatientSex",
    "StudyDate",
    "StudyTime",
    "StudyID",
    "AccessionNumber",
    "ReferringPhysicianName",
)
"""Type 2 in every object that we write (PS3.3 C.7.1.1, C.7.2.1): present even if empty."""
OPTIONAL: Final = ("IssuerOfPatientID", "PatientAge", "PatientSize", "PatientWeight", "StudyDescription")
"""Of patient and study, which objects have if their film has them."""
REQUESTED: Final = (
    "AccessionNumber",
    "PlacerOrderNumberImagingServiceRequest",
    "FillerOrderNumberImagingServiceRequest",
    "RequestedProcedureID",
    "RequestedProcedureDescription",
)
"""The attributes of the request in a report (PS3.3 C.17.2.3)."""


def _find_vr(raw: RawDataElement, found: dict[str, object], *, ds: Dataset | None = None, **_context: object) -> None:
    """Find the value representation of an element as pydicom does, but for Specific Character Set, which is text.

    pydicom 3.0.2 converts it when it reads a dataset, and reads none where its device wrote a number.
    """
    raw_element_vr(raw, found, ds=ds)
    if raw.tag == _CHARACTER_SET:
        found["VR"] = "CS"


hooks.register_callback("raw_element_vr", _find_vr)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence pydicom's warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def values(dataset: Dataset, keyword: Key) -> tuple[object, ...]:
    """Return the values of an attribute; an empty tuple when it is absent, empty or broken."""
    try:
        with quiet():
            value = dataset.get(keyword)
            if isinstance(value, DataElement):
                value = value.value
    except Exception:  # the boundary to pydicom's converters, which document no set of exceptions
        return ()
    if value is None or value == "":
        return ()
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return tuple(value)
    return (value,)


def text(dataset: Dataset, keyword: Key) -> str:
    """Return an attribute as text without surrounding blanks; several values are joined by backslashes.

    A text that could not be decoded is empty.
    """
    found = text_with_gaps(dataset, keyword)
    return "" if LOST in found else found


def text_with_gaps(dataset: Dataset, keyword: Key) -> str:
    """Return a text as `text` does, with U+FFFD where it could not be decoded: to find words in it, never to show."""
    return "\\".join(str(value).strip() for value in values(dataset, keyword) if value is not None)


def uid(dataset: Dataset, keyword: Key) -> str:
    """Return an attribute that is one valid UID (PS3.5 9.1); "" for several values, and for all else."""
    found = text(dataset, keyword)
    return found if is_uid(found) else ""


def raw(dataset: Dataset, tag: BaseTag, *, longest: int) -> RawDataElement | None:
    """Return an element with its bytes; None if it is longer, was converted, or cannot be read any more."""
    try:
        element: object = dataset.get_item(tag, keep_deferred=True)
        if isinstance(element, RawDataElement) and element.value is None and element.length <= longest:
            element = dataset.get_item(tag)
    except Exception:  # the boundary to pydicom, which reads a long value from its file here
        return None
    return element if isinstance(element, RawDataElement) and element.length <= longest else None


def number(dataset: Dataset, keyword: Key) -> float | None:
    """Return the first value as a finite number; None when it is absent or broken."""
    for value in values(dataset, keyword)[:1]:
        try:
            found = float(str(value))
        except ValueError:
            return None
        return found if math.isfinite(found) else None
    return None


def whole(dataset: Dataset, keyword: Key) -> int | None:
    """Return the first value as a whole number; None when it is absent, broken or not whole."""
    found = number(dataset, keyword)
    return int(found) if found is not None and found.is_integer() else None


def wholes(dataset: Dataset, keyword: Key) -> tuple[int, ...]:
    """Return the values as whole numbers; an empty tuple when it is absent or one of them is broken or not whole."""
    try:
        found = [float(str(value)) for value in values(dataset, keyword)]
    except ValueError:
        return ()
    return tuple(map(int, found)) if all(map(float.is_integer, found)) else ()


def items(dataset: Dataset, keyword: str) -> tuple[Dataset, ...]:
    """Return the items of a sequence; an empty tuple when it is absent, empty or broken."""
    return tuple(item for item in values(dataset, keyword) if isinstance(item, Dataset))


def references(dataset: Dataset, keyword: str = "ReferencedSOPSequence") -> list[str]:
    """Return the SOP Instance UIDs that a sequence refers to."""
    return [uid for item in items(dataset, keyword) if (uid := text(item, "ReferencedSOPInstanceUID"))]
