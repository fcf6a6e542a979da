"""Sends the answer to a question as DICOM objects: stores the request, writes the objects, records their deliveries.

A request is stored before it is queued, so it survives a loss of the databases. Its workflow's id contains the
question's id, so an answer that is requested twice is sent once.

The step of the workflow `answer` may run again. It notes the written objects beside the question, so a repetition sends
the same objects. If an answer cannot be sent, the reason is stored there; the study and its reports do not change.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from node import log
from node.deliver.results import Queued, delivery_of
from node.domain import Delivery, DeliveryState, OutputObject
from node.errors import InputError, ModelLost, is_of_disk, reason_of
from node.metrics import Metrics
from node.outputs import answers, asked_question, document, writers
from node.outputs.asked_question import AskedQuestion
from node.outputs.writers import with_receivers
from node.pipeline import Pipeline
from node.rounds.round_plan import Round
from node.settings.destinations import DestinationSettings
from node.store import questions
from node.store.ledger import Ledger, is_away
from node.store.questions import SentAnswer
from node.store.received import Instance
from node.store.spool import Spool
from node.store.study_facts import StudyFacts, film_in, load, require_valid

_NOBODY_TAKES_IT: Final = "no destination takes answers: add sr, sr3d or gsps to the outputs of a DICOM destination"


def take(spool: Spool, question: AskedQuestion, *, destinations: Iterable[DestinationSettings]) -> SentAnswer:
    """Store the request to send an answer, synced, unless it exists; the caller queues it, or the next start does.

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
        return asked_question.question_from_json(content)
    except ValueError as error:
        raise InputError("the stored question is damaged; ask again") from error


def objects_of(pipeline: Pipeline, question: AskedQuestion) -> Iterator[tuple[OutputObject, bytes]]:
    """Yield the objects of an answer, of every kind that a destination takes, with their content.

    Raises InputError if they cannot be made any more: the model has changed, or the film is gone, rejected or damaged.
    """
    if question.weights_sha256 != pipeline.films.reader.identity.weights_sha256:
        raise InputError("this answer is by another model than the one that runs now; ask again")
    film = _require_valid_film(pipeline.spool, question)
    if film is None:
        raise InputError("the film of this question was removed from this node; nothing was sent")
    # Number 1 has no predecessor. This round is never stored; it only collects the film's stored answer.
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
    if (film := film_in(spool, question.study_uid, question.film)) is not None:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerSteps:
    """The step of the workflow `answer`; pipeline: returns the one in use."""

    pipeline: Callable[[], Pipeline]
    ledger: Ledger
    metrics: Metrics
    destinations: Mapping[str, DestinationSettings]

    def write(self, study_uid: str, question_id: str) -> Queued:
        """Write an answer's objects and record a delivery per destination; no delivery if it cannot be sent."""
        try:
            outputs = self._written(study_uid, question_id)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a boundary: an unforeseen error in one answer must not stop other work
            if is_of_disk(error) or is_away(error) or isinstance(error, ModelLost):
                raise
            reason, failure = reason_of(error)
            self.metrics.failures.labels("answer", failure).inc()
            self.refuse(study_uid, question_id, reason=reason)
            outputs = ()
        found = {name: self._open(outputs, settings) for name, settings in self.destinations.items()}
        for delivery in itertools.chain.from_iterable(found.values()):
            self.ledger.add_delivery(delivery)
        return Queued(deliveries={name: queued for name, queued in found.items() if queued}, started=time.time())

    def _open(self, outputs: Iterable[OutputObject], settings: DestinationSettings) -> tuple[Delivery, ...]:
        """Return an answer's deliveries to one destination that were not sent before."""
        found = [delivery_of(settings.name, output) for output in outputs if settings.name in output.receivers]
        is_open = (None, DeliveryState.WAITING)
        return tuple(delivery for delivery in found if self.ledger.delivery_state(delivery) in is_open)

    def _written(self, study_uid: str, question_id: str) -> tuple[OutputObject, ...]:
        """Return an answer's objects; they were written and released before, or are now.

        The objects are stored beside the question first, and objections are searched for afterwards. A round does the
        opposite: it starts after a note or a corrected film is stored, and then searches for stored answers. So in any
        order of events, one of the two finds the other.
        """
        pipeline = self.pipeline()
        spool = pipeline.spool
        known = questions.find_answer(spool, study_uid, question_id)
        if known is None:
            raise InputError("nobody asked to send this answer, or its study was removed")
        if not known.is_open:
            return known.outputs
        question = stored_question(spool, study_uid, question_id)
        while True:
            version = _versions(load(spool, study_uid)).get(question.film)
            known = self._stored(known, question, pipeline=pipeline)
            facts = load(spool, study_uid)
            if question.film in facts.rejected:
                raise InputError("the archive has rejected the film of this question; nothing was sent")
            if version == _versions(facts).get(question.film):
                break
        questions.keep_answer(spool, study_uid, replace(known, is_released=True))
        log.get().info("answer.written", study=study_uid, outputs=len(known.outputs))
        return known.outputs

    def _stored(self, known: SentAnswer, question: AskedQuestion, *, pipeline: Pipeline) -> SentAnswer:
        """Write an answer's objects with the film's current patient data, and store their list; nothing is sent yet."""
        spool, outputs = pipeline.spool, []
        with self.metrics.timed("write"):
            for output, content in objects_of(pipeline, question):
                spool.keep_output(output, content)
                outputs.append(output)
        if not outputs:
            raise InputError("no destination takes the objects of this answer")
        wanted = {name: settings.outputs for name, settings in self.destinations.items()}
        stored = replace(known, outputs=with_receivers(outputs, wanted))
        questions.keep_answer(spool, question.study_uid, stored)
        return stored

    def refuse(self, study_uid: str, question_id: str, *, reason: str) -> None:
        """Store why an answer cannot be sent, and that it has no objects; a person may ask again."""
        spool = self.pipeline().spool
        known = questions.find_answer(spool, study_uid, question_id)
        if known is not None:
            questions.keep_answer(spool, study_uid, replace(known, outputs=(), reason=reason))
        log.get().error("answer.refused", study=study_uid, reason=reason)


def _versions(facts: StudyFacts) -> dict[str, str]:
    """Return the file of the newest version of each received object, by SOP Instance UID."""
    return {instance.sop_instance_uid: instance.path.name for instance in facts.instances}
