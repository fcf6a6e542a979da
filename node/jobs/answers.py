"""Sends the answer to a question as DICOM objects: takes the request, and makes the objects from question and film.

A request is stored before it is queued, so it survives the loss of the databases. It is queued under an id that names
the question: sent twice, it is sent once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from node.domain import OutputObject
from node.errors import InputError
from node.outputs import answers, asked, document, writers
from node.outputs.asked import AskedQuestion
from node.pipeline import Pipeline
from node.rounds.planned import Round
from node.settings.destinations import DestinationSettings
from node.store import questions
from node.store.questions import SentAnswer
from node.store.received import Instance
from node.store.spool import Spool
from node.store.study_facts import require_valid

_NOBODY_TAKES_IT: Final = "no destination takes answers: add sr, sr3d or gsps to the outputs of a DICOM destination"


def send_answer(
    spool: Spool,
    *,
    study_uid: str,
    question_id: str,
    destinations: Iterable[DestinationSettings],
    run_answer: Callable[[str, str], None],
) -> SentAnswer:
    """Take an answer for sending, and return what is known of it; repeated, nothing is sent twice.

    run_answer: `executor.Client.run_answer`
    If that raises because the database does not answer, the request is stored, and the next start follows it.
    Raises InputError for a question that is unknown or has no answer, and if no destination takes answers.
    """
    known = take(spool, stored_question(spool, study_uid, question_id), destinations=destinations)
    run_answer(study_uid, question_id)
    return known


def take(spool: Spool, question: AskedQuestion, *, destinations: Iterable[DestinationSettings]) -> SentAnswer:
    """Store that an answer is to be sent, synced, unless that is stored; the caller queues it.

    Raises InputError for a question without an answer or about a rejected film, and if no destination takes answers.
    """
    answers.check_answered(question)
    _require_valid_film(spool, question)
    if not any(kind in answers.KINDS for destination in destinations for kind in destination.outputs):
        raise InputError(_NOBODY_TAKES_IT)
    known = questions.find_answer(spool, question.study_uid, question.id)
    if known is None:
        known = SentAnswer(question=question.id, requested_at=datetime.now(UTC).replace(microsecond=0))
        questions.keep_answer(spool, question.study_uid, known)
    return known


def stored_question(spool: Spool, study_uid: str, question_id: str) -> AskedQuestion:
    """Return a stored question. Raises InputError if the node does not have it, or it is damaged."""
    content = questions.question(spool, study_uid, question_id)
    try:
        return asked.from_json(content)
    except ValueError as error:
        raise InputError("the stored question is damaged; ask again") from error


def objects_of(pipeline: Pipeline, question: AskedQuestion) -> Iterator[tuple[OutputObject, bytes]]:
    """Yield the objects of an answer in every kind that a destination takes, with their content.

    Raises InputError if they cannot be made any more: the model has changed, or the film is gone, rejected or damaged.
    """
    if question.weights_sha256 != pipeline.reader.identity.weights_sha256:
        raise InputError("another model gave this answer than the one that runs now; ask again")
    film = _require_valid_film(pipeline.spool, question)
    if film is None:
        raise InputError("the film of this question was removed from this node; nothing was sent")
    # Number 1 has no predecessor, and nothing of this round is stored: it only collects the film's stored answer.
    plan = Round(study_uid=question.study_uid, number=1, files=(film.path.name,), created_at=question.asked_at)
    found = pipeline.answers(plan)
    if not found.report.read_films:
        raise InputError("the film of this question cannot be read any more; see its report")
    [alone] = found.parts
    source = alone.sources[question.film]
    kinds = [kind for kind in answers.KINDS if kind in pipeline.kinds]
    with pipeline.spool.work.together():
        for written in answers.write_objects(question, alone.report, source, zone=pipeline.zone, kinds=kinds):
            output = replace(writers.output_of(written), identity=alone.identity)
            yield output, document.save_bytes(written.dataset)


def _require_valid_film(spool: Spool, question: AskedQuestion) -> Instance | None:
    """Return the film of a question, None if it is removed. Raises InputError if an archive has rejected it."""
    instances = spool.study(question.study_uid).instances
    film = next((found for found in instances if found.sop_instance_uid == question.film), None)
    if film is not None:
        require_valid(spool, film)
    return film


def rewrite(pipeline: Pipeline, study_uid: str) -> None:
    """Write the missing or damaged objects of sent answers again, if their question still yields the same objects."""
    spool = pipeline.spool
    for answer in questions.answers_of(spool, study_uid):
        lost = {output for output in answer.outputs if spool.output(output) is None}
        if not lost:
            continue
        with suppress(InputError):  # the delivery is parked, because its output is still lost
            question = stored_question(spool, study_uid, answer.question)
            for output, content in objects_of(pipeline, question):
                if output in lost:
                    spool.keep_output(output, content)
