"""The DICOM objects of one question that a person asked about a film: a structured report and a presentation state.

They are made from the stored question and the film alone, so a repetition gives the same objects, byte for byte.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Final
from zoneinfo import ZoneInfo

from pydicom.dataset import Dataset

from node.dicom import identity
from node.domain import About, Box, Film, Report, Subject, is_uid
from node.errors import InputError
from node.outputs import answer_wording, document, gsps, wording
from node.outputs.asked import AskedQuestion
from node.outputs.gsps import DrawnBox, State
from node.outputs.kinds import Written
from node.outputs.patient import short_text
from node.outputs.source import Source
from node.outputs.sr import answer as sr
from node.outputs.sr.forms import COMPREHENSIVE, COMPREHENSIVE_3D

KINDS: Final = (COMPREHENSIVE.kind, COMPREHENSIVE_3D.kind, gsps.KIND)
"""The kinds of outputs that an answer becomes; a destination that takes none of them gets nothing."""

SERIES_NUMBER: Final = 9006
"""Of the presentation states of answers."""


def check_answered(asked: AskedQuestion) -> None:
    """Raise InputError for a question that has no answer: there is nothing to send."""
    if asked.answer.never_learned:
        raise InputError("the question has words that this model never learned; there is no answer to send")


def write_objects(
    asked: AskedQuestion, report: Report, source: Source, *, zone: ZoneInfo, kinds: Collection[str]
) -> Iterator[Written]:
    """Write the objects of the wanted kinds, each once.

    report: of the film's study, made at the time of the question; its first film is the one that was asked about
    Raises InputError for a question without an answer, a film that was not read, and a box outside the film.
    """
    check_answered(asked)
    alone = _without_findings(report)
    film = alone.films[0]
    _check_boxes(asked, film)
    for form in dict.fromkeys(sr.form_of(asked, kind) for kind in KINDS[:2] if kind in kinds):
        yield sr.write(asked, alone, source.header, zone, form=form)
    if gsps.KIND in kinds:
        state = gsps.draw(alone, film, source, zone, state=_state(asked, film, source.header))
        yield Written(kind=gsps.KIND, dataset=state, subject=Subject(about=About.ANSWER, film=film.source))


def _without_findings(report: Report) -> Report:
    """Return a report on its first film that says nothing but how the film was analyzed."""
    if not report.read_films:
        raise InputError("the film cannot be read any more, so its answers cannot be sent; see its report")
    film = replace(report.read_films[0], findings=(), sentences=(), withheld=(), ratio=None)
    return replace(report, films=(film,), predecessors=(), earlier=())


def _check_boxes(asked: AskedQuestion, film: Film) -> None:
    columns, rows = wording.size(film)
    boxes = [scored.box for scored in asked.answer.boxes]
    if asked.answer.question.box is not None:
        boxes.append(asked.answer.question.box)
    if any(box.left < 0 or box.top < 0 or box.right > columns or box.bottom > rows for box in boxes):
        raise InputError("a box of the answer lies outside the film, which was replaced since; ask again")


def _state(asked: AskedQuestion, film: Film, header: Dataset) -> State:
    """Return what the presentation state shows: the located boxes, and dashed the box that was asked about.

    The label stands beside each located box, else beside the box that was asked about, else in the heading.
    """
    answer, label = asked.answer, answer_wording.label(asked)
    is_dashed = answer.state in wording.MARKS
    boxes = [
        DrawnBox(box=box, tracking=tracking, label=label, is_dashed=is_dashed)
        for tracking, box in answer_wording.located(asked)
    ]
    heading = [identity.RESEARCH_LABEL, "Answer to one question", gsps.SQUARE_LINE]
    if answer.question.box is not None:
        heading.append("Dashed in its own layer: box that was asked about")
        boxes.append(_asked_box(asked, answer.question.box, label="" if boxes else label))
    elif not boxes:
        heading.append(label if answer.state is not None and not answer.state.is_reported else f"{label}: not located")
    origin = asked.origin
    return State(
        series_number=SERIES_NUMBER,
        series=document.series_description(answer_wording.title(asked), film=header),
        about=identity.answer_of(asked.id),
        label="AI ANSWER",
        description="answer" if origin is None else f"answer, version {origin.version}",
        heading=(*heading, *wording.cautions(film)),
        boxes=boxes,
        after=0 if origin is None else origin.instance_number + origin.number - 1,
    )


def _asked_box(asked: AskedQuestion, box: Box, *, label: str) -> DrawnBox:
    """Return the drawn box that was asked about; it keeps the tracking that the workstation gave it."""
    named, uid = ("", "") if asked.origin is None else asked.origin.tracking
    own = short_text(named) or "Asked"
    tracking = (own, uid if is_uid(uid) else answer_wording.tracking_uid(asked, box, role="asked"))
    return DrawnBox(box=box, tracking=tracking, label=label, is_dashed=True, layer=gsps.ASKED)
