"""The DICOM objects of one question that a person asked about a film: a structured report and a presentation state.

They are made from the stored question and the film alone, so a repetition gives the same objects, byte for byte.

The report is built like a film's report: TID 1500 with a group for each located box, or a text (TID 2000) if there is
none, because OHIF 3.13.2 cannot load a TID 1500 report without a group. No group names a finding by a code, so no
program counts an answer as a finding of the film's report. Each answer has a series of its own, because OHIF shows one
report of a series. The question refers to the region that it is about.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Final
from zoneinfo import ZoneInfo

from highdicom.sr import ContainerContentItem, ContentItem
from pydicom.dataset import Dataset
from pydicom.sr.coding import Code as Concept

from models.contract import Box, FindingState
from node.dicom import identity
from node.domain import About, Film, Report, Subject, is_uid
from node.errors import InputError
from node.output_kinds import Written
from node.outputs import asked_question, document, gsps, vocabulary, wording
from node.outputs.asked_question import AskedQuestion
from node.outputs.gsps import DrawnBox, State
from node.outputs.patient import short_text
from node.outputs.source import Source
from node.outputs.sr import findings, text_report
from node.outputs.sr.findings import PRIVATE_SCHEME, STATES
from node.outputs.sr.items import (
    COMPREHENSIVE,
    COMPREHENSIVE_3D,
    OF_ANSWER,
    Form,
    container,
    impression_text,
    inferred_from,
    person,
    region,
    source_object,
    text,
)
from node.outputs.sr.report import TEMPLATE, Draft, document_of, tree_of

KINDS: Final = (COMPREHENSIVE.kind, COMPREHENSIVE_3D.kind, gsps.KIND)
"""Kinds of outputs of an answer; a destination that takes none of them gets no answers."""

SERIES_NUMBER: Final = 9006
"""Of the presentation states of answers."""
QUESTION = Concept("QUESTION", PRIVATE_SCHEME, "Question that a person asked")
ASKED_FOR = Concept("ASKEDFOR", PRIVATE_SCHEME, "What was asked for")


def check_answered(asked: AskedQuestion) -> None:
    """Raise InputError for a question that has no answer: there is nothing to send."""
    if asked.answer.never_learned:
        raise InputError("the question has words that this model never learned; there is no answer to send")


def write_objects(
    asked: AskedQuestion, report: Report, source: Source, *, zone: ZoneInfo, kinds: Collection[str]
) -> Iterator[Written]:
    """Write the objects of the wanted kinds, each once.

    report: the report on the film's study at the time of the question; its first film is the question's film
    Raises InputError for a question without an answer, a film that was not read, and a box outside the film.
    """
    check_answered(asked)
    alone = _without_findings(report)
    film = alone.films[0]
    _check_boxes(asked, film)
    for form in dict.fromkeys(form_of(asked, kind) for kind in KINDS[:2] if kind in kinds):
        yield write_report(asked, alone, source.header, zone, form=form)
    if gsps.KIND in kinds:
        state = gsps.draw(alone, film, source, zone, state=_state(asked, film, source.header))
        yield Written(kind=gsps.KIND, dataset=state, subject=Subject(about=About.ANSWER, film=film.source))


def _without_findings(report: Report) -> Report:
    """Return a report on its first film that has only the film's analysis, without findings."""
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
    """Return the content of the presentation state: located boxes, and the question's box dashed.

    The label stands beside each located box, else beside the question's box, else in the heading.
    """
    answer, label = asked.answer, asked_question.label(asked)
    is_dashed = answer.state in vocabulary.MARKS
    boxes = [
        DrawnBox(box=box, tracking=tracking, label=label, is_dashed=is_dashed)
        for tracking, box in asked_question.located(asked)
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
        series=document.series_description(asked_question.title(asked), film=header),
        about=identity.answer_of(asked.id),
        label="AI ANSWER",
        description="answer" if origin is None else f"answer, version {origin.version}",
        heading=(*heading, *wording.cautions(film)),
        boxes=boxes,
        after=0 if origin is None else origin.instance_number + origin.number - 1,
    )


def _asked_box(asked: AskedQuestion, box: Box, *, label: str) -> DrawnBox:
    """Return the question's box, as drawn; it keeps the tracking of the workstation."""
    named, uid = ("", "") if asked.origin is None else asked.origin.tracking
    own = short_text(named) or "Asked"
    tracking = (own, uid if is_uid(uid) else asked_question.tracking_uid(asked, box, role="asked"))
    return DrawnBox(box=box, tracking=tracking, label=label, is_dashed=True, layer=gsps.ASKED)


def form_of(asked: AskedQuestion, kind: str) -> Form:
    """Return the form of an answer's report for a kind of output; one without a located box is a Comprehensive SR."""
    return COMPREHENSIVE_3D if kind == COMPREHENSIVE_3D.kind and asked_question.located(asked) else COMPREHENSIVE


def write_report(asked: AskedQuestion, report: Report, source: Dataset, zone: ZoneInfo, *, form: Form) -> Written:
    """Write the report on a question; report: on the film alone, without findings (`answers.write_objects`)."""
    [film] = report.films
    asked_by = [] if asked.origin is None else [asked.origin.reference]
    is_report = asked.origin is not None and asked.origin.is_report
    draft = Draft(
        form=form,
        series_number=form.first + OF_ANSWER,
        series_description=document.series_description(asked_question.title(asked), film=source),
        series_about=identity.answer_of(asked.id),
        subject=Subject(about=About.ANSWER, film=film.source),
        template=TEMPLATE if asked_question.located(asked) else text_report.TEMPLATE,
        patient=source,
        films=[source],
        evidence=[] if is_report else asked_by,
        schemes={PRIVATE_SCHEME},
        replaced=asked_by if is_report else [],
    )
    tree = _tree(asked, report, film, source)
    return document_of(draft, report, lambda _version: tree, zone=zone)


def _tree(asked: AskedQuestion, report: Report, film: Film, source: Dataset) -> ContainerContentItem:
    lines, by = asked_question.lines(asked, film), person(asked.asked_by)
    question = _question(asked, source)
    if asked_question.located(asked):
        evaluations = container(findings.QUALITATIVE_EVALUATIONS, content=[question])
        groups = _measurements(asked, report, source)
        first = impression_text(lines)
        return tree_of(report, film, source, first=first, groups=groups, evaluations=evaluations, persons=by)
    about = inferred_from(text(wording.limits(film)), source_object(source))
    return text_report.tree_of(report, lines, [question, about], films=[film], persons=by)


def _question(asked: AskedQuestion, source: Dataset) -> ContentItem:
    box = asked.answer.question.box
    ground = source_object(source) if box is None else region(box, source)
    return inferred_from(text(asked_question.question(asked), name=QUESTION), ground)


def _measurements(asked: AskedQuestion, report: Report, source: Dataset) -> list[findings.Group]:
    made_by, answer, about = findings.algorithm(report), asked.answer, asked_question.sentence(asked)
    return [
        findings.group_of(
            made_by,
            tracking,
            box,
            source,
            number=findings.share(quantity_name(asked), answer.score or 0.0),
            states=_states(answer.state),
            label=asked_question.label(asked),
            comments=[text(about)] if about else [],
        )
        for tracking, box in asked_question.located(asked)
    ]


def quantity_name(asked: AskedQuestion) -> Concept:
    """Return the name of an answer's number: the question's subject, because OHIF 3.13.2 labels a box with it.

    The code ends with a hash of the name, so that one code never has two meanings.
    """
    state = asked.answer.state
    letter, end = ("S", ", AI score") if state is None else ("P", ", AI")
    if state in vocabulary.MARKS:
        letter, end = "R", ", review, AI"
    meaning = short_text(asked_question.name(asked), 64 - len(end)) + end
    return Concept(f"{letter}ASKEDFOR-{hashlib.sha256(meaning.encode()).hexdigest()[:6]}", PRIVATE_SCHEME, meaning)


def _states(state: FindingState | None) -> Iterator[tuple[Concept, Concept]]:
    """Yield the coded state of the question's finding; a region has none."""
    if state is not None:
        yield ASKED_FOR, STATES[state]
