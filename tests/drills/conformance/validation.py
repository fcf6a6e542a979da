"""Many drawn studies of all kinds, their objects of every kind in front of independent validators and highdicom."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Final

import numpy as np
from highdicom.sr import CodedConcept, MeasurementReport, PlanarROIMeasurementsAndQualitativeEvaluations, srread
from pydicom.dataset import Dataset

from models.contract import FindingState
from models.progress import ProgressReport
from node.domain import Assessment, Code, Film, Finding, FindingBox
from node.outputs import ratio_text, wording
from node.outputs.document import save_bytes
from node.outputs.sr.findings import SIDES, STATES
from node.read import prompts
from tests.drills.conformance import studies
from tests.drills.conformance.cases import Case, Exposure, Shown, Unit, with_identity
from tests.drills.conformance.studies import Study
from tests.support import documents, films, validators

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
    {"SpecificCharacterSet": ["", "ISO 2022 IR 87"], "PatientName": "Yamada^Tarou=山田^太郎=やまだ^たろう"},
    {"SpecificCharacterSet": ["", "ISO 2022 IR 149"], "PatientName": "Hong^Gildong=洪^吉洞=홍^길동"},
)
"""What films say of themselves, and leave out."""

_SAYS_REPORT: Final = frozenset(("sr", "sr3d", "text"))


@dataclass(slots=True)
class Validation:
    """What was checked, and every complaint with the study, the kind and the tool.

    reports: the structured reports, which `templates` has still to check
    """

    reports: list[tuple[str, Dataset]] = field(default_factory=list)
    studies: int = 0
    objects: Counter[str] = field(default_factory=Counter)
    reports_read_back: int = 0
    boxes_read_back: int = 0
    complaints: list[str] = field(default_factory=list)

    def figures(self) -> dict[str, object]:
        """The counts, and at most twenty complaints."""
        return {
            "studies": self.studies,
            "objects": dict(self.objects),
            "read_back": {"reports": self.reports_read_back, "boxes": self.boxes_read_back},
            "errors": len(self.complaints),
            "complaints": self.complaints[:20],
        }


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
    return with_identity(Case(name=f"drawn-{number}", about="a drawn study", exposures=tuple(exposures)))


def _answer(key: str, chance: random.Random) -> Shown:
    states = (FindingState.PRESENT, FindingState.INDETERMINATE, FindingState.UNCALIBRATED)
    boxes = tuple(_unit(chance) for _ in range(chance.choice((1, 1, 2))))
    return Shown(prompt=key, boxes=boxes, state=chance.choice(states), probability=chance.uniform(0.2, 0.999))


def _unit(chance: random.Random) -> Unit:
    """Draw a box, some of which reach beyond the square."""
    return (chance.random(), chance.random(), chance.uniform(0.02, 0.6), chance.uniform(0.02, 0.6))


def validate(cases: Iterable[Case], folder: Path, *, say: ProgressReport, total: int) -> Validation:
    """Write every kind of output of the cases, and check each object and what highdicom reads of it."""
    done = Validation()
    for case in cases:
        study = studies.write(case, folder)
        done.studies += 1
        say("validated", done.studies, total)
        for kind, datasets in study.objects.items():
            for dataset in datasets:
                done.objects[kind] += 1
                where = f"{case.name} {kind}"
                done.complaints += [f"{where} {complaint}" for complaint in complaints_of(dataset)]
                if dataset.Modality == "SR":
                    done.reports.append((where, dataset))
            if kind in _SAYS_REPORT:
                done.complaints += read_back(study, kind, done)
    return done


def complaints_of(dataset: Dataset) -> list[str]:
    """Check one object with the tools for its kind."""
    tools: list[Callable[[Dataset], list[str]]] = [validators.dciodvfy]
    tools += {"SR": [validators.dsrdump], "PR": [validators.dcmpschk]}.get(dataset.Modality, [])
    return [f"{tool.__name__}: {complaint}" for tool in tools for complaint in tool(dataset)]


def templates(reports: Sequence[tuple[str, Dataset]], say: ProgressReport) -> list[str]:
    """Check structured reports with PixelMed, a batch in each of two processes at a time."""
    batches = [reports[first : first + 40] for first in range(0, len(reports), 40)]
    wrong, checked = [], 0
    with ThreadPoolExecutor(2) as pool:
        for batch, answers in zip(batches, pool.map(_pixelmed, batches), strict=True):
            checked += len(batch)
            say("templates", checked, len(reports))
            for (where, _), complaints in zip(batch, answers, strict=True):
                wrong += [f"{where} pixelmed: {complaint}" for complaint in complaints]
    return wrong


def _pixelmed(batch: Sequence[tuple[str, Dataset]]) -> list[list[str]]:
    return validators.pixelmed([dataset for _, dataset in batch])


def read_back(study: Study, kind: str, done: Validation) -> list[str]:
    """Read the reports with highdicom; compare findings, states, boxes, sides and numbers with the report."""
    wrong = []
    groups: dict[str, list[PlanarROIMeasurementsAndQualitativeEvaluations]] = defaultdict(list)
    ratios: list[float] = []
    for dataset in study.objects[kind]:
        if dataset.ContentTemplateSequence[0].TemplateIdentifier != "1500":
            continue
        content = srread(BytesIO(save_bytes(dataset))).content
        assert isinstance(content, MeasurementReport)
        done.reports_read_back += 1
        groups[documents.film_of(dataset)] += content.get_planar_roi_measurement_groups()
        ratios += [float(group.get_measurements()[0].value) for group in content.get_image_measurement_groups()]
    if kind == "text" and not groups:
        return []
    numbers = [ratio.hundredths for film in study.report.read_films if (ratio := ratio_text.comparable_ratio_of(film))]
    if sorted(ratios) != (stated := sorted(map(float, numbers))):
        wrong.append(f"{study.case.name} {kind} highdicom: reads the ratios {ratios}, not {stated}")
    for film in study.report.read_films:
        expected = set(_expected(film))
        done.boxes_read_back += len(expected)
        sites = {finding.code.value: finding.site for finding in film.findings}
        read = [_said(group, sites) for group in groups[film.source]]
        if len(read) != len(set(read)) or set(read) != expected:
            wrong.append(
                f"{study.case.name} {kind} highdicom: reads {set(read) - expected}, not {expected - set(read)}"
            )
    return wrong


def _said(
    group: PlanarROIMeasurementsAndQualitativeEvaluations, sites: Mapping[str, Code | None]
) -> tuple[object, ...]:
    """Return what highdicom reads of a group: UID, finding, state, side of the finding's own site, percent, box."""
    assert group.roi is not None
    assert group.finding_type is not None
    [number, *_] = group.get_measurements()
    [state] = [item for item in group.get_qualitative_evaluations() if item.name == group.finding_type]
    assert isinstance(state.value, CodedConcept)
    own = sites[group.finding_type.value]
    sides = [site.laterality for site in number.finding_sites if own and site.value.value == own.value]
    points = group.roi.value
    box = (*points.min(axis=0), *points.max(axis=0))
    return (
        str(group.tracking_uid),
        group.finding_type.value,
        state.value.meaning,
        sides[0].meaning if sides and sides[0] else None,
        float(number.value),
        tuple(round(float(edge), 2) for edge in box),
    )


def _number(finding: Finding, box: FindingBox) -> float:
    """Return the number that a box must have: a whole percent, the finding's probability, or a count.

    The count is 1: of a box that a radiologist moved or added, or marked where the network reports no probability.
    """
    mark = wording.mark_of(finding, box)
    probability = finding.probability if mark is None else finding.output_probability
    if mark is not None and (probability is None or mark.what in (Assessment.MOVED, Assessment.ADDED)):
        return 1.0
    return float(wording.whole_percent(probability or 0.0))


def _expected(film: Film) -> Iterable[tuple[object, ...]]:
    """Yield the same of each reported box of the report."""
    for finding in film.findings:
        if not finding.state.is_reported:
            continue
        for box in finding.boxes:
            side = box.side if finding.site else None
            yield (
                box.tracking_uid,
                finding.code.value,
                STATES[finding.state].meaning,
                SIDES[side].meaning if side else None,
                _number(finding, box),
                tuple(round(float(np.float32(edge)), 2) for edge in box.box.edges),
            )
