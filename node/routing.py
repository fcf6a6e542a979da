"""Which received objects are read, which get a visible "not processed", and which are left alone; pure.

The first line that fits decides. A missing result must never read as normal, so every image that is not read gets an
answer with a reason; objects that are no images get none.

    | # | what the header says                                                       | action | reason         |
    |---|----------------------------------------------------------------------------|--------|----------------|
    | 1 | written by this program                                                    | leave  | own_object     |
    | 2 | no image: report, presentation state, PDF, waveform, segmentation ...       | leave  | modality       |
    | 3 | another modality or storage class; a drawing or scanned document           | answer | modality       |
    | 4 | raw detector values: DX For Processing, or its presentation intent          | answer | for_processing |
    | 5 | a body part that is not the chest                                          | answer | not_chest      |
    | 6 | a lateral or oblique view                                                  | answer | lateral        |
    | 7 | no pixels; several frames; color; too small; absurd size (`pixel_format`)   | answer | that reason    |
    | 8 | everything else; with note view_unknown unless view and body part are named | read   |                |

Body part. BodyPartExamined decides, else the anatomic region's code, else the descriptions when they name exactly one
kind of part. Chest with abdomen (a babygram) and ribs are not chest films: the lungs are a corner of the picture, or
the exposure is one for bones, and the network learned neither.

View. One attribute that says lateral or oblique is enough, whatever the others say: a lateral film read as a frontal
one gives boxes that mean nothing, a frontal film that is not read gives a visible answer. Obliques have no reason of
their own and share `lateral`. Decubitus films (LLD, RLD) are frontal projections of a patient who lies on one side;
they are read, with view_unknown, since fluid and air lie elsewhere than the network learned.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from pydicom.config import IGNORE
from pydicom.dataset import Dataset
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

from node import attributes, identity, pixel_format
from node.domain import Note, Reason


class Action(StrEnum):
    """What happens to a received object."""

    READ = "read"
    ANSWER = "answer"
    LEAVE = "leave"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What happens to one object and why; read has no reason, the others have one."""

    action: Action
    reason: Reason | None = None
    notes: tuple[Note, ...] = ()


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

_CHEST = re.compile(r"(CHEST|THORAX|TORAX|TORACE|LUNGS?|LUNGE|POUMONS?|CXR)(PA|AP|LAT|LATERAL)?")
_OTHER_PARTS = re.compile(
    r"ABDOMEN|ABD|ABDOMINAL|BABYGRAM|PELVIS|PELVIC|HIP|HIPS|KNEE|KNEES|ANKLE|FOOT|FEET|TOE|LEG|LEGS|FEMUR|TIBIA|FIBULA"
    r"|THIGH|HEEL|CALCANEUS|HAND|HANDS|WRIST|FINGER|THUMB|ELBOW|FOREARM|ARM|HUMERUS|SHOULDER|SHOULDERS|SCAPULA|CLAVICLE"
    r"|STERNUM|RIB|RIBS|SPINE|SPINAL|CSPINE|TSPINE|LSPINE|CERVICAL|LUMBAR|SACRUM|COCCYX|NECK|SKULL|HEAD|FACE|FACIAL|SINUS"
    r"|SINUSES|JAW|MANDIBLE|TEETH|DENTAL|ORBIT|BREAST|EXTREMITY|WHOLEBODY|SKELETON"
)
_NO_PART = frozenset(("", "UNKNOWN", "UNDEFINED", "OTHER", "NONE", "UNSPECIFIED", "NA"))

_FRONTAL_WORDS = frozenset(("AP", "PA", "FRONTAL", "POSTEROANTERIOR", "ANTEROPOSTERIOR"))
_DECUBITUS = re.compile(r"[RL]LD|DECUB\w*")
_SLANTED = re.compile(r"[RL]?(LAT|LATERALE?|LATERALIS)|LATERO\w*|PROFIL|SEITLICH|OBL|OBLIQUE?|SWIMMERS?")
_SLANTED_TERMS = re.compile(r"LL|RL|LATL|LATR|ML|LM|LLO|RLO|LAO|RAO|LPO|RPO")  # too short to be words of a description

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
_FRONTAL_CODES = (codes.SCT.Frontal, codes.SCT.PosteroAnterior, codes.SCT.AnteroPosterior)


def choose(dataset: Dataset) -> Decision:
    """Decide about one received object by its header, as `imaging.read_header` returns it (table above)."""
    with attributes.quiet():
        is_own = identity.is_own(dataset)
    if is_own:
        return Decision(action=Action.LEAVE, reason=Reason.OWN_OBJECT)
    if not _is_image(dataset):
        return Decision(action=Action.LEAVE, reason=Reason.MODALITY)
    if not _is_radiograph(dataset):
        return Decision(action=Action.ANSWER, reason=Reason.MODALITY)
    if _is_raw(dataset):
        return Decision(action=Action.ANSWER, reason=Reason.FOR_PROCESSING)
    if _is_chest(dataset) is False:
        return Decision(action=Action.ANSWER, reason=Reason.NOT_CHEST)
    if _is_slanted(dataset):
        return Decision(action=Action.ANSWER, reason=Reason.LATERAL)
    if (reason := pixel_format.reason_against(dataset)) is not None:
        return Decision(action=Action.ANSWER, reason=reason)
    return Decision(action=Action.READ, notes=() if _is_named(dataset) else (Note.VIEW_UNKNOWN,))


def _is_image(dataset: Dataset) -> bool:
    """Say whether an object is an image: by its class's registered name (PS3.6 A), by its size where it is private."""
    name = UID(attributes.text(dataset, "SOPClassUID"), validation_mode=IGNORE).name
    if "Storage" in name:
        return "Image Storage" in name
    return attributes.whole(dataset, "Rows") is not None


def _is_radiograph(dataset: Dataset) -> bool:
    """Say whether an image is a plain film: a CR or DX object, or a capture of one.

    CR objects are also made by mammography and dental units, so their modality must fit or be empty. A capture may be
    anything: it must claim to be a film, or at least to show a chest.
    """
    storage_class = attributes.text(dataset, "SOPClassUID")
    modality = attributes.text(dataset, "Modality").upper()
    if storage_class in _RADIOGRAPHS:
        return modality in _MODALITIES or not modality
    if storage_class not in _CAPTURES or attributes.text(dataset, "ConversionType").upper() in _NOT_PHOTOGRAPHED:
        return False
    return modality in _MODALITIES or (not modality and _is_chest(dataset) is True)


def _is_raw(dataset: Dataset) -> bool:
    """Say whether the gray values are a detector's, which nobody is meant to look at (PS3.3 C.8.11.2)."""
    return (
        attributes.text(dataset, "SOPClassUID") == DigitalXRayImageStorageForProcessing
        or attributes.text(dataset, "PresentationIntentType").upper() == "FOR PROCESSING"
    )


def _is_chest(dataset: Dataset) -> bool | None:
    """Say whether a film shows a chest; None when nothing tells."""
    words = _words(attributes.text(dataset, "BodyPartExamined"))
    if not words <= _NO_PART:
        return _names_chest(words) and not _any(_OTHER_PARTS, words)
    regions = attributes.items(dataset, "AnatomicRegionSequence")
    if regions:
        return any(_code(region) in _CHEST_CODES for region in regions)
    keywords = ("SeriesDescription", "ProtocolName", "StudyDescription")
    words = frozenset().union(*(_words(attributes.text(dataset, keyword)) for keyword in keywords))
    if _names_chest(words) == _any(_OTHER_PARTS, words):
        return None
    return _names_chest(words)


def _is_slanted(dataset: Dataset) -> bool:
    """Say whether a film is a lateral or an oblique one, by any attribute that tells."""
    views = _words(attributes.text(dataset, "ViewPosition"))
    if _any(_SLANTED_TERMS, views) or _speaks_of_slant(views):
        return True
    if any(_code(view) in _SLANTED_CODES for view in attributes.items(dataset, "ViewCodeSequence")):
        return True
    # Rows or columns that run from front to back: a frontal film has neither (PS3.3 C.7.6.1.1.1).
    if any(str(direction)[:1] in ("A", "P") for direction in attributes.values(dataset, "PatientOrientation")):
        return True
    if _speaks_of_slant(_words(attributes.text(dataset, "BodyPartExamined"))):
        return True
    if views & _FRONTAL_WORDS:
        return False
    # Descriptions are typed by people and copied between series ("CHEST PA AND LAT"): asked last, and only a clear one.
    return any(
        _speaks_of_slant(words) and not words & _FRONTAL_WORDS
        for words in (_words(attributes.text(dataset, keyword)) for keyword in ("SeriesDescription", "ProtocolName"))
    )


def _is_named(dataset: Dataset) -> bool:
    """Say whether the header names both a frontal view and the chest."""
    part = _words(attributes.text(dataset, "BodyPartExamined"))
    regions = attributes.items(dataset, "AnatomicRegionSequence")
    has_part = _names_chest(part) or any(_code(region) in _CHEST_CODES for region in regions)
    views = _words(attributes.text(dataset, "ViewPosition")) | part
    view_codes = [_code(view) for view in attributes.items(dataset, "ViewCodeSequence")]
    is_frontal = bool(views & _FRONTAL_WORDS) or any(code in _FRONTAL_CODES for code in view_codes)
    return has_part and is_frontal and not _any(_DECUBITUS, views)


def _speaks_of_slant(words: frozenset[str]) -> bool:
    """Say whether words describe a lateral or oblique view; a lateral decubitus is a frontal one."""
    return _any(_SLANTED, words) and not _any(_DECUBITUS, words)


def _names_chest(words: frozenset[str]) -> bool:
    return _any(_CHEST, words)


def _any(pattern: re.Pattern[str], words: frozenset[str]) -> bool:
    return any(pattern.fullmatch(word) for word in words)


def _words(value: str) -> frozenset[str]:
    """Split a value as vendors write it ("CHEST_PA", "Thorax a.p.") into upper-case words."""
    return frozenset(re.findall(r"\w+", value.upper().replace(".", "").replace("_", " ")))


def _code(item: Dataset) -> Code:
    """Return the code of a sequence item; older SNOMED identifiers equal their successors (PS3.16 8.1.1)."""
    return Code(attributes.text(item, "CodeValue"), attributes.text(item, "CodingSchemeDesignator"), "")
