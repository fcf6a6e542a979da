"""Every object that the node writes, of one study with every finding in every state, as the tables need them.

The same study is written several times, each time with other films, findings or another program: what then differs
in an attribute tells where its value comes from.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from io import BytesIO
from itertools import chain
from typing import Final

import numpy as np
from pydicom import dcmread
from pydicom.dataset import Dataset

from models.contract import Box, FindingState, PromptKind, Side
from node.cardiothoracic_ratio import MeasuredLine
from node.domain import (
    About,
    Assessment,
    Evidence,
    Film,
    Finding,
    FindingBox,
    OutputObject,
    ReaderMark,
    Report,
    Subject,
    derive_uid,
)
from node.output_kinds import OUTPUTS
from node.outputs import writers
from node.outputs.document import save_bytes
from node.prompt_set import Prompt
from node.read import prompts
from tests.support import samples
from tests.support.documents import reference

PROMPTS: Final = prompts.load("chexpert14").prompts
PATHOLOGIES: Final = [prompt for prompt in PROMPTS if prompt.kind is PromptKind.PATHOLOGY]
_GRAY: Final = np.full((samples.ROWS, samples.COLUMNS), 90, np.uint8)
_SIDES: Final = (Side.RIGHT, Side.LEFT, Side.BILATERAL, None)
_ZONE: Final = next(prompt.key for prompt in PROMPTS if prompt.kind is PromptKind.REGION)


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What the writers get: a report, and the header of each of its films."""

    report: Report
    sources: dict[str, Dataset]

    def objects(self) -> list[tuple[str, Dataset]]:
        """Write every object, and read it back from its bytes: its kind and itself."""
        sources = {uid: samples.source(header, lambda: _GRAY) for uid, header in self.sources.items()}
        known = list(chain.from_iterable(self.report.earlier))
        written: list[tuple[str, Dataset]] = []
        for made in writers.write_objects(self.report, sources, zone=samples.BERLIN, kinds=tuple(OUTPUTS.own)):
            known.append(writers.numbered(made, known))
            written.append((made.kind, dcmread(BytesIO(save_bytes(made.dataset)))))
        return written


@cache
def study() -> Study:
    """Return a study with a film for each state of all findings, one with two states, and one that was not read.

    Two films have a comparable cardiothoracic ratio, one in millimeters. A reader confirmed a finding of the film
    with two states, moved one, added one, rejected another, and wrote the sentence of the first. The model leaves out
    the last. The film of absent findings has one to be reviewed, without a box.
    """
    whole = {state: tuple(_findings(number, state)) for number, state in enumerate(FindingState, 1)}
    confirmed, moved, added, rejected, *others, last = (
        *whole[FindingState.PRESENT][:3],
        *whole[FindingState.ABSENT][3:],
    )
    two = (
        _said(confirmed, Assessment.ACCEPTED),
        _drawn(moved, Assessment.MOVED),
        _drawn(added, Assessment.ADDED),
        _said(rejected, Assessment.REJECTED),
        *others,
        replace(last, state=FindingState.LEFT_OUT, probability=None),
    )
    whole[FindingState.ABSENT] = (*whole[FindingState.ABSENT][:-1], replace(last, state=FindingState.INDETERMINATE))
    films = [samples.film(number, findings=findings) for number, findings in enumerate((*whole.values(), two), 1)]
    films[-1] = _reworded(films[-1])
    films[:2] = [
        replace(films[0], ratio=samples.ratio(mm_per_pixel=0.14)),
        replace(_by_rule(films[1]), ratio=samples.ratio()),
    ]
    films.append(samples.unread(len(films) + 1))
    report = replace(samples.report(*films), predecessors=tuple(_predecessor(film.source) for film in films))
    return Study(report=report, sources={film.source: _header(number) for number, film in enumerate(films, 1)})


def from_bare_films() -> Study:
    """Return the same study, of films whose headers say as little as possible."""
    whole = study()
    sources = {source: samples.bare(number) for number, source in enumerate(whole.sources, 1)}
    return Study(report=replace(whole.report, predecessors=()), sources=sources)


def from_other_films() -> Study:
    """Return the same study with other values in every header, and under another UID."""
    whole, uid = study(), derive_uid("another study")
    sources = {source: _other(header, uid) for source, header in whole.sources.items()}
    return Study(report=replace(whole.report, study_uid=uid), sources=sources)


def with_other_findings() -> Study:
    """Return the same study with other probabilities, boxes and ratios."""
    return _changed(
        lambda film: replace(
            film,
            findings=tuple(map(_moved, film.findings)),
            ratio=film.ratio and replace(film.ratio, heart=MeasuredLine(start=(600, 1100), end=(1400, 1100))),
        )
    )


def after_another_version() -> Study:
    """Return the same study, about which the node said something else before."""
    whole = study()
    earlier = tuple(reference(dataset) for _, dataset in with_other_findings().objects())
    return Study(report=replace(whole.report, earlier=(earlier,)), sources=whole.sources)


def by_another_program() -> Study:
    """Return the same study read by another model at another time."""
    whole = study()
    model = replace(whole.report.model, name="other", version="2", weights_sha256="cd" * 32)
    report = replace(whole.report, model=model, created_at=whole.report.created_at + timedelta(days=180, hours=1))
    return Study(report=report, sources=whole.sources)


def _changed(change: Callable[[Film], Film]) -> Study:
    whole = study()
    return Study(report=replace(whole.report, films=tuple(map(change, whole.report.films))), sources=whole.sources)


def _findings(number: int, state: FindingState) -> Iterator[Finding]:
    for place, prompt in enumerate(PATHOLOGIES):
        assert prompt.finding is not None
        is_reported = state.is_reported
        side = _SIDES[place % len(_SIDES)] if prompt.paired and is_reported else None
        yield Finding(
            prompt=prompt.key,
            code=prompt.finding,
            site=prompt.site,
            side=side,
            probability=None if state is FindingState.LEFT_OUT else 0.5,
            state=state,
            boxes=(_box(number, prompt, side),) if is_reported else (),
            sentence=0 if is_reported else None,
            evidence=Evidence(zone=_ZONE, extent=0.25) if is_reported else None,
        )


def _said(finding: Finding, what: Assessment) -> Finding:
    return replace(finding, reader=_mark(what))


def _drawn(finding: Finding, what: Assessment) -> Finding:
    boxes = tuple(replace(box, reader=_mark(what), score=1.0) for box in finding.boxes)
    return replace(_said(finding, what), boxes=boxes)


def _by_rule(film: Film) -> Film:
    return replace(film, sentences=tuple(replace(sentence, by="rule") for sentence in film.sentences))


def _reworded(film: Film) -> Film:
    first, *others = film.sentences
    return replace(film, sentences=(replace(first, by="reader", reader=_mark(Assessment.REWORDED)), *others))


def _mark(what: Assessment) -> ReaderMark:
    return ReaderMark(what=what, by="Doe", at=datetime(2026, 3, 1, 12, tzinfo=UTC))


def _box(number: int, prompt: Prompt, side: Side | None) -> FindingBox:
    box = Box(left=200, top=300, right=700, bottom=900)
    return FindingBox(box=box, score=0.6, tracking_uid=derive_uid(str(number), prompt.key), side=side)


def _moved(finding: Finding) -> Finding:
    box = Box(left=210, top=310, right=710, bottom=910)
    return replace(finding, probability=0.7, boxes=tuple(replace(found, box=box) for found in finding.boxes))


def _predecessor(film: str) -> OutputObject:
    return OutputObject(
        kind="sr",
        study_uid=samples.STUDY,
        sop_class_uid="1.2.840.10008.5.1.4.1.1.88.33",
        sop_instance_uid=derive_uid("earlier", film),
        series_instance_uid=derive_uid("series", film),
        subject=Subject(about=About.FILM, film=film),
    )


def _header(number: int) -> Dataset:
    """Make a header in which everything is filled that the node copies; films differ in their gray pipeline."""
    header = samples.cr(number)
    header.PatientBirthDate, header.PatientAge, header.PatientSize, header.PatientWeight = (
        "19500228",
        "073Y",
        "1.8",
        "80",
    )
    header.StudyDescription, header.SeriesNumber, header.InstanceNumber = "Chest", 1, number
    header.BurnedInAnnotation = "NO"
    request = Dataset()
    request.RequestedProcedureID, request.AccessionNumber = "P-1", "A-17"
    header.RequestAttributesSequence = [request]
    if number == 1:
        header.ModalityLUTSequence = [_table("first")]
        header.VOILUTSequence = [_table("first")]
    return header


def _table(explanation: str) -> Dataset:
    table = Dataset()
    table.add_new("LUTDescriptor", "US", [256, 0, 16])
    table.add_new("LUTData", "OW", bytes(range(256)) * 2)
    table.ModalityLUTType, table.LUTExplanation = "US", explanation
    return table


def _other(header: Dataset, study_uid: str) -> Dataset:
    """Change every value of a header that may become part of an object; the film keeps its size and its UID."""
    other = copy.deepcopy(header)
    other.StudyInstanceUID, other.SeriesInstanceUID = study_uid, derive_uid("another series")
    other.PatientName, other.PatientID, other.IssuerOfPatientID, other.PatientSex = "Other^One", "0815", "OTHER", "F"
    other.PatientBirthDate, other.PatientAge, other.PatientSize, other.PatientWeight = "19600101", "063Y", "1.7", "70"
    other.StudyDate, other.StudyTime, other.StudyID, other.AccessionNumber = "20240701", "111111", "2", "A-18"
    other.ReferringPhysicianName, other.StudyDescription = "Doe^Jane", "Thorax"
    other.InstanceNumber = int(header.InstanceNumber) + 50
    other.BurnedInAnnotation = "YES"
    other.PhotometricInterpretation = "MONOCHROME1"
    other.PixelSpacing, other.WindowCenter, other.RescaleSlope = [0.2, 0.1], 1000, 2
    other.RescaleIntercept, other.RescaleType, other.SOPClassUID = 5, "OD", "1.2.840.10008.5.1.4.1.1.1.1"
    if "ModalityLUTSequence" in other:
        other.ModalityLUTSequence = [_table("other")]
    return other
