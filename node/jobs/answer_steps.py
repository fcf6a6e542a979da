"""The step of the workflow `answer`: writes the objects of one answer, and records their deliveries.

It may run again: what is written is noted beside the question, so a repetition sends the same objects, or none was sent
before. An answer that cannot be sent keeps the reason there; neither its study nor the study's reports change.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from node import log
from node.deliver.results import Queued
from node.domain import Delivery, DeliveryState, OutputObject
from node.errors import InputError, ModelLost, is_of_disk, reason_of
from node.jobs.answers import objects_of, stored_question
from node.jobs.round_steps import delivery_of
from node.metrics import Metrics
from node.outputs.asked import AskedQuestion
from node.outputs.writers import with_receivers
from node.pipeline import Pipeline
from node.settings.destinations import DestinationSettings
from node.store import questions
from node.store.ledger import Ledger, is_away
from node.store.questions import SentAnswer
from node.store.study_facts import StudyFacts, load


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerSteps:
    """The step of the workflow `answer`; pipeline: returns the one in use."""

    pipeline: Callable[[], Pipeline]
    ledger: Ledger
    metrics: Metrics
    destinations: Mapping[str, DestinationSettings]

    def write(self, study_uid: str, question_id: str) -> Queued:
        """Write the objects of an answer, and record a delivery per destination; no delivery if it cannot be sent."""
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
        """Return what a destination is to get of an answer and did not get before."""
        found = [delivery_of(settings.name, output) for output in outputs if settings.name in output.receivers]
        is_open = (None, DeliveryState.WAITING)
        return tuple(delivery for delivery in found if self.ledger.delivery_state(delivery) in is_open)

    def _written(self, study_uid: str, question_id: str) -> tuple[OutputObject, ...]:
        """Return the objects of an answer; they were written and released before, or are now.

        They are stored beside the question first, and what speaks against them is looked for after that. A round does
        it the other way round: it begins after a note or a corrected film is stored, and then looks which answers are
        stored. So whatever comes meanwhile is found here, or finds the answer there, whichever process does either.
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
        """Write the objects of an answer under the patient of now, and store which they are; nothing is sent yet."""
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
        """Note why an answer cannot be sent, and that it has no objects; a person may ask again."""
        spool = self.pipeline().spool
        known = questions.find_answer(spool, study_uid, question_id)
        if known is not None:
            questions.keep_answer(spool, study_uid, replace(known, outputs=(), reason=reason))
        log.get().error("answer.refused", study=study_uid, reason=reason)


def _versions(facts: StudyFacts) -> dict[str, str]:
    """Return the file of the newest version of each received object, by SOP Instance UID."""
    return {instance.sop_instance_uid: instance.path.name for instance in facts.instances}
