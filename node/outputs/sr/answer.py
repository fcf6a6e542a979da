"""The structured report on one question that a person asked about a film, with its answer.

It has the form of a film's report: TID 1500 with a group for each box where the network locates what was asked for, or
a text (TID 2000) if it locates nothing, because OHIF 3.13.2 cannot load a TID 1500 report without a group. No group
names a finding by a code, so no program counts an answer as a finding of the film's report. Each answer has a series of
its own, because OHIF shows one report of a series. The question refers to the region that was asked about.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Final
from zoneinfo import ZoneInfo

from highdicom.sr import ContainerContentItem, ContentItem
from pydicom.dataset import Dataset
from pydicom.sr.coding import Code as Concept

from node.dicom import identity
from node.domain import About, Film, FindingState, Report, Subject
from node.outputs import answer_wording, document, wording
from node.outputs.asked import AskedQuestion
from node.outputs.kinds import Written
from node.outputs.patient import short_text
from node.outputs.sr import findings, text_report
from node.outputs.sr.findings import PRIVATE_SCHEME, STATES
from node.outputs.sr.forms import COMPREHENSIVE, COMPREHENSIVE_3D, Form
from node.outputs.sr.items import (
    FINDING,
    container,
    impression_text,
    inferred_from,
    person,
    region,
    source_object,
    text,
)
from node.outputs.sr.report import TEMPLATE, Draft, document_of, tree_of

SERIES_NUMBERS: Final = {COMPREHENSIVE.kind: 9007, COMPREHENSIVE_3D.kind: 9017}
QUESTION = Concept("QUESTION", PRIVATE_SCHEME, "Question that a person asked")
ASKED_FOR = Concept("ASKEDFOR", PRIVATE_SCHEME, "What was asked for")


def form_of(asked: AskedQuestion, kind: str) -> Form:
    """Return the form of an answer's report for a kind of output; one without a located box is a Comprehensive SR."""
    return COMPREHENSIVE_3D if kind == COMPREHENSIVE_3D.kind and answer_wording.located(asked) else COMPREHENSIVE


def write(asked: AskedQuestion, report: Report, source: Dataset, zone: ZoneInfo, *, form: Form) -> Written:
    """Write the report on a question; report: of the film alone, without findings (`answers.write_objects`)."""
    [film] = report.films
    asked_by = [] if asked.origin is None else [asked.origin.reference]
    is_report = asked.origin is not None and asked.origin.is_report
    draft = Draft(
        form=form,
        series_number=SERIES_NUMBERS[form.kind],
        series_description=document.series_description(answer_wording.title(asked), film=source),
        series_about=identity.answer_of(asked.id),
        subject=Subject(about=About.ANSWER, film=film.source),
        template=TEMPLATE if answer_wording.located(asked) else text_report.TEMPLATE,
        patient=source,
        films=[source],
        evidence=[] if is_report else asked_by,
        schemes={PRIVATE_SCHEME},
        replaced=asked_by if is_report else [],
    )
    tree = _tree(asked, report, film, source)
    return document_of(draft, report, lambda _version: tree, zone=zone)


def _tree(asked: AskedQuestion, report: Report, film: Film, source: Dataset) -> ContainerContentItem:
    lines, by = answer_wording.lines(asked, film), person(asked.asked_by)
    question = _question(asked, source)
    if answer_wording.located(asked):
        evaluations = container(findings.QUALITATIVE_EVALUATIONS, content=[question])
        groups = _measurements(asked, report, source)
        first = impression_text(lines)
        return tree_of(report, film, source, first=first, groups=groups, evaluations=evaluations, persons=by)
    about = inferred_from(text(wording.wrapped(wording.looked_at(film)), name=FINDING), source_object(source))
    return text_report.tree_of(report, lines, [question, about], films=[film], persons=by)


def _question(asked: AskedQuestion, source: Dataset) -> ContentItem:
    box = asked.answer.question.box
    ground = source_object(source) if box is None else region(box, source)
    return inferred_from(text(wording.wrapped(answer_wording.question(asked)), name=QUESTION), ground)


def _measurements(asked: AskedQuestion, report: Report, source: Dataset) -> list[findings.Group]:
    made_by, answer, about = findings.algorithm(report), asked.answer, answer_wording.sentence(asked)
    return [
        findings.group_of(
            made_by,
            tracking,
            box,
            source,
            number=findings.share(quantity_name(asked), answer.score or 0.0),
            states=_states(answer.state),
            label=answer_wording.label(asked),
            comments=[text(about)] if about else [],
        )
        for tracking, box in answer_wording.located(asked)
    ]


def quantity_name(asked: AskedQuestion) -> Concept:
    """Return the name of an answer's number: what was asked for, because OHIF 3.13.2 labels a box with it.

    The code ends with a hash of the name, so that one code never has two meanings.
    """
    state = asked.answer.state
    letter, end = ("S", ", AI score") if state is None else ("P", ", AI")
    if state in wording.MARKS:
        letter, end = "R", ", review, AI"
    meaning = short_text(answer_wording.name(asked), 64 - len(end)) + end
    return Concept(f"{letter}ASKEDFOR-{hashlib.sha256(meaning.encode()).hexdigest()[:6]}", PRIVATE_SCHEME, meaning)


def _states(state: FindingState | None) -> Iterator[tuple[Concept, Concept]]:
    """Yield the state of what was asked for; a region has none."""
    if state is not None:
        yield ASKED_FOR, STATES[state]
