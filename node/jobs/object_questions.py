"""Answers the questions in stored objects of workstations.

`take` marks an object beside its study before it is queued; an open mark is followed after any crash. The questions'
ids are derived from the object's UID, so a step that runs again finds what it has answered. Each answer is then sent
like one that a person sends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from models.contract import Box, Question
from node import log
from node.config import QuestionsSettings
from node.dicom import attributes, header_reading, question_object
from node.dicom.marked_question import LeftOut, MarkedQuestion, clipped
from node.dicom.question_object import SOP_CLASSES, QuestionObject
from node.errors import InputError, ModelLost, RetryLater, is_of_disk, reason_of
from node.jobs import answer_steps
from node.jobs.question_answerer import QuestionAnswerer
from node.metrics import Metrics
from node.outputs.asked_question import Origin
from node.settings.destinations import DestinationSettings
from node.store import received, rounds
from node.store.ledger import is_away
from node.store.questions import ObjectMark, find_object, keep_object, objects_of
from node.store.received import Instance
from node.store.spool import Spool
from node.store.study_facts import film_in


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """The outcome of one look at an object.

    questions: ids of the questions whose answers are to be sent
    wait_seconds: until the next look, if its film is not here yet
    """

    questions: tuple[str, ...] = ()
    wait_seconds: float | None = None


_CHANGED: Final = "it came again with other bytes; the first version counts, so save a changed question as a new object"
_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 1.0, 60.0


def take(spool: Spool, study_uid: str, *, settings: QuestionsSettings, run_object: Callable[[str, str], None]) -> None:
    """Mark and queue the objects of a study that may be questions and that no round has covered; may be repeated.

    run_object: `executor.Client.run_object`; the same object is queued once
    An object that a round covered while the settings allowed no questions is not taken later.
    """
    if not settings.is_on:
        return
    known = {mark.sop_instance_uid: mark for mark in objects_of(spool, study_uid)}
    for instance in _candidates(spool, study_uid):
        mark = known.get(instance.sop_instance_uid)
        if mark is None:
            mark = ObjectMark(file=instance.path.name, received_at=instance.received_at)
            keep_object(spool, study_uid, mark)
        elif mark.file != instance.path.name:
            _ignored(study_uid, instance.sop_instance_uid, _CHANGED)
        if mark.is_open:
            run_object(study_uid, mark.sop_instance_uid)


def _candidates(spool: Spool, study_uid: str) -> Iterator[Instance]:
    covered = rounds.covered(spool.rounds(study_uid))
    for instance in spool.instances(study_uid):
        if instance.path.name not in covered and question_object.class_of(instance.path) in SOP_CLASSES:
            yield instance


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectSteps:
    """The step of the workflow `question`."""

    spool: Spool
    answerer: QuestionAnswerer
    metrics: Metrics
    settings: QuestionsSettings
    destinations: Mapping[str, DestinationSettings]

    def look(self, study_uid: str, sop_instance_uid: str) -> Looked:
        """Answer the questions in an object."""
        mark = find_object(self.spool, study_uid, sop_instance_uid)
        if mark is None or not mark.is_open:
            return Looked() if mark is None else Looked(questions=mark.questions)
        try:
            closed = self._answered(study_uid, mark)
        except RetryLater as error:
            age_seconds = (datetime.now(UTC) - mark.received_at).total_seconds()
            if age_seconds < 60 * self.settings.wait_minutes:
                return Looked(wait_seconds=min(max(age_seconds / 4, _FIRST_WAIT_SECONDS), _LONGEST_WAIT_SECONDS))
            closed = self._refused(study_uid, mark, f"{error}; nobody waits any longer")
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a boundary: an unforeseen error in one object must not stop other work
            if is_of_disk(error) or is_away(error) or isinstance(error, ModelLost):
                raise
            reason, failure = reason_of(error)
            self.metrics.failures.labels("question", failure).inc()
            closed = self._refused(study_uid, mark, reason)
        keep_object(self.spool, study_uid, closed)
        return Looked(questions=closed.questions)

    def refuse(self, study_uid: str, sop_instance_uid: str, *, reason: str) -> None:
        """Store why an object gets no answer, unless it has one."""
        mark = find_object(self.spool, study_uid, sop_instance_uid)
        if mark is not None and mark.is_open:
            keep_object(self.spool, study_uid, self._refused(study_uid, mark, reason))

    def _answered(self, study_uid: str, mark: ObjectMark) -> ObjectMark:
        """Answer an object, and return its closed mark.

        Raises InputError or Undecodable with the reason for an object that is not answered, and RetryLater.
        """
        path = self.spool.received_path(study_uid, mark.file)
        if not received.is_intact(path):
            raise InputError("the stored object is damaged or removed; send it again under another UID")
        dataset = header_reading.read_header(path, character_set=self.spool.character_set)
        asked = question_object.read(dataset)
        sender = question_object.sender_of(dataset)
        reason = objection(asked, sender, self.settings)
        if reason is not None:
            _ignored(study_uid, mark.sop_instance_uid, reason)
            return replace(mark, is_open=False, reasons=(reason,))
        sent, reasons = [], list(asked.left_out)
        for number, drawn in enumerate(asked.questions, 1):
            found = self._ask(study_uid, asked, drawn, number=number)
            if isinstance(found, LeftOut):
                reasons.append(found.reason)
            else:
                sent.append(found)
        reasons = list(dict.fromkeys(reasons))
        if not sent:
            raise InputError("; ".join(reasons) or "it has no graphic and no text that refers to a film")
        log.get().info(
            "question.answered",
            study=study_uid,
            sop_instance_uid=mark.sop_instance_uid,
            calling_aet=sender,
            questions=len(sent),
            reason="; ".join(reasons),
        )
        return replace(mark, is_open=False, questions=tuple(sent), reasons=tuple(reasons))

    def _ask(self, study_uid: str, asked: QuestionObject, drawn: MarkedQuestion, *, number: int) -> str | LeftOut:
        """Answer one question and store the request to send its answer; return its id, or why it is left out.

        Raises RetryLater if the film has not arrived.
        """
        film = film_in(self.spool, study_uid, drawn.film)
        if film is None:
            raise RetryLater("the film of the question did not arrive in this study")
        origin = Origin(
            reference=asked.reference,
            number=number,
            instance_number=asked.instance_number,
            is_report=asked.is_report,
            tracking=drawn.tracking,
        )
        try:
            stored = answer_steps.stored_question(self.spool, study_uid, origin.question_id(study_uid))
        except InputError:  # it was not asked yet
            box = None if drawn.box is None else _on_film(drawn.box, film)
            if isinstance(box, LeftOut):
                return box
            question = Question(prompt=drawn.prompt, box=box)
            try:
                (stored,) = self.answerer.ask(film, [question], by=asked.asked_by, source="dicom", origins=[origin])
            except InputError as error:
                return LeftOut(reason=str(error))
        try:
            answer_steps.take(self.spool, stored, destinations=self.destinations.values())
        except InputError as error:
            return LeftOut(reason=str(error))
        return stored.id

    def _refused(self, study_uid: str, mark: ObjectMark, reason: str) -> ObjectMark:
        path = self.spool.received_path(study_uid, mark.file)
        header = header_reading.header_of(path, character_set=self.spool.character_set)
        log.get().warning(
            "question.refused",
            study=study_uid,
            sop_instance_uid=mark.sop_instance_uid,
            calling_aet="" if header is None else question_object.sender_of(header),
            reason=reason,
        )
        return replace(mark, is_open=False, reasons=(reason,))


def objection(asked: QuestionObject, ae_title: str, settings: QuestionsSettings) -> str | None:
    """Return why the settings do not accept an object as a question; None if they do. The node's own never are.

    ae_title: the sender's AE title, "" if it has none
    """
    if asked.is_own:
        return "the node wrote this object"
    if not settings.is_on:
        return "the settings name no objects that are questions"
    if settings.ae_titles and ae_title not in settings.ae_titles:
        return "its sender is not in questions.ae_titles"
    if settings.creators and asked.creators.isdisjoint(map(str.lower, settings.creators)):
        return "neither its manufacturer nor its person is in questions.creators"
    if settings.labels and asked.labels.isdisjoint(map(str.lower, settings.labels)):
        return "neither its label nor a description is in questions.labels"
    return None


def _on_film(box: Box, film: Instance) -> Box | LeftOut:
    """Return the part of a box that lies on its film. Raises Undecodable for a film whose header cannot be read."""
    header = header_reading.read_header(film.path)
    columns, rows = attributes.whole(header, "Columns"), attributes.whole(header, "Rows")
    if not columns or not rows:
        return LeftOut(reason="the question is about an object that is no film")
    return clipped(box, columns=columns, rows=rows)


def _ignored(study_uid: str, sop_instance_uid: str, reason: str) -> None:
    log.get().info("question.ignored", study=study_uid, sop_instance_uid=sop_instance_uid, reason=reason)
