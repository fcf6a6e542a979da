"""Many drawn studies of all kinds, their objects of every kind in front of independent validators."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pydicom.dataset import Dataset

from models.contract import FindingState
from models.progress import ProgressReport
from node.read import prompts
from tests.drills.conformance import studies
from tests.drills.conformance.cases import Case, Exposure, Shown, with_identity
from tests.support import films, validators

HEADERS: Final[Sequence[dict[str, object]]] = (
    {},
    {"PatientOrientation": ["R", "F"]},
    {"PatientOrientation": ["F", "R"]},
    {"PatientOrientation": None},
    {"ViewPosition": None, "BodyPartExamined": None},
    {"PixelSpacing": [0.2, 0.2], "ImagerPixelSpacing": [0.2, 0.2]},
    {"PixelSpacing": [0.2, 0.1]},
    {"PhotometricInterpretation": "MONOCHROME2"},
    {"WindowCenter": None, "WindowWidth": None},
    {"RescaleSlope": "0.5", "RescaleIntercept": "-12.25", "RescaleType": "OD"},
    {"PatientID": None, "PatientName": None, "PatientBirthDate": None, "PatientSex": None},
    {"StudyDate": None, "StudyTime": None, "AccessionNumber": None, "StudyID": None},
    {
        "AccessionNumber": "A-17",
        "FillerOrderNumberImagingServiceRequest": "F-9",
        "ReferringPhysicianName": "Haus^Greta",
    },
    {"PatientAge": "034Y", "PatientSize": "1.7", "PatientWeight": "70", "Laterality": "", "InstanceNumber": "12"},
    {"SpecificCharacterSet": "ISO_IR 100", "PatientName": "Müller^Jörg"},
    {"SpecificCharacterSet": "ISO_IR 192", "PatientName": "Wang^XiaoDong=王^小東"},
    {"SpecificCharacterSet": "ISO_IR 144", "PatientName": "Люкceмбypг"},  # noqa: RUF001  # Cyrillic
)
"""What films say of themselves, and leave out; more character sets are in `cases`."""

OF_A_MODALITY: Final = {"SR": (validators.dsrdump,), "PR": (validators.dcmpschk,)}
_BATCH: Final = 40
"""Reports that PixelMed checks at a time."""


@dataclass(slots=True)
class Validation:
    """How many objects of each kind were checked, and every complaint with the study, the kind and the tool."""

    objects: Counter[str] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)


def drawn(number: int) -> Case:
    """Draw a study by its number: one to three films, each read with any answer or not read at all."""
    chance = random.Random(number)
    keys = [prompt.key for prompt in prompts.load("chexpert14").prompts if prompt.finding]
    exposures = []
    for place in range(chance.choice((1, 1, 2, 3))):
        if chance.random() < 0.2:
            make, _ = chance.choice(list(films.REFUSED.values()))
            exposures.append(Exposure(film=make()))
            continue
        header = HEADERS[number % len(HEADERS) if place == 0 else chance.randrange(len(HEADERS))]
        share = chance.choice((0.0, 0.2, 0.5, 1.0))
        answers = tuple(_answer(key, chance) for key in keys if chance.random() < share)
        film = films.at_depth(16, signed=True) if chance.random() < 0.2 else films.thumbnail()
        has_ratio = chance.random() < 0.5
        exposures.append(Exposure(film=films.changed(film, header), answers=answers, ratio=has_ratio))
    return with_identity(Case(name=f"drawn-{number}", exposures=tuple(exposures)))


def _answer(key: str, chance: random.Random) -> Shown:
    states = (FindingState.PRESENT, FindingState.INDETERMINATE, FindingState.UNCALIBRATED)
    boxes = tuple(  # some of which reach beyond the square
        (chance.random(), chance.random(), chance.uniform(0.02, 0.6), chance.uniform(0.02, 0.6))
        for _ in range(chance.choice((1, 1, 2)))
    )
    return Shown(prompt=key, boxes=boxes, state=chance.choice(states), probability=chance.uniform(0.2, 0.999))


def validate(cases: Iterable[Case], folder: Path, *, say: ProgressReport, total: int) -> Validation:
    """Write every kind of output of the cases, and check each object with the tools for its kind."""
    done, reports = Validation(), list[tuple[str, Dataset]]()
    for number, case in enumerate(cases, 1):
        say("validated", number, total)
        for kind, datasets in studies.write(case, folder).objects.items():
            for dataset in datasets:
                done.objects[kind] += 1
                where = f"{case.name} {kind}"
                reports += [(where, dataset)] if dataset.Modality == "SR" else []
                for tool in (validators.dciodvfy, *OF_A_MODALITY.get(dataset.Modality, ())):
                    done.complaints += [f"{where} {tool.__name__}: {complaint}" for complaint in tool(dataset)]
    for first in range(0, len(reports), _BATCH):
        say("templates", first, len(reports))
        batch = reports[first : first + _BATCH]
        for (where, _), found in zip(batch, validators.pixelmed([dataset for _, dataset in batch]), strict=True):
            done.complaints += [f"{where} pixelmed: {complaint}" for complaint in found]
    return done
