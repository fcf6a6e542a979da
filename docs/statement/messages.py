"""The HL7 message that the node sends: its fields, observations and flags, read from a written message."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from hl7apy.consts import VALIDATION_LEVEL
from hl7apy.core import Group, Segment
from hl7apy.parser import parse_message

from docs.statement import written
from docs.statement.network import Rows
from models.contract import FindingState
from node.domain import OutputObject
from node.hl7.order import Order
from node.outputs import oru, vocabulary
from node.outputs.sr.findings import STATES
from tests.support import samples

_URGENCIES = {vocabulary.MINUTES: "minutes", vocabulary.HOURS: "hours", vocabulary.DAYS: "days"}


@cache
def _segments() -> list[Segment]:
    """Write a message about a study of which everything is known, and parse it."""
    study, order = written.study(), Order(accession="A-17", placer_number=("P-1",), filler_number=("F-1",))
    films = study.report.films
    report = replace(study.report, films=(films[0], films[-1]))
    document = OutputObject(
        kind="sr", study_uid=samples.STUDY, sop_class_uid="1.2", sop_instance_uid="1.3", series_instance_uid="1.4"
    )
    _, content = oru.write(report, study.sources, samples.BERLIN, order=order, documents=[document])
    return list(_walk(parse_message(content.decode(), validation_level=VALIDATION_LEVEL.TOLERANT)))


def _walk(group: Group) -> Iterator[Segment]:
    for child in group.children:
        if child.classname == "Segment":
            yield child
        else:
            yield from _walk(child)


def fields() -> Rows:
    """Return the fields of each segment that are filled."""
    found: dict[str, dict[int, str]] = {}
    for segment in _segments():
        for field in segment.children:
            number = int(field.name.split("_")[1])
            found.setdefault(segment.name, {})[number] = str(field.long_name).replace("_", " ").lower()
    rows: Rows = [("segment", "fields")]
    for name, by_number in found.items():
        rows.append((name, "; ".join(f"{number} {words}" for number, words in sorted(by_number.items()))))
    return rows


def observations() -> Rows:
    """Return the kinds of observations (OBX), in their order."""
    values = {prompt.finding.value for prompt in written.PATHOLOGIES if prompt.finding}
    rows: Rows = [("OBX-2", "OBX-3", "OBX-6")]
    for segment in _segments():
        if segment.name == "OBX":
            name = segment.obx_3.to_er7()
            code = name.split("^")[0]
            if code in values:
                name = "the finding's code"
            elif code[:1] == "P" and code[1:] in values:
                name = "`P` and the finding's code, `99CHEX`"
            else:
                name = f"`{name}`"
            row = (segment.obx_2.to_er7(), name, segment.obx_6.to_er7())
            if row not in rows:
                rows.append(row)
    return rows


def abnormal_flags() -> Rows:
    """Return OBX-8 of each finding in each state."""
    rows: Rows = [("finding", "to communicate within", *(STATES[state].meaning for state in FindingState))]
    films = written.study().report.read_films[: len(FindingState)]
    for findings in zip(*(film.findings for film in films), strict=True):
        code = findings[0].code
        urgency = vocabulary.URGENCIES.get((code.scheme, code.value), vocabulary.DAYS)
        flags = [f"`{flag}`" if (flag := oru.abnormal_flag(finding)) else "" for finding in findings]
        rows.append((f"{code.meaning} (`{code.value}`, {code.scheme})", _URGENCIES[urgency], *flags))
    return rows
