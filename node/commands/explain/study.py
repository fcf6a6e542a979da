"""The history of a study, or of one object, from spool and database: received, read, written, sent; and what to do.

The spool is read first: it is the source of truth for received and written objects, and needs no database. Times are
told in the site's time zone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, tzinfo
from itertools import chain
from pathlib import Path
from typing import Final

from models.program import command_for
from node.commands.explain.film import ADVICE, is_no_image
from node.config import Settings
from node.dicom import header_reading
from node.dicom.film_header import parse_header
from node.domain import DeliveryState, JsonObject, OutputObject, Reason
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
from node.store.tables import TAKEN

_NOT_ANSWERED: Final = "not answered"
"""Prefix in `ReceivedObject.asked` of the reasons why a workstation's questions were not answered."""
_NODE: Final = command_for("node")
_UNFINISHED: Final = ("receiving", "reading")
_MOST_NAMED: Final = 3
_OPEN: Final = (DeliveryState.WAITING, DeliveryState.SENDING)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedObject:
    """One received object with its outcome.

    film: SOP Instance UID
    size: bytes of the file
    round: number of the newest round that covers it; None if no round does
    outcome: read, answered, left alone, rejected, or the reason why it was not read; None if nothing is decided
    reason: that reason, if the network did not read it and the archive did not reject it
    reading: when it was decided, and the stored reading; None without one
    asked: the outcome of the questions in a workstation's object; None for other objects
    also_in: other studies with an object of the same UID
    """

    film: str
    version: int
    is_newest: bool
    is_conflict: bool
    is_intact: bool
    received_at: datetime
    size: int
    round: int | None
    outcome: str | None
    reason: str | None
    reading: tuple[datetime, JsonObject] | None
    asked: str | None
    also_in: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyExplanation:
    """The history of a study, or of one of its objects.

    asked: the UID that was asked for, of the study or of an object
    row: None if the database has no entry for the study
    is_urgent: whether a sender or a caller's setting made the study stat
    begun: number of films with a reading that was begun and has not ended
    lost: by the UID of an output whose stored copy is not intact, whether that is damaged or removed
    database: why the database could not be read; empty if it was read
    is_running: whether a process of this node answers and is ready
    """

    asked: str
    study: str
    row: StudyRow | None
    is_urgent: bool
    begun: int
    received: tuple[ReceivedObject, ...]
    rounds: tuple[RoundMark, ...]
    answers: tuple[SentAnswer, ...]
    lost: Mapping[str, str]
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
    marks, answers = spool.rounds(study_uid), questions.answers_of(spool, study_uid)
    outputs = chain.from_iterable((*(mark.outputs for mark in marks), *(answer.outputs for answer in answers)))
    explanation = StudyExplanation(
        asked=uid,
        study=study_uid,
        row=known.study,
        is_urgent=spool.is_stat(study_uid),
        begun=spool.count_begun_readings(study_uid),
        received=tuple(_received(study_uid, spool, marks)),
        rounds=tuple(marks),
        answers=tuple(answers),
        lost={output.sop_instance_uid: lost for output in outputs if (lost := _lost(output, spool))},
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
            version=instance.number,
            is_newest=instance.path in newest,
            is_conflict=is_conflict,
            is_intact=is_intact,
            received_at=instance.received_at,
            size=instance.path.stat().st_size,
            round=number,
            outcome=outcome,
            reason=reason,
            reading=reading,
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
        said.append(f"{_NOT_ANSWERED}: {'; '.join(mark.reasons)}")
    return ", ".join(said)


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


def _files_of(mark: RoundMark) -> tuple[str, ...]:
    """Return the received files that a round covers, without those that a person has queued again."""
    return (*mark.files, *(file for file, reason in mark.parked.items() if reason != AGAIN))


def _lost(output: OutputObject, spool: Spool) -> str:
    """Return the state of an output's stored copy that is not intact; "" if it is."""
    if not spool.has_output(output):
        return "removed"
    return "damaged" if spool.output(output) is None else ""


def _only(uid: str, explanation: StudyExplanation) -> StudyExplanation:
    """Return the history of one object: without other films, rounds without it, and outputs of other rounds."""
    rounds = tuple(
        mark
        for mark in explanation.rounds
        if uid in (sop_instance_uid_of(file) for file in _files_of(mark)) or uid in _uids(mark.outputs)
    )
    is_output = any(uid in _uids(mark.outputs) for mark in explanation.rounds)
    wanted = {uid} if is_output else {uid}.union(*(_uids(mark.outputs) for mark in rounds))
    return replace(
        explanation,
        received=tuple(instance for instance in explanation.received if instance.film == uid),
        rounds=rounds,
        answers=tuple(answer for answer in explanation.answers if uid in _uids(answer.outputs)),
        deliveries=tuple(row for row in explanation.deliveries if row.delivery.sop_instance_uid in wanted),
    )


def _uids(outputs: Sequence[OutputObject]) -> set[str]:
    return {output.sop_instance_uid for output in outputs}


def render(explanation: StudyExplanation, settings: Settings, settings_file: Path) -> str:
    """Return an explanation as lines of text; the next steps come last."""
    zone = settings.site.zone
    lines = [_study_line(explanation, zone)]
    if explanation.asked != explanation.study:
        lines.append(f"only what concerns {explanation.asked}:")
    if explanation.begun:
        lines.append(f"{explanation.begun} films are being read, or the process ended while it read them")
    answers = [_answer_line(answer, explanation.lost, zone) for answer in explanation.answers]
    for title, entries in (
        ("received", [_received_line(instance, zone) for instance in explanation.received]),
        ("rounds", [_round_line(mark, explanation.lost, zone) for mark in explanation.rounds]),
        ("deliveries", [_delivery_line(delivery, zone) for delivery in explanation.deliveries]),
    ):
        lines += [f"{title}:", *(f"  {entry}" for entry in entries or ["nothing"])]
    lines += ["answers that were sent:", *(f"  {entry}" for entry in answers)] if answers else []
    if explanation.database:
        lines.append(f"FAULT {explanation.database}")
    return "\n".join([*lines, *(f"do: {step}" for step in next_steps(explanation, settings, settings_file))])


def next_steps(explanation: StudyExplanation, settings: Settings, settings_file: Path) -> list[str]:
    """Return the next steps for a person; a single line with `nothing` if the node continues without help."""
    steps = [
        *_steps_of_study(explanation, settings_file),
        *_steps_of_deliveries(explanation.deliveries, settings, settings_file),
    ]
    if not explanation.is_running and (steps or _is_unfinished(explanation)):
        steps.append(f"no process of this node answers: start it with {_NODE} serve {settings_file}")
    if not steps and _is_unfinished(explanation):
        return ["nothing; the node continues by itself"]
    return steps or ["nothing; the node is done with it"]


def _steps_of_study(explanation: StudyExplanation, settings_file: Path) -> Iterator[str]:
    damaged = sorted(
        {instance.film for instance in explanation.received if instance.is_newest and not instance.is_intact}
    )
    if damaged:
        yield f"send film {', '.join(damaged)} again from where it came: its file has changed on disk"
    yield from _steps_of_unread(explanation.received)
    for answer in explanation.answers:
        if answer.reason:
            yield f"ask again and send the new answer: answer {answer.question} is not sent, see above"
    if any(instance.asked is not None and _NOT_ANSWERED in instance.asked for instance in explanation.received):
        yield "ask what was not answered again in the way that its reason above says, and save it as a new object"
    if any(instance.is_conflict for instance in explanation.received):
        yield "find out which of the two films of one UID is right, and give the other a UID of its own at the sender"
    doubled = sorted({study for instance in explanation.received for study in instance.also_in})
    if doubled:
        yield (
            f"an object of this study has the UID of one in {' and '.join(doubled)}: find out which study is right, "
            "and delete the other on its page"
        )
    if explanation.row is not None and explanation.row.state == "parked":
        yield f"remove the reason why the study is parked, then run {_NODE} retry {settings_file} {explanation.study}"
    if explanation.row is None and not explanation.database and explanation.received:
        yield "the database has no entry for this study: restart the node, which makes one from the files"
    if explanation.database:
        yield f"mend the database, see {_NODE} doctor {settings_file}; nothing is lost meanwhile"


def _steps_of_unread(objects: Sequence[ReceivedObject]) -> Iterator[str]:
    """Yield the remedy for objects that were not read, by reason."""
    newest = [instance for instance in objects if instance.is_newest and not instance.is_conflict]
    for reason, advice in ADVICE.items():
        if films := [instance.film for instance in newest if instance.reason == reason]:
            more = f" and {len(films) - _MOST_NAMED} more" if len(films) > _MOST_NAMED else ""
            yield f"{', '.join(films[:_MOST_NAMED])}{more} ({reason}): {advice}"


def _steps_of_deliveries(deliveries: Sequence[DeliveryRow], settings: Settings, settings_file: Path) -> Iterator[str]:
    known = {destination.name for destination in settings.destinations}
    by_name = {row.delivery.destination: row.delivery.study_uid for row in deliveries}
    for name, study_uid in by_name.items():
        rows = [row for row in deliveries if row.delivery.destination == name]
        is_parked = any(row.state is DeliveryState.PARKED for row in rows)
        is_tried = any(row.state in _OPEN and row.reason for row in rows)
        if (is_parked or is_tried) and name not in known:
            yield (
                f"{name} is not in the settings: add it again and run {_NODE} retry {settings_file}"
                f" {study_uid}, or run {_NODE} abandon {settings_file} {name}"
            )
        elif is_parked:
            yield (
                f"remove the reason at {name}, then run {_NODE} retry {settings_file} {study_uid};"
                f" {_NODE} doctor {settings_file} tells whether {name} is good"
            )
        elif is_tried:
            yield f"see what is wrong with {name} by {_NODE} doctor {settings_file}; the node tries again by itself"


def _is_unfinished(explanation: StudyExplanation) -> bool:
    is_open = any(row.state in _OPEN or _is_awaited(row) for row in explanation.deliveries)
    return is_open or (explanation.row is not None and explanation.row.state in _UNFINISHED)


def _is_awaited(row: DeliveryRow) -> bool:
    return row.state is DeliveryState.SENT and row.awaits_commitment


def _study_line(explanation: StudyExplanation, zone: tzinfo) -> str:
    line = f"study {explanation.study}{', stat' if explanation.is_urgent else ''}: "
    row = explanation.row
    if row is None and explanation.rounds and not explanation.received:
        return f"{line}finished; its films and results have been deleted (storage.keep_days)"
    if row is None:
        return line + ("the database is not available" if explanation.database else "not in the database")
    if row.state == "parked":
        return f"{line}PARKED at {row.stage} since {_time(row.changed_at, zone)}: {row.reason}"
    is_delivered = not explanation.deliveries or any(row.state in TAKEN for row in explanation.deliveries)
    remark = "" if row.state != "finished" or is_delivered else ", nothing of it is delivered"
    return f"{line}{row.state} since {_time(row.changed_at, zone)}{remark}"


def _received_line(instance: ReceivedObject, zone: tzinfo) -> str:
    facts = [
        f"{_time(instance.received_at, zone)} {instance.film} version {instance.version}",
        f"{instance.size} bytes",
    ]
    if not instance.is_intact:
        facts.append("DAMAGED on disk")
    if instance.is_conflict:
        facts.append("CONFLICT: other pixels under the UID of another film, kept and not read")
    elif not instance.is_newest:
        facts.append("replaced by a newer version")
    elif instance.outcome is None:
        facts.append("not decided yet")
    else:
        facts.append(instance.outcome)
    if instance.also_in:
        facts.append(f"ALSO IN study {' and '.join(instance.also_in)}")
    if instance.reading is not None:
        at, content = instance.reading
        by = f" by {content['model']} on {content['engine']} with {content['prompts']}" if content.get("model") else ""
        facts.append(f"decided at {_time(at, zone)}{by}")
    if instance.round is not None:
        facts.append(f"round {instance.round}")
    if instance.asked is not None:
        facts.append(instance.asked)
    return ", ".join(facts)


def _round_line(mark: RoundMark, lost: Mapping[str, str], zone: tzinfo) -> str:
    parts = f"of {len(mark.parts)} patients or accession numbers, " if mark.parts else ""
    began = _time(mark.created_at, zone)
    return f"{mark.number} began {began}, {len(_files_of(mark))} objects, {parts}wrote {_outputs(mark.outputs, lost)}"


def _answer_line(answer: SentAnswer, lost: Mapping[str, str], zone: tzinfo) -> str:
    wrote = f"NOT SENT: {answer.reason}" if answer.reason else f"wrote {_outputs(answer.outputs, lost)}"
    return f"answer {answer.question} sent {_time(answer.requested_at, zone)}, {wrote}"


def _outputs(written: Sequence[OutputObject], lost: Mapping[str, str]) -> str:
    uids = ((output.kind, output.sop_instance_uid) for output in written)
    return ", ".join(f"{kind} {uid}{f' ({lost[uid]})' if uid in lost else ''}" for kind, uid in uids) or "nothing"


def _delivery_line(row: DeliveryRow, zone: tzinfo) -> str:
    state = str(row.state).upper() if row.state is DeliveryState.PARKED else str(row.state)
    line = f"{row.delivery.destination}: {row.delivery.kind} {row.delivery.sop_instance_uid} {state}"
    if row.state in (DeliveryState.SENT, DeliveryState.COMMITTED):
        line += f", sent {_time(row.since, zone)}"
    line += f", queued {_time(row.created_at, zone)}, attempts {row.attempts}"
    if _is_awaited(row):
        line += ", not committed yet"
    return line + (f": {row.reason}" if row.reason else "")


def _time(moment: datetime, zone: tzinfo) -> str:
    return f"{moment.astimezone(zone):%Y-%m-%d %H:%M:%S %Z}"
