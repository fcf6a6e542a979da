"""The program's name, its device UID and its series UID, and how the node recognizes its own objects.

The device UID changes with the weights. The series UID is derived from study, modality and device UID. So the
attributes of an object prove that this program wrote it, with any weights (design §5).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from models.program import __version__
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
_PART = re.compile(r", part ([0-9a-f]{8})(?: - |$)")
SERIES_FORMS = ("", "sr3d", "text")
"""Distinguishes the series of objects with the same content in several forms; "" is the first form."""


def ratio_of(film: str) -> str:
    """Return the subject of a series with a film's cardiothoracic ratio; film: see `is_own`."""
    return f"ratio {film}" if film else ""


def study_of(part: str) -> str:
    """Return the subject of a series with reports on a part of a study; part: its name, "" for the whole study."""
    return f"{STUDY} {part}" if part else STUDY


def described_part(part: str) -> str:
    """Return how the description of such a series names the part."""
    return f", part {part}" if part else ""


def part_in(series_description: str) -> str:
    """Return the name of the part in a description with `described_part`, or ""."""
    found = _PART.search(series_description)
    return found[1] if found else ""


def answer_of(question: str) -> str:
    """Return the subject of the series of an answer's objects; question: its id."""
    return f"answer {question}"


def device_uid(model: ModelIdentity) -> str:
    """Return the UID of the device that wrote an object (0018,1002): this program with these weights."""
    return derive_uid("device", PROGRAM, model.name, model.version, model.weights_sha256)


def series_uid(*, study_uid: str, modality: str, device: str, about: str = "", form: str = "") -> str:
    """Return the UID of the series for a device's objects of one modality in one study.

    about: SOP Instance UID of a film whose objects have a series of their own, its `ratio_of`, or `STUDY`
    form: one of `SERIES_FORMS`
    """
    return derive_uid("series", study_uid, modality, device, *filter(None, (about, form)))


def is_own(*, study: str, series: str, modality: str, devices: Iterable[str], film: str = "", part: str = "") -> bool:
    """Return whether this program wrote an object, with any weights: its series UID is derived from its device UID.

    study, series: UIDs of the object's study and series
    devices: the device UID of each item of ContributingEquipmentSequence (PS3.3 C.12.1)
    film: SOP Instance UID of the only object that it names as its evidence, or ""
    part: as `part_in` finds it in the description of its series
    """
    return any(
        series == series_uid(study_uid=study, modality=modality, device=device, about=about, form=form)
        for device in devices
        for about in ("", STUDY, study_of(part), film, ratio_of(film))
        for form in SERIES_FORMS
    )
