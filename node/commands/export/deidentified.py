"""De-identify films, structured reports and presentation states (PS3.15 Annex E).

A film is made anew from what `_KEPT` names, and from its decoded values: private elements, overlay planes, comments of
a coder and bits that are no value never enter it. A report or a presentation state is this program's own, so what it
says is known. On both dicom-anonymizer applies the actions of the Basic Application Confidentiality Profile; the
options are those of `OPTIONS`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from math import isfinite
from typing import Final

import numpy as np
from dicomanonymizer.simpledicomanonymizer import anonymize_dataset, delete, initialize_actions, keep
from pydicom import dcmread
from pydicom.datadict import dictionary_has_tag, dictionary_VR
from pydicom.dataelem import DataElement
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.sr._concepts_dict import concepts
from pydicom.sr._snomed_dict import mapping
from pydicom.uid import UID, ExplicitVRLittleEndian

from node.commands.export.pseudonyms import Pseudonyms
from node.dicom import attributes, identity
from node.dicom.film_header import parse_header
from node.domain import derive_uid
from node.outputs.document import save_bytes
from node.read.decoding import StoredValues

PROFILE: Final = "dicomfields_2026c"
OPTIONS: Final[Mapping[str, str]] = {
    "113100": "Basic Application Confidentiality Profile",
    "113103": "Clean Graphics Option",
    "113104": "Clean Structured Content Option",
    "113107": "Retain Longitudinal Temporal Information Modified Dates Option",
    "113108": "Retain Patient Characteristics Option",
}
"""Profile and options by their codes (CID 7050)."""
REMOVED: Final = "REMOVED"
"""In place of a text that a reader may have written."""

_KEPT: Final = """
    SOPClassUID SOPInstanceUID StudyInstanceUID SeriesInstanceUID Modality ImageType ConversionType
    PresentationIntentType StudyDate SeriesDate AcquisitionDate ContentDate StudyTime StudyID AccessionNumber
    ReferringPhysicianName PatientName PatientID PatientBirthDate PatientSex Manufacturer SeriesNumber InstanceNumber
    BodyPartExamined Laterality ImageLaterality ViewPosition PatientOrientation PositionerType DetectorType
    KVP ExposureTime XRayTubeCurrent Exposure ExposureInuAs DistanceSourceToDetector DistanceSourceToPatient
    ExposureIndex TargetExposureIndex DeviationIndex Sensitivity Grid
    SamplesPerPixel PhotometricInterpretation Rows Columns PixelSpacing ImagerPixelSpacing NominalScannedPixelSpacing
    PixelSpacingCalibrationType PixelAspectRatio PixelIntensityRelationship PixelIntensityRelationshipSign
    RescaleIntercept RescaleSlope RescaleType WindowCenter WindowWidth VOILUTFunction PresentationLUTShape
    LossyImageCompression LossyImageCompressionRatio LossyImageCompressionMethod BurnedInAnnotation
    ShutterShape ShutterLeftVerticalEdge ShutterRightVerticalEdge ShutterUpperHorizontalEdge
    ShutterLowerHorizontalEdge CenterOfCircularShutter RadiusOfCircularShutter VerticesOfThePolygonalShutter
    ShutterPresentationValue
""".split()
_CODES: Final = ("ViewCodeSequence", "AnatomicRegionSequence", "ViewModifierCodeSequence")
_TABLES: Final = ("ModalityLUTSequence", "VOILUTSequence")
_EMPTY: Final = "AcquisitionContextSequence"
_TYPES: Final = frozenset("HU US OD MGML PCT".split())
"""Defined terms of Rescale Type and Modality LUT Type that are kept (PS3.3 C.11.1)."""
_CODED: Final = re.compile(r"[A-Z0-9_ ]{0,16}")
_WORDS: Final = re.compile(r"[\W_]+")
_SHORTEST: Final = 3
_LONG: Final = 6
"""Characters of a measured number that is hardly by chance one of the patient's."""
_UNKNOWN: Final = ("261665006", "SCT", "Unknown")
OLDEST: Final = 90
"""The highest age that leaves; a higher one is given as this one."""
_NAMING: Final = frozenset("LO PN SH SQ".split())
_REQUIRED_TIMES: Final = ("ContentTime", "PresentationCreationTime")
_MIDNIGHT: Final = "000000"
_OUT_OF_OUTPUTS: Final = ("ReferencedRequestSequence",)
_OWN_ITEMS: Final = ("ContentSequence", "GraphicAnnotationSequence", "ReferencedImageSequence")
"""Sequences that stay, with their items cleaned, where the profile would replace all that they hold."""
_OVERLAYS: Final = range(0x6000, 0x6100)

_Action = Callable[[Dataset, tuple[int, int]], None]
_Tag = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """The patient of an exported object: pseudonym, age in completed years if it is known, sex as the film says it."""

    pseudonym: str
    age: int | None
    sex: str


def person_of(header: Dataset, pseudonym: str) -> Person:
    """Return the de-identified patient of a film."""
    found = parse_header(header)
    return Person(pseudonym=pseudonym, age=found.age_years, sex=found.sex if found.sex in ("M", "F", "O") else "")


def film(header: Dataset, values: StoredValues, person: Person, pseudonyms: Pseudonyms) -> bytes:
    """Return a film as a file; header: as `read_header` returns it. Raises any error of pydicom for a broken value."""
    with attributes.quiet():
        made, names = Dataset(), _names_in(header)
        for keyword in _KEPT:
            if keyword in header:
                made.add_new(keyword, dictionary_VR(keyword), _kept(header, keyword, names))
        for keyword in _CODES:
            if keyword in header:
                setattr(made, keyword, [_known(item) for item in attributes.items(header, keyword)])
        for keyword in _TABLES:
            if tables := [_table(item) for item in attributes.items(header, keyword)]:
                setattr(made, keyword, tables)
        _set_values(made, values)
        _clean(made, person, pseudonyms, has_readers_text=False)
        if _EMPTY in header:
            setattr(made, _EMPTY, [])
        return _file(made, person)


def output(content: bytes, person: Person, pseudonyms: Pseudonyms, *, has_readers_text: bool) -> bytes:
    """Return a report or presentation state of this program as a file.

    has_readers_text: whether a reader may have written some of its words; then every text in it is removed
    Raises any error of pydicom.
    """
    with attributes.quiet():
        made = dcmread(BytesIO(content))
        for element in list(made):
            if element.tag.group in _OVERLAYS or element.keyword in _OUT_OF_OUTPUTS:
                del made[element.tag]
        _clean(made, person, pseudonyms, has_readers_text=has_readers_text)
        return _file(made, person)


def _kept(header: Dataset, keyword: str, names: Set[str]) -> list[str] | list[int] | str:
    """Return a value of a film as far as it is valid and names nobody, or ""."""
    found = [str(value).strip(" \0") for value in attributes.values(header, keyword)]
    match dictionary_VR(keyword):
        case "CS":
            is_valid = all(_CODED.fullmatch(value) and names.isdisjoint(_words_of(value)) for value in found)
        case "IS":
            is_valid = all(value.removeprefix("-").isdecimal() and value not in names for value in found)
        case "DS":
            is_valid = all(_is_number(value) and (len(value) < _LONG or value not in names) for value in found)
        case "US" | "SS":
            return list(attributes.wholes(header, keyword))
        case "LO" if keyword == "RescaleType":
            is_valid = _TYPES.issuperset(found)
        case "LO" | "SH" | "PN":
            is_valid = False
        case _:
            is_valid = True
    return found if is_valid else ""


def _is_number(text: str) -> bool:
    try:
        return isfinite(float(text)) and "_" not in text
    except ValueError:
        return False


def _words_of(text: str) -> list[str]:
    return [word for word in _WORDS.split(text.casefold()) if len(word) >= _SHORTEST]


def _names_in(dataset: Dataset) -> set[str]:
    """Return the words of every name in a header, and its short texts that have a digit, such as its numbers."""
    found = set[str]()
    for element in dataset.values():
        vr = dictionary_VR(element.tag) if dictionary_has_tag(element.tag) else element.VR
        for value in attributes.values(dataset, element.tag) if vr in _NAMING else ():
            if isinstance(value, Dataset):
                found |= _names_in(value)
            elif vr == "PN":
                found.update(_words_of(str(value)))
            elif any(map(str.isdigit, str(value))):
                found.add(str(value).strip(" \0").casefold())
    return found


def _known(item: Dataset) -> Dataset:
    """Return a code that the standard knows, in its own words; any other becomes SNOMED's Unknown."""
    value, scheme = attributes.text(item, "CodeValue"), attributes.text(item, "CodingSchemeDesignator")
    if scheme in ("SRT", "SNM3", "99SDM"):
        value, scheme = mapping["SRT"].get(value, value), "SCT"
    meaning = _meanings().get((value, scheme))
    return _code(*((value, scheme, meaning) if meaning is not None else _UNKNOWN))


@cache
def _meanings() -> Mapping[tuple[str, str], str]:
    return {
        (value, scheme): meaning
        for scheme, terms in concepts.items()
        for values in terms.values()
        for value, (meaning, _) in values.items()
    }


def _code(value: str, scheme: str, meaning: str) -> Dataset:
    item = Dataset()
    item.CodeValue, item.CodingSchemeDesignator, item.CodeMeaning = value, scheme, meaning[:64]
    return item


def _table(item: Dataset) -> Dataset:
    """Return a lookup table without its explanation, and with no more bytes than it has entries."""
    made = Dataset()
    made["LUTDescriptor"] = item["LUTDescriptor"]
    data = item["LUTData"]
    if isinstance(data.value, bytes):
        entries = int(item.LUTDescriptor[0]) or 2**16
        data = DataElement(data.tag, data.VR, data.value[: 2 * entries])
    made["LUTData"] = data
    if "ModalityLUTType" in item:
        said = attributes.text(item, "ModalityLUTType")
        made.ModalityLUTType = said if said in _TYPES else "US"
    return made


def _set_values(made: Dataset, values: StoredValues) -> None:
    """Set the pixels of a film to its values alone, uncompressed."""
    is_signed, allocated = values.lowest < 0, 8 if values.bits <= 8 else 16
    cells = (values.indices.astype(np.int32) + values.lowest).astype(f"<{'i' if is_signed else 'u'}{allocated // 8}")
    made.BitsAllocated, made.BitsStored, made.HighBit = allocated, values.bits, values.bits - 1
    made.PixelRepresentation = int(is_signed)
    content = cells.tobytes()
    made.add_new("PixelData", "OB" if allocated == 8 else "OW", content + b"\0" * (len(content) % 2))


def _clean(made: Dataset, person: Person, pseudonyms: Pseudonyms, *, has_readers_text: bool) -> None:
    """Apply the profile to an object, or to an item in it, and to the items in that."""

    def replaced(text: str, vr: str, keyword: str) -> str:
        match vr:
            case "UI":
                return pseudonyms.uid(text)
            case "DA" | "DT":
                return pseudonyms.day(text, person.pseudonym) if keyword != "PatientBirthDate" else ""
            case "TM":
                return _MIDNIGHT if keyword in _REQUIRED_TIMES else ""
            case _:
                return REMOVED if has_readers_text else pseudonyms.text(text)

    def replace(dataset: Dataset, tag: _Tag) -> None:
        element = dataset[tag]
        found = element.value if element.VM > 1 else [element.value]
        made_of = [replaced(str(value), str(element.VR), element.keyword) for value in found]
        element.value = made_of if element.VM > 1 else made_of[0]

    profile, here, own = _profile(), dict[_Tag, _Action](), dict[_Tag, _Action]()
    for element in made:
        tag = (element.tag.group, element.tag.element)
        if tag in profile:
            here[tag] = profile[tag]
        if element.VR == "SQ":
            for item in element.value:
                _clean(item, person, pseudonyms, has_readers_text=has_readers_text)
        if element.is_empty:
            own[tag] = keep
        elif element.VR in ("UI", "DA", "DT", "TM") or element.keyword in ("TextValue", "UnformattedTextValue"):
            own[tag] = replace
        elif element.keyword in _OWN_ITEMS:
            own[tag] = keep
        elif element.keyword in ("LUTExplanation", "WindowCenterWidthExplanation"):
            own[tag] = delete
    anonymize_dataset(made, own, base_rules_gen=lambda: here)


@cache
def _profile() -> Mapping[_Tag, _Action]:
    """Return the profile's action for each attribute; no object has an attribute of a repeating group."""
    return {tag: action for tag, action in initialize_actions(PROFILE).items() if len(tag) == 2}


def _file(made: Dataset, person: Person) -> bytes:
    """Say in an object whose pseudonym it has and how it was de-identified (PS3.3 C.12, C.7.1.1), and encode it."""
    made.PatientName = made.PatientID = person.pseudonym
    made.PatientSex = person.sex
    if person.age is not None:
        made.PatientAge = f"{min(person.age, OLDEST):03d}Y"
    made.PatientIdentityRemoved = "YES"
    made.DeidentificationMethod = f"{identity.PROGRAM} {identity.VERSION}; text in the picture is unchecked"
    made.DeidentificationMethodCodeSequence = [_code(value, "DCM", meaning) for value, meaning in OPTIONS.items()]
    made.LongitudinalTemporalInformationModified = "MODIFIED"
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = made.SOPClassUID, made.SOPInstanceUID
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    meta.ImplementationClassUID = UID(derive_uid("implementation", identity.PROGRAM))
    made.file_meta = meta
    return save_bytes(made)
