"""Who made an object: the program's name, its device UID, its series, and how its own objects are known again.

A device UID changes with the weights; a series UID is derived from study, modality and device UID. So an object that
comes back proves by its own attributes that it is ours, whichever weights wrote it (DESIGN.md 5).
"""

from __future__ import annotations

from pydicom.dataset import Dataset

from node import __version__, attributes
from node.domain import ModelIdentity, derive_uid

PROGRAM = "ChEX Node"
MANUFACTURER = "ChEX Node project"
RESEARCH_LABEL = "AI RESEARCH - NOT FOR DIAGNOSIS"
VERSION = __version__


def device_uid(model: ModelIdentity) -> str:
    """Name the device that wrote an object (0018,1002): this program with these weights."""
    return derive_uid("device", PROGRAM, model.name, model.version, model.weights_sha256)


def series_uid(*, study_uid: str, modality: str, device: str) -> str:
    """Name the series that a device's objects of one modality have in one study."""
    return derive_uid("series", study_uid, modality, device)


def is_own(dataset: Dataset) -> bool:
    """Say whether this program wrote an object, with any weights: its series follows from its device UID."""
    study, series, modality = (
        attributes.text(dataset, keyword) for keyword in ("StudyInstanceUID", "SeriesInstanceUID", "Modality")
    )
    return any(
        series == series_uid(study_uid=study, modality=modality, device=attributes.text(equipment, "DeviceUID"))
        for equipment in attributes.items(dataset, "ContributingEquipmentSequence")
    )
