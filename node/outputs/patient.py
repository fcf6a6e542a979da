"""Copy the patient and study attributes of the source, with validation.

Every copied value is whole and valid for its value representation, or empty: a part of an identifier may be another
patient's. Text is decoded here from its bytes, not by pydicom's converters: their warnings quote a bad value, which may
be a name or a birth date.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Final

from pydicom.datadict import dictionary_VM, dictionary_VR
from pydicom.dataelem import DataElement, RawDataElement
from pydicom.dataset import Dataset
from pydicom.multival import MultiValue
from pydicom.tag import BaseTag, Tag

from node.character_sets import DIRECTING, LOST, visible
from node.dicom import attributes, film_text
from node.dicom.attributes import OPTIONAL, REQUESTED, REQUIRED
from node.dicom.dates import age_string, read_date
from node.domain import Film, Note

TRAITS: Final = ("PatientBirthDate", "PatientSex")
_IDENTITY: Final = ("PatientID", "IssuerOfPatientID", "PatientName", *TRAITS)

_SEXES: Final = ("M", "F", "O")
_LONGEST: Final = {"SH": 16, "LO": 64, "PN": 64}
"""Maximum characters of a value, of a PN in each group (PS3.5 6.2)."""
_LONGEST_BYTES: Final = 4096
"""Maximum bytes of a value that is decoded: three groups of a PN with escape sequences have 1,000."""
_TEXTS: Final = frozenset("AE AS CS DA DS DT IS LO LT PN SH ST TM UC UI UR UT".split())
_PADDING: Final = " \0"
_NULL: Final = '""'
"""The null value of HL7, which worklists pass on: it names nobody, and makes a receiver delete its value."""

_DIRECTING = re.compile(f"[{DIRECTING}]")
_NOT_IN_SHORT_TEXT = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_TIME = re.compile(r"([01]\d|2[0-3])([0-5]\d([0-5]\d(\.\d{1,6})?)?)?")
_CODED = re.compile(r"[A-Z0-9_ ]{1,16}")


def copy_patient(source: Dataset, target: Dataset) -> None:
    """Copy the patient and study attributes of the source into an object (PS3.3 C.7.1.1, C.7.2.1, C.7.2.2)."""
    for keyword in REQUIRED:
        setattr(target, keyword, read_text(source, keyword))
    if target.PatientSex not in _SEXES:
        target.PatientSex = ""
    for keyword in OPTIONAL:
        if value := read_text(source, keyword):
            setattr(target, keyword, value)


def best_described(sources: Iterable[Dataset]) -> Dataset:
    """Return the most complete source, the first of equals. Raises ValueError if none.

    A source with a patient goes before others, then one with an accession number, then one with more attributes, then
    one with the issuer of its Patient ID.
    """

    def rank(source: Dataset) -> tuple[bool, bool, int, bool]:
        known = sum(bool(read_text(source, keyword)) for keyword in REQUIRED)
        patient, accession = said(source, "PatientID"), said_of_request(source, "AccessionNumber")
        return bool(patient), bool(accession), known, bool(said(source, "IssuerOfPatientID"))

    return max(sources, key=rank)


def described_by(film: Dataset, films: Iterable[Dataset]) -> Dataset:
    """Return the header that describes the patient of a film: its own, or the best of others if it names no patient."""
    return film if said(film, "PatientID") else best_described(films)


def read_text(source: Dataset, keyword: str) -> str:
    """Read an attribute as valid text of its value representation, whole, or "" (PS3.5 6.2).

    Returns the first value of an attribute that may have several.
    """
    representation, value = dictionary_VR(keyword), whole_text(source, keyword)
    return "" if _length(value, representation) > _LONGEST.get(representation, len(value)) else value


def whole_text(source: Dataset, keyword: str) -> str:
    """Read an attribute like `read_text`, without a limit of length: other standards allow more."""
    values = _decoded(source, keyword).split("\\")
    if len(values) > 1 and dictionary_VM(keyword) == "1":  # it is unknown which of them is meant
        return ""
    return _CLEAN.get(dictionary_VR(keyword), _text)(values[0])


def said(source: Dataset, keyword: str) -> str:
    """Return all values of an attribute as text, valid or not, for comparison; "" if it is empty."""
    whole = "\\".join(value.strip(_PADDING) for value in _decoded(source, keyword).split("\\"))
    return whole if whole.strip("\\") and whole != _NULL else ""


def comparable(source: Dataset, keyword: str) -> str:
    """Return an attribute of the patient normalized for comparison; "" if it has no valid value.

    Of a name, the first group in lower case: films seldom agree on the case.
    """
    if keyword == "PatientName":
        return said(source, keyword).split("=")[0].rstrip("^ ").casefold()
    value = read_text(source, keyword) if keyword in TRAITS else said(source, keyword)
    return "" if keyword == "PatientSex" and value not in _SEXES else value


def name_different(one: Dataset, other: Dataset) -> bool:
    """Whether two films differ in name, number, issuer, birth date or sex of the patient, where both state it."""
    pairs = ((comparable(one, keyword), comparable(other, keyword)) for keyword in _IDENTITY)
    return any(first and second and first != second for first, second in pairs)


def said_of_request(source: Dataset, keyword: str) -> str:
    """Return an attribute of the request like `said`: of the film itself, else of its request items."""
    items = attributes.items(source, "RequestAttributesSequence")
    of_items = dict.fromkeys(filter(None, (said(item, keyword) for item in items)))
    return said(source, keyword) or "\\".join(of_items)


def whole_of_request(source: Dataset, keyword: str) -> str:
    """Read an attribute of the request like `whole_text`: of the film itself, else of its request items.

    "" if that is not valid, or if the items do not agree: no other value replaces it.
    """
    whole = said_of_request(source, keyword)
    holders = (source, *attributes.items(source, "RequestAttributesSequence"))
    return next((whole_text(holder, keyword) for holder in holders if whole and said(holder, keyword) == whole), "")


def leaves_out(source: Dataset) -> bool:
    """Whether objects lack an identifier, a name or a text of the source, because it is not valid."""
    items = attributes.items(source, "RequestAttributesSequence")
    copied = [(source, keyword) for keyword in (*REQUIRED, *OPTIONAL, *REQUESTED)]
    copied += [(item, keyword) for item in items for keyword in REQUESTED]
    texts = [(holder, keyword) for holder, keyword in copied if dictionary_VR(keyword) in _LONGEST]
    return any(said(holder, keyword) and not read_text(holder, keyword) for holder, keyword in texts) or any(
        Tag(keyword) in holder and _is_no_text(holder, Tag(keyword)) for holder, keyword in copied
    )


def noted(film: Film, header: Dataset) -> Film:
    """Return the answer to a film, with a note if objects lack attributes of patient or request that its header has."""
    others = tuple(note for note in film.notes if note is not Note.IDENTIFIER_LEFT_OUT)
    return replace(film, notes=(*others, Note.IDENTIFIER_LEFT_OUT) if leaves_out(header) else others)


def made_at(source: Dataset) -> datetime | None:
    """Return study date and time, in no zone; noon if only the date is known, None if it is not."""
    date, time = read_text(source, "StudyDate"), read_text(source, "StudyTime").split(".")[0]
    return datetime.strptime(f"{date}{time or '12':0<6}", "%Y%m%d%H%M%S") if date else None


def short_text(value: str, limit: int = 64) -> str:
    """Make a text of ours valid as LO (PS3.5 6.2): no control characters, no backslash, at most `limit` characters.

    What nobody sees is removed (`visible`).

    Never for an identifier: it cuts, and merges blanks.
    """
    return " ".join(_NOT_IN_SHORT_TEXT.sub(" ", visible(value)).replace("\\", "/").split())[:limit].strip()


def long_text(value: str, limit: int | None = None) -> str:
    """Make text valid as UT or ST (PS3.5 6.1.3), as `short_text`; line breaks and tabs stay."""
    return visible(value).strip()[:limit].rstrip()


def _decoded(source: Dataset, keyword: str) -> str:
    """Return the values of an attribute as one text, separated by backslashes; "" if it cannot be decoded."""
    tag = Tag(keyword)
    if tag not in source or _is_no_text(source, tag):
        return ""
    element = attributes.raw(source, tag, longest=_LONGEST_BYTES)
    value: object = attributes.values(source, tag) if element is None else element.value
    if isinstance(value, tuple) and len(value) == 1:
        value = value[0]
    if isinstance(value, bytes):
        found = film_text.decode(value, film_text.declared_by(source), is_name=dictionary_VR(keyword) == "PN")
        value = "" if found is None else found.text
    if isinstance(value, MultiValue | list | tuple):
        value = "\\".join(str(part) for part in value)
    text = "" if value is None else str(value)
    return "" if LOST in text else text


def _is_no_text(source: Dataset, tag: BaseTag) -> bool:
    """Whether an attribute is no text, or far longer than any attribute here can be (PS3.5 6.2)."""
    element: object = source.get_item(tag, keep_deferred=True)
    if isinstance(element, RawDataElement):
        is_text = element.VR in (None, "UN") or element.VR in _TEXTS
        return element.length > (_LONGEST_BYTES if is_text else 0)
    if not isinstance(element, DataElement) or element.is_empty:
        return False
    return element.VR not in _TEXTS or len(str(element.value)) > _LONGEST_BYTES


def _text(value: str) -> str:
    """Return a text without its padding, or "" if LO and SH cannot hold one of its characters (PS3.5 6.2)."""
    text = value.strip(_PADDING)
    return "" if text == _NULL or _NOT_IN_SHORT_TEXT.search(text) or _DIRECTING.search(text) else text


def _name(value: str) -> str:
    """Return a name without its padding, or "" if it is no PN: three groups of five components (PS3.5 6.2.1)."""
    groups = [group.strip(_PADDING) for group in _text(value).rstrip("=").split("=")]
    is_name = len(groups) <= 3 and not any("".join(group.split("^")[5:]).strip() for group in groups)
    return "=".join("^".join(group.split("^")[:5]).strip(" ") for group in groups).rstrip("=") if is_name else ""


def _length(value: str, representation: str) -> int:
    return max(map(len, value.split("="))) if representation == "PN" else len(value)


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
    "TM": _time,
}
