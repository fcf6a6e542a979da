"""Show attributes of a film to an administrator without anything that could identify a patient.

Valid code strings (PS3.5 6.2, CS) and numbers are shown as they are. Of free text, and of an invalid code string, only
the words that the routing rules know are shown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from pydicom.config import IGNORE
from pydicom.datadict import dictionary_VR
from pydicom.uid import UID

from node.dicom.film_header import ConceptCode, FilmHeader, PixelFormat
from node.domain import is_uid
from node.read import routing

ABSENT: Final = "absent"

_CODE_STRING: Final = re.compile(r"[A-Z0-9 _]{1,16}(\\[A-Z0-9 _]{0,16})*")
_CODE: Final = re.compile(r"[A-Z0-9.-]{1,16}")
_SCHEMES: Final = frozenset(("DCM", "SCT", "SNM3", "SRT"))

_TEXTS: Final[Mapping[str, Callable[[FilmHeader], str]]] = {
    "SeriesInstanceUID": lambda header: header.series_instance_uid,
    "SOPClassUID": lambda header: header.sop_class_uid,
    "Modality": lambda header: header.modality,
    "PatientSpeciesDescription": lambda header: header.species,
    "ConversionType": lambda header: header.conversion_type,
    "PresentationIntentType": lambda header: header.presentation_intent_type,
    "BodyPartExamined": lambda header: header.body_part_examined,
    "ViewPosition": lambda header: header.view_position,
    "PatientOrientation": lambda header: "\\".join(direction.strip() for direction in header.patient_orientation),
    "StudyDescription": lambda header: header.study_description,
    "SeriesDescription": lambda header: header.series_description,
    "ProtocolName": lambda header: header.protocol_name,
    "PhotometricInterpretation": lambda header: header.pixels.photometric_interpretation,
}
_NUMBERS: Final[Mapping[str, Callable[[PixelFormat], int | None]]] = {
    "Rows": lambda pixels: pixels.rows,
    "Columns": lambda pixels: pixels.columns,
    "NumberOfFrames": lambda pixels: pixels.number_of_frames,
    "SamplesPerPixel": lambda pixels: pixels.samples_per_pixel,
}
_CODES: Final[Mapping[str, Callable[[FilmHeader], tuple[ConceptCode, ...]]]] = {
    "PatientSpeciesCodeSequence": lambda header: header.species_codes,
    "AnatomicRegionSequence": lambda header: header.anatomic_region_codes,
    "ViewCodeSequence": lambda header: header.view_codes,
}
"""Maps keywords of attributes to fields of `FilmHeader`, like `_TEXTS` and `_NUMBERS`. The values of
ContributingEquipmentSequence and PixelData are not shown."""


def shown(header: FilmHeader, keyword: str) -> str:
    """Return the value of an attribute as it may be shown; `absent` and `empty` are different.

    keyword: an attribute that a routing rule reads, or that `explain` lists
    """
    if keyword not in header.present:
        return ABSENT
    vr = dictionary_VR(keyword)
    if vr == "SQ":
        return _codes(_CODES[keyword](header)) if keyword in _CODES else "present"
    if vr in ("US", "IS"):
        number = _NUMBERS[keyword](header.pixels)
        return "no number" if number is None else str(number)
    if keyword not in _TEXTS:
        return "present"
    value = _TEXTS[keyword](header)
    if not value:
        return "empty"
    if vr == "UI":
        return uid_name(value)
    if vr == "CS" and _CODE_STRING.fullmatch(value):
        return value
    words = routing.words_that_count(value)
    return f"text with {', '.join(words)}" if words else "text without a word that counts"


def uid_name(value: str) -> str:
    """Return the registered name of a UID (PS3.6 A), else the UID itself."""
    return UID(value, validation_mode=IGNORE).name if is_uid(value) else "no valid UID"


def _codes(codes: tuple[ConceptCode, ...]) -> str:
    """Return the codes of known schemes; `present` if there are none."""
    known = [f"{value} {scheme}" for value, scheme in codes if scheme in _SCHEMES and _CODE.fullmatch(value)]
    return ", ".join(known) or "present"
