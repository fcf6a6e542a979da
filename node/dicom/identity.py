"""The program's name, its device UID and its series UIDs, and how the node recognizes its own objects.

The device UID changes with the weights. A series UID is derived from study, modality and device UID.
"""

from __future__ import annotations

from pydicom.dataset import Dataset

from models.program import __version__
from node.dicom import attributes
from node.domain import ModelIdentity, derive_uid

PROGRAM = "ChEX Node"
MANUFACTURER = "ChEX Node project"
RESEARCH_LABEL = "AI RESEARCH - NOT FOR DIAGNOSIS"
SERIES_LABEL = "RESEARCH, NOT FOR DIAGNOSIS"
"""The research label of a Series Description; "AI" and the kind of series precede it."""
VERSION = __version__
ANALYZED_LAYER = "AI SQUARE"
"""The graphic layer of presentation states that has the analyzed square alone."""
STUDY = "study"
"""Subject of the series of reports on a whole study."""


def ratio_of(film: str) -> str:
    """Return the subject of a series with a film's cardiothoracic ratio; film: its SOP Instance UID."""
    return f"ratio {film}"


def study_of(part: str) -> str:
    """Return the subject of a series with reports on a part of a study; part: its name, "" for the whole study."""
    return f"{STUDY} {part}" if part else STUDY


def answer_of(question: str) -> str:
    """Return the subject of the series of an answer's objects; question: its id."""
    return f"answer {question}"


def device_uid(model: ModelIdentity) -> str:
    """Return the UID of the device that wrote an object (0018,1002): this program with these weights."""
    return derive_uid("device", PROGRAM, model.name, model.version, model.weights_sha256)


def series_uid(*, study_uid: str, modality: str, device: str, about: str = "", form: str = "") -> str:
    """Return the UID of the series for a device's objects of one modality in one study.

    about: SOP Instance UID of a film whose objects have a series of their own, its `ratio_of`, or `STUDY`
    form: distinguishes the series of objects with the same content in several forms; "" is the first form
    """
    return derive_uid("series", study_uid, modality, device, *filter(None, (about, form)))


def is_own(dataset: Dataset) -> bool:
    """Return whether this program made or changed an object, with any weights: it is named as equipment."""
    return any(
        attributes.text(item, "Manufacturer") == MANUFACTURER
        and attributes.text(item, "ManufacturerModelName") == PROGRAM
        for item in (dataset, *attributes.items(dataset, "ContributingEquipmentSequence"))
    )
