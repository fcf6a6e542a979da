"""Decide which received objects are read, which are answered with "not processed", and which are left alone.

A pure function: `choose(header, rules)` takes a `FilmHeader` and the rules of a model, and returns a `Decision`.

`RULES`, at the end of this file, is the table: the first rule that applies decides, and `node explain` shows what each
rule found. A missing result must not be taken for a normal film, so every image that is not read gets an answer with a
reason; objects that are not images get no answer. An object to which no rule applies is read, with the note
view_unknown unless its header names the view and the body part. A model may add a rule about age (`rules_for`).

Body part. BodyPartExamined decides if it has a word that is known (`header_words.toml`), else the anatomic region's
code, else the descriptions if they name either the chest or other parts, but not both. If nothing known names a part,
the film is read, unless its picture shows that it is no chest (`view_check.confirm`). Chest with abdomen (a babygram)
and ribs are not chest films: the lungs fill only a part of the picture, or the exposure is for bones, and the network
was trained on neither.

View. One attribute that says lateral or oblique decides, whatever the others say: a lateral film read as frontal gives
meaningless boxes, while a frontal film that is not read gives a visible answer. Oblique films share the reason
`lateral`. Decubitus films (LLD, RLD) are frontal projections of a patient who lies on one side. They are read, with
view_unknown, because fluid and air lie in other places than in the training films.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Final, NamedTuple

from pydicom.config import IGNORE
from pydicom.sr.codedict import codes
from pydicom.sr.coding import Code
from pydicom.uid import (
    UID,
    ComputedRadiographyImageStorage,
    DigitalXRayImageStorageForPresentation,
    DigitalXRayImageStorageForProcessing,
    MultiFrameGrayscaleByteSecondaryCaptureImageStorage,
    MultiFrameGrayscaleWordSecondaryCaptureImageStorage,
    MultiFrameTrueColorSecondaryCaptureImageStorage,
    SecondaryCaptureImageStorage,
)

from node.dicom.dates import DATES
from node.dicom.film_header import FilmHeader
from node.domain import Note, Reason
from node.read import header_words, pixel_format
from node.read.header_words import vocabulary, words
from node.read.pixel_format import Objection


class Action(StrEnum):
    """The node's treatment of a received object."""

    READ = "read"
    ANSWER = "answer"
    LEAVE = "leave"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The treatment of one object and its reason; None for an object that is read."""

    action: Action
    reason: Reason | None = None
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One line of the table.

    about: describes the objects to which the rule applies
    action: the treatment of such an object
    looks_at: keywords of the attributes that the rule reads
    find: returns the reason and the attribute that gave it if the rule applies to a header, else None
    """

    about: str
    action: Action
    looks_at: tuple[str, ...]
    find: Callable[[FilmHeader], Objection | None]


_RADIOGRAPHS = frozenset(
    (
        ComputedRadiographyImageStorage,
        DigitalXRayImageStorageForPresentation,
        DigitalXRayImageStorageForProcessing,
    )
)
_CAPTURES = frozenset(
    (
        SecondaryCaptureImageStorage,
        MultiFrameGrayscaleByteSecondaryCaptureImageStorage,
        MultiFrameGrayscaleWordSecondaryCaptureImageStorage,
        MultiFrameTrueColorSecondaryCaptureImageStorage,
    )
)
_MODALITIES = frozenset(("CR", "DX", "RG"))
_NOT_PHOTOGRAPHED = frozenset(("SD", "DRW", "SYN"))  # ConversionType (PS3.3 C.8.6.1): document, drawing, synthetic

_DESCRIPTIONS = ("SeriesDescription", "ProtocolName", "StudyDescription")

_CHEST_CODES = (codes.SCT.Chest, codes.SCT.ThoracicStructure, codes.SCT.Lung)
_SLANTED_CODES = (
    codes.SCT.LateralProjection,
    codes.SCT.LeftLateral,
    codes.SCT.RightLateral,
    codes.SCT.LateralMedial,
    codes.SCT.MedioLateralProjection,
    codes.SCT.Sagittal,
    codes.SCT.ObliqueProjection,
    codes.SCT.LeftOblique,
    codes.SCT.RightOblique,
    codes.SCT.LeftAnteriorOblique,
    codes.SCT.LeftPosteriorOblique,
    codes.SCT.RightAnteriorOblique,
    codes.SCT.RightPosteriorOblique,
    codes.SCT.LateralOblique,
    codes.SCT.MedialOblique,
    codes.SCT.AnteroPosteriorOblique,
    codes.SCT.PosteroAnteriorOblique,
    codes.SCT.FrontalOblique,
)
_HUMAN_CODES = (
    codes.SCT.HomoSapiens,
    codes.SCT.HomoSapiensLivingOrganism,
    *(Code("L-85B00", scheme, "homo sapiens") for scheme in ("SRT", "SNM3", "99SDM")),
)
_SNOMED = frozenset(code.scheme_designator for code in _HUMAN_CODES)
_NO_PLAIN_FILM = frozenset(("BONE", "SUBTRACTION", "TOMO", "LOCALIZER"))
"""Image Types, in the third or fourth value, of images that only look like a plain film."""
_ADULT_FIELD_MM = 240.0
"""A field that is narrower holds no adult's chest: both lungs of an adult are 24 cm wide or more."""
_FRONTAL_CODES = (codes.SCT.Frontal, codes.SCT.PosteroAnterior, codes.SCT.AnteroPosterior)


def choose(header: FilmHeader, rules: Sequence[Rule]) -> Decision:
    """Choose the treatment of one received object by its header; rules: see `rules_for`."""
    for rule, objection in apply_rules(header, rules):
        if objection is not None:
            return Decision(action=rule.action, reason=objection.reason)
    asks_age = any("PatientAge" in rule.looks_at for rule in rules)
    notes = {
        Note.VIEW_UNKNOWN: not _is_named(header),
        Note.TWO_VIEWS: names_frontal(header) and _is_slanted(header.series_description),
        Note.IMAGE_TYPE: any(not _NO_PLAIN_FILM.isdisjoint(words(value)) for value in header.image_type[2:4]),
        Note.AGE_UNKNOWN: asks_age and header.age_years is None,
        Note.MAYBE_CHILD: asks_age and header.age_years is None and _is_narrow(header),
        Note.AGE_WITHOUT_UNIT: asks_age and not header.age_has_unit,
    }
    return Decision(action=Action.READ, notes=tuple(note for note, applies in notes.items() if applies))


def rules_for(ages: Container[int] | None) -> tuple[Rule, ...]:
    """Return the rules for a model; ages: in completed years, that it is for; None for any, or for an unknown model."""
    if ages is None:
        return RULES
    return (
        *RULES,
        Rule(
            about="of a patient of another age than the model is for",
            action=Action.ANSWER,
            looks_at=("PatientAge", "PatientBirthDate", *DATES),
            find=partial(_other_age, ages),
        ),
    )


def apply_rules(header: FilmHeader, rules: Sequence[Rule]) -> Iterator[tuple[Rule, Objection | None]]:
    """Try the rules in order until a rule applies, and yield each with what it found."""
    for rule in rules:
        objection = rule.find(header)
        yield rule, objection
        if objection is not None:
            return


def words_that_count(value: str) -> tuple[str, ...]:
    """Return the words of a text that the rules know, sorted and folded; the rest of the text is left out."""
    return tuple(sorted(words(value) & vocabulary().known))


def _own_object(header: FilmHeader) -> Objection | None:
    return Objection(Reason.OWN_OBJECT, "ContributingEquipmentSequence") if header.is_own else None


def _no_image(header: FilmHeader) -> Objection | None:
    """Recognize images by the registered name of their SOP class (PS3.6 A), or by Rows if the class is private."""
    name = UID(header.sop_class_uid, validation_mode=IGNORE).name
    if "Storage" in name:
        return None if "Image Storage" in name else Objection(Reason.MODALITY, "SOPClassUID")
    return Objection(Reason.MODALITY, "Rows") if header.pixels.rows is None else None


def _no_radiograph(header: FilmHeader) -> Objection | None:
    """Object to everything but a radiograph: a CR or DX object, or a secondary capture of a radiograph.

    Mammography and dental units also make CR objects, so their modality must be that of a radiograph, or empty. A
    secondary capture may show anything: its modality must be that of a radiograph, or empty if a chest is named.
    """
    storage_class = header.sop_class_uid
    modality = header.modality.upper()
    is_capture = storage_class in _CAPTURES
    if not is_capture and storage_class not in _RADIOGRAPHS:
        return Objection(Reason.MODALITY, "SOPClassUID")
    if is_capture and header.conversion_type.upper() in _NOT_PHOTOGRAPHED:
        return Objection(Reason.MODALITY, "ConversionType")
    if modality in _MODALITIES or (not modality and (not is_capture or _part(header).is_chest is True)):
        return None
    return Objection(Reason.MODALITY, "Modality")


def _animal(header: FilmHeader) -> Objection | None:
    """Object to a species that is not the human one (PS3.3 C.7.1.1, CID 7454); a code of SNOMED goes before words."""
    known = (code for code in header.species_codes if code.value and code.scheme_designator in _SNOMED)
    coded = [code for code in known if code != codes.SCT.Unknown]
    if coded:
        is_human = _any_code(coded, _HUMAN_CODES)
        return None if is_human else Objection(Reason.SPECIES, "PatientSpeciesCodeSequence")
    is_animal = header_words.names_animal(words(header.species))
    return Objection(Reason.SPECIES, "PatientSpeciesDescription") if is_animal else None


def _is_narrow(header: FilmHeader) -> bool:
    """Return whether the field of a film is too narrow for an adult's chest; False if its size is not known."""
    return header.field_width is not None and header.field_width < _ADULT_FIELD_MM


def _raw(header: FilmHeader) -> Objection | None:
    """Recognize raw detector values, which are not meant for display (PS3.3 C.8.11.2)."""
    if header.sop_class_uid == DigitalXRayImageStorageForProcessing:
        return Objection(Reason.FOR_PROCESSING, "SOPClassUID")
    if header.presentation_intent_type.upper() == "FOR PROCESSING":
        return Objection(Reason.FOR_PROCESSING, "PresentationIntentType")
    return None


def _other_part(header: FilmHeader) -> Objection | None:
    part = _part(header)
    return Objection(Reason.NOT_CHEST, part.keyword) if part.is_chest is False else None


class _Part(NamedTuple):
    """Whether a film shows a chest, or None if no attribute says so; and the attribute that decides."""

    is_chest: bool | None
    keyword: str = ""


def _part(header: FilmHeader) -> _Part:
    examined = words(header.body_part_examined)
    others = header_words.names_other_part(examined) or not vocabulary().other_parts_as_code.isdisjoint(examined)
    if others or header_words.names_chest(examined):
        return _Part(not others, "BodyPartExamined")
    if _any_code(header.anatomic_region_codes, _CHEST_CODES):
        return _Part(True, "AnatomicRegionSequence")
    if _any_code(header.anatomic_region_codes, tuple(codes.cid4.concepts.values())):
        return _Part(False, "AnatomicRegionSequence")
    described = {keyword: words(text) for keyword, text in _descriptions(header).items()}
    chest = [keyword for keyword, found in described.items() if header_words.names_chest(found)]
    other = [keyword for keyword, found in described.items() if header_words.names_other_part(found)]
    if bool(chest) == bool(other):
        return _Part(None)
    return _Part(bool(chest), (chest or other)[0])


def shows_chest(header: FilmHeader) -> bool:
    """Return whether an attribute says that the film shows a chest."""
    return _part(header).is_chest is True


def _slanted(header: FilmHeader) -> Objection | None:
    keyword = says_slanted(header)
    return None if keyword is None else Objection(Reason.LATERAL, keyword)


def says_slanted(header: FilmHeader) -> str | None:
    """Return the keyword of the attribute that says that a film is lateral or oblique; None if no attribute does."""
    views, part = words(header.view_position), words(header.body_part_examined)
    if not vocabulary().slanted_terms.isdisjoint(views) or header_words.names_slant(views):
        return "ViewPosition"
    if _any_code(header.view_codes, _SLANTED_CODES):
        return "ViewCodeSequence"
    # Rows or columns that run from front to back, which no frontal film has (PS3.3 C.7.6.1.1.1).
    if any(direction[:1] in ("A", "P") for direction in header.patient_orientation):
        return "PatientOrientation"
    if header_words.names_slant(part):
        return "BodyPartExamined"
    return None if names_frontal(header) else _described_as_slanted(header)


def _described_as_slanted(header: FilmHeader) -> str | None:
    """Return the keyword of the description that names a lateral or oblique view alone; None if none does.

    People type descriptions and copy them between series ("CHEST PA AND LAT"): used last, and only if unambiguous.
    """
    for keyword, text in (("SeriesDescription", header.series_description), ("ProtocolName", header.protocol_name)):
        if _is_slanted(text):
            return keyword
    return None


def _is_slanted(text: str) -> bool:
    """Return whether a description names a lateral or oblique view, and no frontal one."""
    found = words(text)
    return header_words.names_slant(found) and not header_words.names_frontal(found)


def _is_named(header: FilmHeader) -> bool:
    """Return whether the header names both a frontal view, of a patient who does not lie on one side, and the chest."""
    part = words(header.body_part_examined)
    has_part = header_words.names_chest(part) or _any_code(header.anatomic_region_codes, _CHEST_CODES)
    lies = words(header.view_position) | part
    return has_part and names_frontal(header) and not header_words.names_decubitus(lies)


def names_frontal(header: FilmHeader) -> bool:
    """Return whether the header names a frontal view; a decubitus view is one."""
    views = words(header.view_position) | words(header.body_part_examined)
    is_said = header_words.names_frontal(views) or header_words.names_decubitus(views)
    return is_said or _any_code(header.view_codes, _FRONTAL_CODES)


def _any_code(found: Collection[Code], wanted: Collection[Code]) -> bool:
    """Return whether any code is wanted; older SNOMED identifiers equal their successors (PS3.16 8.1.1)."""
    return any(code in wanted for code in found)


def _descriptions(header: FilmHeader) -> dict[str, str]:
    """Return the descriptions, which people type, by keyword, in the order in which they are used."""
    texts = (header.series_description, header.protocol_name, header.study_description)
    return dict(zip(_DESCRIPTIONS, texts, strict=True))


def _other_age(ages: Container[int], header: FilmHeader) -> Objection | None:
    age = header.age_years
    if age is None or age in ages:
        return None
    return Objection(Reason.AGE, "PatientAge" if header.has_age else "PatientBirthDate")


def _pixels(header: FilmHeader) -> Objection | None:
    return pixel_format.objection(header.pixels)


RULES: Final = (
    Rule(
        about="written by this program",
        action=Action.LEAVE,
        looks_at=("Manufacturer", "ManufacturerModelName", "ContributingEquipmentSequence"),
        find=_own_object,
    ),
    Rule(
        about="no image (but a report, presentation state, PDF, waveform, segmentation ...)",
        action=Action.LEAVE,
        looks_at=("SOPClassUID", "Rows"),
        find=_no_image,
    ),
    Rule(
        about="of another modality or storage class, or a drawing or scanned document",
        action=Action.ANSWER,
        looks_at=("SOPClassUID", "Modality", "ConversionType"),
        find=_no_radiograph,
    ),
    Rule(
        about="of an animal",
        action=Action.ANSWER,
        looks_at=("PatientSpeciesCodeSequence", "PatientSpeciesDescription"),
        find=_animal,
    ),
    Rule(
        about="raw detector values",
        action=Action.ANSWER,
        looks_at=("SOPClassUID", "PresentationIntentType"),
        find=_raw,
    ),
    Rule(
        about="of a body part that is not the chest",
        action=Action.ANSWER,
        looks_at=("BodyPartExamined", "AnatomicRegionSequence", *_DESCRIPTIONS),
        find=_other_part,
    ),
    Rule(
        about="a lateral or oblique view",
        action=Action.ANSWER,
        looks_at=(
            "ViewPosition",
            "ViewCodeSequence",
            "PatientOrientation",
            "BodyPartExamined",
            "SeriesDescription",
            "ProtocolName",
        ),
        find=_slanted,
    ),
    Rule(
        about="without pixels, of several frames, in color, too small, or of an absurd size",
        action=Action.ANSWER,
        looks_at=(
            "PixelData",
            "Rows",
            "Columns",
            "NumberOfFrames",
            "SamplesPerPixel",
            "PhotometricInterpretation",
        ),
        find=_pixels,
    ),
)
"""Why a received object is not read; the first rule that applies decides."""
