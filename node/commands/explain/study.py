"""Collect the history of a study, or of one object, from spool and database: received, read, written, sent.

The spool is read first: it is the source of truth for received and written objects, and needs no database.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from node.commands.explain.film import is_no_image
from node.config import Settings
from node.dicom import header_reading
from node.dicom.film_header import parse_header
from node.domain import JsonObject, OutputObject, Reason
from node.errors import InputError, NodeError, OtherForm, Undecodable
from node.jobs import processes
from node.jobs.answered_film import newest_reading
from node.read import routing
from node.read.routing import Action
from node.store import ledger_queries, questions, received
from node.store.ledger_queries import DeliveryRow, Known, StudyRow
from node.store.questions import ObjectMark, SentAnswer
from node.store.received import Instance, sop_instance_uid_of
from node.store.rounds import AGAIN, RoundMark, coverage
from node.store.spool import Spool
from node.store.study_facts import elsewhere, rejections_of

NOT_ANSWERED: Final = "not answered"
"""Prefix in `ReceivedObject.asked` of the reasons why a workstation's questions were not answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBy:
    """Which model read a film, on which runtime, with which prompt set, and when."""

    model: str
    engine: str
    prompts: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedObject:
    """One received object with its outcome.

    film: SOP Instance UID
    size: bytes of the file
    round: number of the newest round that covers it; None if no round does
    outcome: read, answered, left alone, rejected, or the reason why it was not read; None if nothing is decided
    reason: that reason, if the network did not read it and the archive did not reject it
    asked: the outcome of the questions in a workstation's object; None for other objects
    also_in: other studies with an object of the same UID
    """

    film: str
    file: str
    version: int
    is_newest: bool
    is_conflict: bool
    is_intact: bool
    received_at: datetime
    size: int
    round: int | None
    outcome: str | None
    reason: str | None
    read_by: ReadBy | None
    asked: str | None
    also_in: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenObject:
    """One object or message that a round wrote; copy: the state of the stored copy, intact, damaged or removed."""

    kind: str
    uid: str
    copy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRound:
    """A finished round: when it began, the received files that it covers, and its outputs.

    parts: SOP Instance UIDs of its films by patient and accession number, if it found several
    """

    number: int
    began_at: datetime
    files: tuple[str, ...]
    outputs: tuple[WrittenObject, ...]
    parts: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenAnswer:
    """An answer that a person sent, and its objects; reason: why it cannot be sent, "" if it can."""

    question: str
    requested_at: datetime
    outputs: tuple[WrittenObject, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyExplanation:
    """The history of a study, or of one of its objects.

    asked: the UID that was asked for, of the study or of an object
    row: None if the database has no entry for the study
    is_urgent: whether a sender or a caller's setting made the study stat
    begun: number of films with a reading that was begun and has not ended
    database: why the database could not be read; empty if it was read
    is_running: whether a process of this node answers and is ready
    """

    asked: str
    study: str
    row: StudyRow | None
    is_urgent: bool
    begun: int
    received: tuple[ReceivedObject, ...]
    rounds: tuple[FinishedRound, ...]
    answers: tuple[WrittenAnswer, ...]
    deliveries: tuple[DeliveryRow, ...]
    database: str
    is_running: bool


def explain_uid(uid: str, settings: Settings) -> StudyExplanation:
    """Return the history of a study, or of one object that was received or written.

    Raises InputError when the node does not know the UID, or has never run.
    """
    directory = settings.storage.directory
    if not all((directory / name).is_dir() for name in ("studies", "keeping")):  # `Spool` would create them
        raise InputError(f"{directory}: no node has run here; correct storage.directory, or start the node once")
    spool = Spool(directory)
    study_uid = _find(uid, spool)
    try:
        known, complaint = ledger_queries.look_up(settings.storage, study_uid), ""
    except NodeError as error:
        known, complaint = Known(), str(error)
    marks = spool.rounds(study_uid)
    explanation = StudyExplanation(
        asked=uid,
        study=study_uid,
        row=known.study,
        is_urgent=spool.is_stat(study_uid),
        begun=spool.count_begun_readings(study_uid),
        received=tuple(_received(study_uid, spool, marks)),
        rounds=tuple(_finished(mark, spool) for mark in marks),
        answers=tuple(_answer(answer, spool) for answer in questions.answers_of(spool, study_uid)),
        deliveries=known.deliveries,
        database=complaint,
        is_running=any(process.ready for process in processes.states(settings.storage, settings.http)),
    )
    return explanation if uid == study_uid else _only(uid, explanation)


def _find(uid: str, spool: Spool) -> str:
    """Return the study that a UID belongs to. Raises InputError if none is known, or if several have it."""
    studies = spool.find_studies(uid)
    if not studies:
        raise InputError(
            f"{uid}: is no file, and no UID of a study or object that this node knows; "
            "`node status` shows callers that were refused"
        )
    if len(studies) > 1:
        raise InputError(f"{uid}: {len(studies)} studies have an object with this UID; explain {' or '.join(studies)}")
    return studies[0]


def _received(study_uid: str, spool: Spool, marks: Sequence[RoundMark]) -> Iterator[ReceivedObject]:
    """Yield every version of every object in order of arrival, then the conflicts."""
    readings, conflicts = spool.readings(study_uid), spool.conflicts(study_uid)
    rounds = coverage(marks)
    asking = {mark.file: mark for mark in questions.objects_of(spool, study_uid)}
    instances = spool.instances(study_uid)
    rejected, newest = rejections_of(instances), {instance.path for instance in instances}
    for instance in (*spool.versions(study_uid), *conflicts):
        is_conflict = instance in conflicts
        is_intact = received.is_intact(instance.path)
        number, parked = (None, None) if is_conflict else rounds.get(instance.path.name, (None, None))
        try:
            reading = None if is_conflict else newest_reading(readings, instance)
            outcome, reason = _outcome(instance, reading, parked, is_intact=is_intact, is_covered=number is not None)
        except OtherForm as error:
            reading, outcome, reason = None, str(error), None
        if (why := rejected.get(instance.sop_instance_uid)) is not None:
            outcome = f"{outcome}, then {why.text}" if outcome == Action.READ else why.text
            reason = None
        yield ReceivedObject(
            film=instance.sop_instance_uid,
            file=str(instance.path),
            version=instance.number,
            is_newest=instance.path in newest,
            is_conflict=is_conflict,
            is_intact=is_intact,
            received_at=instance.received_at,
            size=instance.path.stat().st_size,
            round=number,
            outcome=outcome,
            reason=reason,
            read_by=None if reading is None else _read_by(*reading),
            asked=_asked(asking.get(instance.path.name)),
            also_in=tuple(other.study_uid for other in elsewhere(spool, instance)),
        )


def _asked(mark: ObjectMark | None) -> str | None:
    if mark is None:
        return None
    if mark.is_open:
        return "its questions are not answered yet, or wait for their film"
    said = [f"answers {', '.join(mark.questions)} are sent"] if mark.questions else []
    if mark.reasons:
        said.append(f"{NOT_ANSWERED}: {'; '.join(mark.reasons)}")
    return ", ".join(said)


def _read_by(at: datetime, content: JsonObject) -> ReadBy:
    model, engine, prompts = (str(content.get(name, "")) for name in ("model", "engine", "prompts"))
    return ReadBy(model=model, engine=engine, prompts=prompts, at=at)


def _outcome(
    instance: Instance,
    reading: tuple[datetime, JsonObject] | None,
    parked: str | None,
    *,
    is_intact: bool,
    is_covered: bool,
) -> tuple[str | None, str | None]:
    """Return the outcome of an object, and why it was not read: from its reading, why it is parked, or routing."""
    if reading is not None:
        reason = None if reading[1].get("reason") is None else str(reading[1]["reason"])
        outcome = reason or Action.READ
        return f"{outcome}, not reported ({parked})" if parked == Reason.PATIENT_UNCLEAR else outcome, reason
    if not is_intact:
        return Reason.DAMAGED, Reason.DAMAGED
    if not is_covered or parked == Reason.DAMAGED:  # damaged, and received again since then
        return None, None
    if parked is not None:
        return parked, parked
    try:
        decision = routing.choose(parse_header(header_reading.read_header(instance.path)), routing.rules_for(None))
    except Undecodable:
        return Reason.UNDECODABLE, Reason.UNDECODABLE
    outcome = f"left alone ({decision.reason})" if decision.action is Action.LEAVE else "answered"
    return outcome, None if is_no_image(decision) else decision.reason


def _finished(mark: RoundMark, spool: Spool) -> FinishedRound:
    return FinishedRound(
        number=mark.number,
        began_at=mark.created_at,
        files=(*mark.files, *(file for file, reason in mark.parked.items() if reason != AGAIN)),
        outputs=_written(mark.outputs, spool),
        parts=mark.parts,
    )


def _answer(answer: SentAnswer, spool: Spool) -> WrittenAnswer:
    return WrittenAnswer(
        question=answer.question,
        requested_at=answer.requested_at,
        outputs=_written(answer.outputs, spool),
        reason=answer.reason,
    )


def _written(outputs: Iterable[OutputObject], spool: Spool) -> tuple[WrittenObject, ...]:
    return tuple(
        WrittenObject(kind=output.kind, uid=output.sop_instance_uid, copy=_copy(output, spool)) for output in outputs
    )


def _copy(output: OutputObject, spool: Spool) -> str:
    if not spool.has_output(output):
        return "removed"
    return "damaged" if spool.output(output) is None else "intact"


def _only(uid: str, explanation: StudyExplanation) -> StudyExplanation:
    """Return the history of one object: without other films, rounds without it, and outputs of other rounds."""
    rounds = tuple(
        finished
        for finished in explanation.rounds
        if any(sop_instance_uid_of(file) == uid for file in finished.files)
        or any(output.uid == uid for output in finished.outputs)
    )
    is_output = any(output.uid == uid for finished in explanation.rounds for output in finished.outputs)
    wanted = {uid} if is_output else {output.uid for finished in rounds for output in finished.outputs}
    return replace(
        explanation,
        received=tuple(instance for instance in explanation.received if instance.film == uid),
        rounds=rounds,
        answers=tuple(answer for answer in explanation.answers if uid in {output.uid for output in answer.outputs}),
        deliveries=tuple(row for row in explanation.deliveries if row.delivery.sop_instance_uid in wanted | {uid}),
    )
