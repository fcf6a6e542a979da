"""Renders the history of a study as text and as JSON, with the next steps; times are in the site's time zone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Final

from models.program import command_for
from node.commands.explain.film import ADVICE
from node.commands.explain.study import (
    NOT_ANSWERED,
    FinishedRound,
    ReceivedObject,
    StudyExplanation,
    WrittenAnswer,
    WrittenObject,
)
from node.config import Settings
from node.domain import DeliveryState
from node.store.ledger_queries import DeliveryRow
from node.store.tables import TAKEN

_NODE: Final = command_for("node")
_UNFINISHED: Final = ("receiving", "reading")
_MOST_NAMED: Final = 3
_OPEN: Final = (DeliveryState.WAITING, DeliveryState.SENDING)


def to_json(explanation: StudyExplanation, settings: Settings, settings_file: Path) -> str:
    """Return an explanation as a JSON document, with the next steps; times as ISO 8601 in the site's time zone."""
    content = {
        **asdict(explanation),
        "next": next_steps(explanation, settings, settings_file),
    }
    content["deliveries"] = [
        {**row.pop("delivery"), **row} for row in (asdict(delivery) for delivery in explanation.deliveries)
    ]

    def local(moment: datetime) -> str:
        return moment.astimezone(settings.site.zone).isoformat(timespec="seconds")

    return json.dumps(content, indent=2, default=local)


def render(explanation: StudyExplanation, settings: Settings, settings_file: Path) -> str:
    """Return an explanation as lines of text; the next steps come last."""
    zone = settings.site.zone
    lines = [_study_line(explanation, zone)]
    if explanation.asked != explanation.study:
        lines.append(f"only what concerns {explanation.asked}:")
    if explanation.begun:
        lines.append(f"{explanation.begun} films are being read, or the process ended while it read them")
    answers = [_answer_line(answer, zone) for answer in explanation.answers]
    for title, entries in (
        ("received", [_received_line(instance, zone) for instance in explanation.received]),
        ("rounds", [_round_line(finished, zone) for finished in explanation.rounds]),
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
    if any(instance.asked is not None and NOT_ANSWERED in instance.asked for instance in explanation.received):
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
    if instance.read_by is not None:
        by = (
            f" by {instance.read_by.model} on {instance.read_by.engine} with {instance.read_by.prompts}"
            if instance.read_by.model
            else ""
        )
        facts.append(f"decided at {_time(instance.read_by.at, zone)}{by}")
    if instance.round is not None:
        facts.append(f"round {instance.round}")
    if instance.asked is not None:
        facts.append(instance.asked)
    return ", ".join(facts)


def _round_line(finished: FinishedRound, zone: tzinfo) -> str:
    parts = f"of {len(finished.parts)} patients or accession numbers, " if finished.parts else ""
    return (
        f"{finished.number} began {_time(finished.began_at, zone)}, {len(finished.files)} objects, {parts}"
        f"wrote {_outputs(finished.outputs)}"
    )


def _answer_line(answer: WrittenAnswer, zone: tzinfo) -> str:
    wrote = f"NOT SENT: {answer.reason}" if answer.reason else f"wrote {_outputs(answer.outputs)}"
    return f"answer {answer.question} sent {_time(answer.requested_at, zone)}, {wrote}"


def _outputs(written: Sequence[WrittenObject]) -> str:
    named = (
        f"{output.kind} {output.uid}{'' if output.copy == 'intact' else f' ({output.copy})'}" for output in written
    )
    return ", ".join(named) or "nothing"


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
