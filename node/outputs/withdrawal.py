"""Withdraws an HL7 result when an archive has rejected every film that it is about.

It is the result's own message again, with a time and control id of its own: OBR-25 is X (no result available, order
cancelled; table 0123), OBX-11 of each observation is W (posted as wrong, for example for a wrong patient; table 0085).
Patient, order numbers and identifiers of the observations are those under which the receiver has them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Final
from zoneinfo import ZoneInfo

from node.domain import MESSAGE_KIND, OutputObject, Report, derive_uid
from node.hl7.text import SEGMENT_END, read
from node.outputs import oru
from node.store.rounds import RoundMark

_WITHDRAWN, _WRONG = "X", "W"
_TIME_OF_MESSAGE, _CONTROL_ID = 6, 9  # MSH counts its delimiter as a field
_TIME_OF_STATUS, _STATUS, _OBSERVATION_STATUS = 22, 25, 11
_FIELD: Final = "|"


def withdraw(
    earlier: Sequence[RoundMark],
    report: Report,
    *,
    rejected: Collection[str],
    content_of: Callable[[OutputObject], bytes | None],
    zone: ZoneInfo,
) -> Iterator[tuple[OutputObject, bytes]]:
    """Yield the withdrawal of the newest result, if all its films are rejected and it was not withdrawn yet.

    earlier: the rounds before this one; a result whose content was removed with its study is not withdrawn
    rejected: SOP Instance UIDs
    """
    results = [output for mark in earlier for output in mark.outputs if output.kind == MESSAGE_KIND]
    content = content_of(results[-1]) if results else None
    if content is None:
        return
    message = read(content)
    films = {segment.text(5) for segment in message.named("OBX") if segment.text(3, 2) == oru.FILM[1]}
    is_withdrawn = any(segment.text(_STATUS) == _WITHDRAWN for segment in message.named("OBR"))
    if is_withdrawn or not films or not films.issubset(rejected):
        return
    uid = report.object_uid(derive_uid("withdrawal", results[-1].sop_instance_uid))
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
    yield replace(results[-1], sop_instance_uid=uid), SEGMENT_END.join(map(_FIELD.join, lines)).encode()
