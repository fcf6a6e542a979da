"""Reads a case with a scripted network and writes its objects as the node does, of every kind there is."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any, Final

from pydicom.dataset import Dataset

from models.contract import Box, FindingState, PromptKind, PromptReading, Question, ScoredBox
from node.domain import Assessment, Film, GroundedSentence, ModelIdentity, Report
from node.output_kinds import OUTPUTS
from node.outputs import answers, asked_question, report_json, wording
from node.outputs.asked_question import AskedQuestion
from node.outputs.corrected_film import correct
from node.outputs.source import Source, from_files
from node.outputs.writers import first_of_series, make_report, numbered, output_of, write_objects
from node.prompt_set import PromptSet
from node.read import prompts as prompt_sets
from node.read.decoding import Radiograph
from node.read.film import answer_film
from node.read.model import FilmAnswer, Reading
from node.store.correction import Correction, CorrectionKind
from tests.drills.conformance import cases
from tests.drills.conformance.cases import Case, Exposure, Said, Shown, Unit
from tests.support import films, samples
from tests.support.documents import reference
from tests.support.fakes import ScriptedReader
from tests.support.samples import BERLIN

CREATED_AT: Final = datetime(2024, 1, 31, 9, 30, 15, tzinfo=UTC)
_BY_READER: Final[Mapping[Assessment, str]] = {
    Assessment.MOVED: "drawn by reader",
    Assessment.ADDED: "added by reader",
}
"""What stands in place of the network's percentage."""
MODEL: Final = ModelIdentity(name="scripted", version="1", weights_sha256="0" * 64, engine="scripted")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedBox:
    """A box of report.json that outputs show: name and state of its finding, its place on the film.

    sure: the percentage, or what a reader said of it, as the report names its number
    """

    name: str
    state: str
    sure: str
    box: Box


@dataclass(frozen=True, slots=True, kw_only=True)
class FilmResult:
    """What report.json says of a film."""

    impression: tuple[str, ...]
    boxes: tuple[ReportedBox, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A case with its outputs: the films as sent, the report, the objects of each kind, and what was asked."""

    case: Case
    films: tuple[Dataset, ...]
    report: Report
    objects: Mapping[str, tuple[Dataset, ...]]
    asked: tuple[AskedQuestion, ...]
    sources: Mapping[str, Source]

    def answers(self, kind: str) -> list[Dataset]:
        """Write the answers to the questions, as objects of a kind and presentation states."""
        return [
            made.dataset
            for asked in self.asked
            for made in answers.write_objects(
                asked, _alone(self.report, asked.film), self.sources[asked.film], zone=BERLIN, kinds=(kind, "gsps")
            )
        ]

    @property
    def results(self) -> list[FilmResult]:
        """What report.json says of each film, in the order of the case."""
        content = json.loads(json.dumps(report_json.report_to_json(self.report, [])))
        results = {film["source"]: _result(film) for film in content["films"]}
        return [results[str(film.SOPInstanceUID)] for film in self.films]

    @property
    def uid(self) -> str:
        """The Study Instance UID."""
        return self.report.study_uid


def _result(film: Mapping[str, Any]) -> FilmResult:
    return FilmResult(
        impression=tuple(film["impression"]),
        boxes=tuple(
            ReportedBox(
                name=finding["code"][2],
                state=finding["state"],
                sure=_sure(finding, box),
                box=Box(**dict(zip(("left", "top", "right", "bottom"), box["box"], strict=True))),
            )
            for finding in film["findings"]
            if finding["state"] != "absent"
            for box in finding["boxes"]
        ),
    )


def _sure(finding: Mapping[str, Any], box: Mapping[str, Any]) -> str:
    said = box.get("reader") or finding.get("reader")
    named = None if said is None else _BY_READER.get(Assessment(said["what"]))
    return named or str(wording.whole_percent(finding["probability"]))


class CaseReader(ScriptedReader):
    """Says of a film what its case says: one sentence for each answer, nothing of other prompts."""

    def __init__(self, exposure: Exposure) -> None:
        super().__init__()
        self.identity = MODEL
        self._answers = {answer.prompt: answer for answer in exposure.answers}
        self._has_ratio = exposure.ratio

    def read(self, image: Radiograph, prompts: PromptSet) -> Reading:
        sentences: list[GroundedSentence] = []
        found: list[PromptReading] = []
        for prompt in prompts.prompts:
            if prompt.kind is not PromptKind.PATHOLOGY:
                continue
            answer = self._answers.get(prompt.key)
            if answer is None:
                found.append(PromptReading(key=prompt.key, probability=0.07, state=FindingState.ABSENT))
                continue
            boxes = tuple(ScoredBox(box=image.framing.to_image(unit), score=0.8) for unit in answer.boxes)
            found.append(
                PromptReading(
                    key=prompt.key,
                    probability=answer.probability,
                    state=answer.state,
                    boxes=boxes,
                    sentence=len(sentences),
                )
            )
            sentences.append(
                GroundedSentence(text=f"{prompt.phrases[0]} is seen here.", prompt=prompt.key, score=0.7, boxes=boxes)
            )
        return Reading(
            sentences=tuple(sentences),
            prompts=tuple(found),
            ratio=samples.ratio_on(image.framing) if self._has_ratio else None,
        )


def versions(name: str, folder: Path, *, kinds: Sequence[str]) -> list[Study]:
    """Write the versions of a study one after the other, in some kinds of output."""
    written: list[Study] = []
    for case in cases.versions(name):
        written.append(write(case, folder, kinds=kinds, earlier=written))
    return written


def write(
    case: Case, folder: Path, *, kinds: Sequence[str] = tuple(OUTPUTS.own), earlier: Sequence[Study] = ()
) -> Study:
    """Read the films of a case from files, and write every kind of output; earlier: what was written of it before."""
    prompts = prompt_sets.load("chexpert14")
    answered, paths = [], []
    for number, exposure in enumerate(case.exposures, 1):
        path = folder / f"{case.name}-{number}.dcm"
        path.write_bytes(films.file_bytes(exposure.film))
        paths.append(path)
        answered.append(answer_film(path, CaseReader(exposure), prompts))
    read = [answer.film for answer in answered if answer.film is not None]
    report = make_report(
        str(case.exposures[0].film.StudyInstanceUID),
        [_corrected(film, exposure.said, prompts) for film, exposure in zip(read, case.exposures, strict=True)],
        model=MODEL,
        prompts=prompts,
        created_at=CREATED_AT,
    )
    headers = {str(answer.dataset.SOPInstanceUID): answer.dataset for answer in answered}
    sources = from_files(headers, dict(zip(headers, paths, strict=True)))
    return Study(
        case=case,
        films=tuple(exposure.film for exposure in case.exposures),
        report=report,
        # Whatever a kind's destination gets is its own, objects that it shares with another kind too.
        objects={
            kind: _objects(report, sources, kind=kind, before=[study.objects[kind] for study in earlier])
            for kind in kinds
        },
        asked=tuple(
            _asked(shown, film, report.study_uid)
            for film, exposure in zip(read, case.exposures, strict=True)
            for shown in exposure.asked
        ),
        sources=sources,
    )


def _asked(shown: Shown, film: Film, study_uid: str) -> AskedQuestion:
    """Return the question and answer that a case shows."""
    boxes = tuple(ScoredBox(box=_placed(unit, wording.analyzed(film)), score=0.8) for unit in shown.boxes)
    return AskedQuestion(
        id=hashlib.sha256(f"{film.source} {shown.prompt}".encode()).hexdigest()[:32],
        study_uid=study_uid,
        film=film.source,
        asked_at=CREATED_AT,
        asked_by="Doe",
        source="page",
        model=f"{MODEL.name} {MODEL.version}",
        weights_sha256=MODEL.weights_sha256,
        answer=FilmAnswer(
            question=Question(prompt=shown.prompt, box=None),
            sentence="",
            score=shown.probability,
            state=shown.state,
            boxes=boxes,
        ),
    )


def boxes_of(asked: AskedQuestion) -> tuple[ReportedBox, ...]:
    """Return the boxes of an answer, as its outputs show them."""
    return tuple(
        ReportedBox(name=name, state="present", sure=str(wording.whole_percent(asked.answer.score or 0.0)), box=box)
        for (name, _), box in asked_question.located(asked)
    )


def _alone(report: Report, film: str) -> Report:
    return replace(report, films=tuple(read for read in report.films if read.source == film))


def _corrected(film: Film, said: Sequence[Said], prompts: PromptSet) -> Film:
    """Return the answer to a film after what a reader said."""
    made: list[Correction] = []
    for number, item in enumerate(said):
        finding = next(found for found in film.findings if found.prompt == item.prompt)
        is_moved = item.kind is CorrectionKind.MOVE
        made.append(
            Correction(
                id=f"{number:032x}",
                study_uid="1.2",
                film=film.source,
                kind=item.kind,
                at=CREATED_AT,
                by="Doe",
                source="page",
                prompt=item.prompt,
                box=None if item.box is None else _placed(item.box, wording.analyzed(film)),
                tracking_uid=finding.boxes[0].tracking_uid if is_moved else "",
            )
        )
    return correct(film, made, prompts=prompts, side_of=lambda _box: None)


def _placed(unit: Unit, square: Box) -> Box:
    """Return a box of an upright square in pixels of the film."""
    x, y, width, height = unit
    columns, rows = square.right - square.left, square.bottom - square.top
    return Box(
        left=square.left + (x - width / 2) * columns,
        top=square.top + (y - height / 2) * rows,
        right=square.left + (x + width / 2) * columns,
        bottom=square.top + (y + height / 2) * rows,
    )


def _objects(
    report: Report, sources: Mapping[str, Source], *, kind: str, before: Sequence[Sequence[Dataset]]
) -> tuple[Dataset, ...]:
    """Write the objects of a kind; before: those of each earlier round."""
    earlier = tuple(tuple(map(reference, objects)) for objects in before)
    known = list(chain.from_iterable(earlier))
    written = []
    for made in write_objects(replace(report, earlier=earlier), sources, zone=BERLIN, kinds=[kind]):
        output, first = numbered(made, known), first_of_series(made, known)
        known += [output, *([] if first is None else [output_of(first)])]
        written += [made.dataset, *([] if first is None else [first.dataset])]
    return tuple(written)
