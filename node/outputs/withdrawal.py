"""Withdraws an HL7 result that is void, if no new result takes its place.

An archive has rejected every film that it is about, or one of its films names another patient or request by now.

It is the result's own message again, with a time and control id of its own: OBR-25 is X (no result available, order
cancelled; table 0123), OBX-11 of each observation is W (posted as wrong, for example for a wrong patient; table 0085).
Patient, order numbers and identifiers of the observations are those under which the receiver has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final
from zoneinfo import ZoneInfo

from node.domain import MESSAGE_KIND, Identity, OutputObject, Report, derive_uid
from node.hl7.text import SEGMENT_END, Message, read
from node.outputs import oru
from node.outputs.rejection import ContentOf, is_ended
from node.store.study_facts import StudyFacts, rejected_by

_WITHDRAWN, _WRONG = "X", "W"
_TIME_OF_MESSAGE, _CONTROL_ID = 6, 9  # MSH counts its delimiter as a field
_TIME_OF_STATUS, _STATUS, _OBSERVATION_STATUS = 22, 25, 11
_FIELD: Final = "|"


def withdraw(
    facts: StudyFacts,
    report: Report,
    *,
    identities: Mapping[str, Identity],
    instead: Iterable[bytes],
    content_of: ContentOf,
    zone: ZoneInfo,
) -> Iterator[tuple[OutputObject, bytes]]:
    """Yield the withdrawal of each newest result that is void, if no other takes its place.

    A result whose content was removed with its study is not withdrawn.
    facts: those that the round knows
    identities: of all films, by SOP Instance UID
    instead: the new results; one takes the place of an earlier one of the same patient and accession number
    """
    rejected = rejected_by(facts.notes.values())
    results = [output for mark in facts.rounds for output in mark.outputs if output.kind == MESSAGE_KIND]
    places = [_place(read(content)) for content in instead]
    seen: set[str] = set()
    for result in reversed(results):
        content = content_of(result)
        message = None if content is None else read(content)
        if content is None or message is None:
            continue
        films = {segment.text(5) for segment in message.named("OBX") if segment.text(3, 2) == oru.FILM[1]}
        is_newest = seen.isdisjoint(films)
        seen |= films
        is_withdrawn = any(segment.text(_STATUS) == _WITHDRAWN for segment in message.named("OBR"))
        is_replaced = any(_is_same(_place(message), place) for place in places)
        is_void = bool(films) and (films.issubset(rejected) or is_ended(result, films, identities))
        if is_newest and is_void and not (is_withdrawn or is_replaced):
            yield _withdrawal(result, content, report, zone)


def _place(message: Message) -> tuple[str, str, str]:
    """Return where a receiver puts a result: number of the patient, its authority, and the accession number."""
    patient, request = next(message.named("PID")), next(message.named("OBR"))
    return patient.text(3), patient.text(3, 4), request.text(18)


def _is_same(earlier: tuple[str, str, str], later: tuple[str, str, str]) -> bool:
    """Say whether a result takes the place of an earlier one; a film or an order may have added what was missing."""
    return earlier[0] == later[0] and all(
        before == after or "" in (before, after) for before, after in zip(earlier[1:], later[1:], strict=True)
    )


def _withdrawal(result: OutputObject, content: bytes, report: Report, zone: ZoneInfo) -> tuple[OutputObject, bytes]:
    uid = report.object_uid(derive_uid("withdrawal", result.sop_instance_uid))
    moment = f"{report.created_at.astimezone(zone):%Y%m%d%H%M%S%z}"
    changes = {
        "MSH": {_TIME_OF_MESSAGE: moment, _CONTROL_ID: oru.control_id(uid)},
        "OBR": {_TIME_OF_STATUS: moment, _STATUS: _WITHDRAWN},
        "OBX": {_OBSERVATION_STATUS: _WRONG},
    }
    lines = [line.split(_FIELD) for line in content.decode().split(SEGMENT_END)]
    for fields in lines:
        for place, value in changes.get(fields[0], {}).items():
            fields[place] = value
    output = replace(result, sop_instance_uid=uid, voids=(result.sop_instance_uid,))
    return output, SEGMENT_END.join(map(_FIELD.join, lines)).encode()
