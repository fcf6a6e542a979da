"""Copy the patient and study attributes of the source, with validation.

Every copied value is valid for its value representation, or empty. Text is decoded here from its bytes, not by
pydicom's converters: their warnings quote a bad value, which may be a name or a birth date.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping

from pydicom.datadict import dictionary_VR, tag_for_keyword
from pydicom.dataset import Dataset
from pydicom.multival import MultiValue

from node.character_sets import LOST
from node.dicom import film_text
from node.dicom.dates import read_date
from node.dicom.patient_age import age_string

# Type 2 in every object we write (PS3.3 C.7.1.1, C.7.2.1): present even if empty.
_REQUIRED = (
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
_OPTIONAL = ("IssuerOfPatientID", "PatientAge", "PatientSize", "PatientWeight", "StudyDescription")

_NOT_IN_SHORT_TEXT = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_NOT_IN_LONG_TEXT = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
_TIME = re.compile(r"([01]\d|2[0-3])([0-5]\d([0-5]\d(\.\d{1,6})?)?)?")
_CODED = re.compile(r"[A-Z0-9_ ]{1,16}")


def copy_patient(source: Dataset, target: Dataset) -> None:
    """Copy the patient and study attributes of the source into an object (PS3.3 C.7.1.1, C.7.2.1, C.7.2.2)."""
    for keyword in _REQUIRED:
        setattr(target, keyword, read_text(source, keyword))
    if target.PatientSex not in ("M", "F", "O"):
        target.PatientSex = ""
    for keyword in _OPTIONAL:
        if value := read_text(source, keyword):
            setattr(target, keyword, value)


def best_described(sources: Iterable[Dataset]) -> Dataset:
    """Return the source with the most patient and study attributes, the first of equals. Raises ValueError if none."""
    return max(sources, key=lambda source: sum(bool(read_text(source, keyword)) for keyword in _REQUIRED))


def described_by(film: Dataset, films: Iterable[Dataset]) -> Dataset:
    """Return the header that describes the patient of a film: its own, or the study's best if it names no patient."""
    return film if read_text(film, "PatientID") else best_described(films)


def read_text(source: Dataset, keyword: str) -> str:
    """Read the first value of an attribute as valid text of its value representation, or "" (PS3.5 6.2)."""
    clean = _CLEAN.get(dictionary_VR(keyword), short_text)
    return clean(_decoded(source, keyword).split("\\")[0])


def short_text(value: str, limit: int = 64) -> str:
    """Make text valid as LO (PS3.5 6.2): no control characters, no backslash, at most `limit` characters."""
    return " ".join(_NOT_IN_SHORT_TEXT.sub(" ", value).replace("\\", "/").split())[:limit].strip()


def long_text(value: str, limit: int | None = None) -> str:
    """Make text valid as UT or ST (PS3.5 6.1.3): replaces control characters except line breaks and tabs."""
    return _NOT_IN_LONG_TEXT.sub(" ", value).strip()[:limit].rstrip()


def _decoded(source: Dataset, keyword: str) -> str:
    """Return the values of an attribute as one text, separated by backslashes; "" if it cannot be decoded."""
    tag = tag_for_keyword(keyword)
    element = None if tag is None else source.get_item(tag)
    value: object = None if element is None else element.value
    if isinstance(value, bytes):
        found = film_text.decode(value, film_text.declared_by(source), is_name=dictionary_VR(keyword) == "PN")
        value = "" if found is None else found.text
    if isinstance(value, MultiValue | list | tuple):
        value = "\\".join(str(part) for part in value)
    text = "" if value is None else str(value)
    return "" if LOST in text else text


def _name(value: str) -> str:
    """Make text valid as PN: at most three groups of at most five components and 64 characters (PS3.5 6.2.1)."""
    groups = [_NOT_IN_SHORT_TEXT.sub(" ", group).strip(" ") for group in value.split("=")[:3]]
    return "=".join("^".join(group.split("^")[:5])[:64].strip(" ") for group in groups).rstrip("=")


def _date(value: str) -> str:
    days = read_date(value)
    return f"{days.only:%Y%m%d}" if days is not None and days.only is not None else ""


def _time(value: str) -> str:
    digits = value.strip(" \0").replace(":", "")
    return digits if digits.isascii() and _TIME.fullmatch(digits) else ""


def _coded(value: str) -> str:
    code = value.strip(" \0").upper()
    return code if _CODED.fullmatch(code) else ""


def _decimal(value: str) -> str:
    number = value.strip(" \0")
    try:
        is_number = math.isfinite(float(number))
    except ValueError:
        return ""
    return number if is_number and len(number) <= 16 and "_" not in number else ""


_CLEAN: Mapping[str, Callable[[str], str]] = {
    "AS": age_string,
    "CS": _coded,
    "DA": _date,
    "DS": _decimal,
    "PN": _name,
    "SH": lambda value: short_text(value, 16),
    "TM": _time,
}
