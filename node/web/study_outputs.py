"""The outputs of a study that stand on its page and may be downloaded: those of its rounds, and of sent answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from node.domain import NO_PART, About, OutputObject, Subject
from node.errors import InputError
from node.jobs.answer_steps import stored_question
from node.outputs import asked_question
from node.outputs.sr.items import FORMS
from node.store import questions
from node.store.rounds import RoundMark
from node.store.spool import Spool


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyOutput:
    """An output that a round wrote, or that was written for a sent answer.

    kind: see `OutputObject.kind`
    film, about: SOP Instance UID of its film, "" if it has none; and its subject
    films: those of the films that it is about, if it is about some of a study of several patients or accession numbers
    round: its number; None for an answer
    version: version number in its own text; 0 for an answer
    question: id of the question that it answers; "" for an output of a round
    asked: the question's subject, in words; "" if the question is damaged
    written_at: when its round began, or the answer was sent
    is_there: whether the node still has it
    """

    kind: str
    uid: str
    film: str
    about: About
    films: tuple[str, ...] = ()
    round: int | None = None
    version: int = 0
    question: str = ""
    asked: str = ""
    written_at: datetime
    is_there: bool


def outputs_of(study_uid: str, spool: Spool) -> Iterator[StudyOutput]:
    """Yield the outputs of all rounds, each once, the newest round first, then those of sent answers in their order."""
    yielded, rounds = set(), spool.rounds(study_uid)
    versions = _versions(rounds)
    for mark in reversed(rounds):
        for output in mark.outputs:
            if output.sop_instance_uid in yielded:
                continue
            yielded.add(output.sop_instance_uid)
            is_of_part = not output.subject.film and output.part != NO_PART
            yield StudyOutput(
                kind=output.kind,
                uid=output.sop_instance_uid,
                film=output.subject.film,
                about=output.subject.about,
                films=tuple(sorted(mark.films_beside(output))) if mark.parts and is_of_part else (),
                round=mark.number,
                version=versions[output.sop_instance_uid],
                written_at=mark.created_at,
                is_there=spool.has_output(output),
            )
    for answer in questions.answers_of(spool, study_uid):
        asked = _asked(spool, study_uid, answer.question)
        for output in answer.outputs:
            yield StudyOutput(
                kind=output.kind,
                uid=output.sop_instance_uid,
                film=output.subject.film,
                about=output.subject.about,
                question=answer.question,
                asked=asked,
                written_at=answer.requested_at,
                is_there=spool.has_output(output),
            )


def _versions(rounds: Iterable[RoundMark]) -> dict[str, int]:
    """Return the version of each output, by its UID, counted like `Report.version`; rounds: oldest first."""
    versions: dict[str, int] = {}
    newest = Counter[tuple[str, Subject, int]]()
    for mark in rounds:
        fresh = [output for output in mark.outputs if output.sop_instance_uid not in versions]
        newest.update({_document(output) for output in fresh})
        versions |= {output.sop_instance_uid: newest[_document(output)] for output in fresh}
    return versions


def _document(output: OutputObject) -> tuple[str, Subject, int]:
    """Return the document of which an output is a version: all forms of a report are one document."""
    return "report" if output.kind in FORMS else output.kind, output.subject, output.part


def find_output(spool: Spool, uid: str) -> tuple[OutputObject, bytes | None] | None:
    """Return an output of any study and its bytes, None if they are removed or damaged; None if it is unknown."""
    written = (output for study_uid in spool.find_studies(uid) for output in _all_outputs(study_uid, spool))
    found = next((output for output in written if output.sop_instance_uid == uid), None)
    return None if found is None else (found, spool.output(found))


def _asked(spool: Spool, study_uid: str, question_id: str) -> str:
    """Return a question's subject, in words; "" if the question is damaged."""
    try:
        return asked_question.name(stored_question(spool, study_uid, question_id))
    except InputError:
        return ""


def _all_outputs(study_uid: str, spool: Spool) -> Iterator[OutputObject]:
    for mark in spool.rounds(study_uid):
        yield from mark.outputs
    yield from questions.answer_outputs(spool, study_uid)
