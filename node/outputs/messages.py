"""The interface of message kinds, which `output_kinds.MESSAGES` lists: writing a message, and taking it back.

The newest message of a kind is taken back if it is void, and so are the parts that its replacement lacks. It is void if
an archive has rejected all of its films, or if one of them has another patient or request now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, tzinfo
from zoneinfo import ZoneInfo

from pydicom.dataset import Dataset

from node import plugins
from node.dicom.dates import stated_offset
from node.domain import UNSET_ZONE, Finding, Identity, OutputObject, Report, derive_uid
from node.hl7.order import Order
from node.output_kinds import MESSAGES
from node.outputs import vocabulary
from node.outputs.patient import whole_of_request
from node.outputs.rejection import Past, is_ended
from node.store.study_facts import rejected_by

Place = tuple[str, str, str]
"""A receiver's key of a message: number of the patient, its authority, and the accession number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SentMessage:
    """The identifiers in a stored message. films: SOP Instance UIDs of its films."""

    films: frozenset[str]
    place: Place
    is_withdrawal: bool


Write = Callable[
    [Report, Mapping[str, Dataset], ZoneInfo, Order | None, Sequence[OutputObject]], tuple[OutputObject, bytes]
]
"""Gets a report, the header of each of its films by SOP Instance UID, the zone of the site, the order for the study if
an information system sent one, and the other outputs of the round: the message names the structured reports, in every
form. Returns the output, and the message as bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageWriter:
    """The code of a kind of message.

    read: returns the identifiers in a stored message; None for one that only takes back parts of another
    withdrawn: gets a message, the UID and time of its withdrawal, and the messages that replace it. Returns the
        message that takes back the parts without a replacement; None if there are none
    """

    write: Write
    read: Callable[[bytes], SentMessage | None]
    withdrawn: Callable[[bytes, str, datetime, Sequence[bytes]], bytes | None]


def as_output(kind: str, report: Report, uid: str) -> OutputObject:
    """Return the output that a message of a report is."""
    return OutputObject(
        kind=kind, study_uid=report.study_uid, sop_class_uid="", sop_instance_uid=uid, series_instance_uid=""
    )


def accession_of(described: Dataset, order: Order | None) -> str:
    """Return the accession number of the films, or else that of the order; "" if there is none."""
    return whole_of_request(described, "AccessionNumber") or (order.accession if order else "")


def order_numbers(described: Dataset, order: Order | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the components of the placer's and the filler's order number: the order's, else those of the films."""
    placer = (whole_of_request(described, "PlacerOrderNumberImagingServiceRequest"),)
    filler = (whole_of_request(described, "FillerOrderNumberImagingServiceRequest"),)
    return (order.placer_number or placer, order.filler_number or filler) if order else (placer, filler)


def zone_of(described: Dataset, zone: ZoneInfo) -> tzinfo | None:
    """Return the offset of the films' times, or else the zone of the site; None if that was left at its default."""
    return stated_offset(described) or (None if zone.key == UNSET_ZONE else zone)


def state_in_words(finding: Finding) -> str:
    """Return the state of a finding in words, with its side if it is reported."""
    side = f", {finding.side}" if finding.side and finding.state.is_reported else ""
    return f"{vocabulary.said_of(finding).capitalize()}{side}"


def writer_of(kind: str) -> MessageWriter:
    """Return the writer of a kind of message; imports it on first use."""
    return plugins.load(MESSAGES[kind].writer, MessageWriter)


def withdraw(
    kind: str, past: Past, *, new: Iterable[tuple[OutputObject, bytes]]
) -> Iterator[tuple[OutputObject, bytes]]:
    """Yield what takes back the newest messages of a kind: a void one, or the parts that its replacement lacks.

    A message whose content was removed with its study is not withdrawn.
    new: the messages of this round; one replaces an earlier one whose patient and accession number agree, and the
    issuers in the headers of their films; a missing value agrees with any
    """
    facts, report = past.facts, past.report
    writer, rejected = writer_of(kind), rejected_by(facts.notes.values())
    sent = [output for mark in facts.rounds for output in mark.outputs if output.kind == kind]
    places = [(made, message.place, content) for made, content in new if (message := writer.read(content)) is not None]
    seen: set[str] = set()
    for output in reversed(sent):
        content = past.content_of(output)
        message = None if content is None else writer.read(content)
        if content is None or message is None:
            continue
        is_newest = seen.isdisjoint(message.films)
        seen |= message.films
        instead = [
            other
            for made, place, other in places
            if _is_same(message.place, place) and _agree(output.identity.issuer, made.identity.issuer)
        ]
        is_void = _is_void(output, message, rejected, past.identities)
        if not is_newest or message.is_withdrawal or not (is_void or instead):
            continue
        uid = report.object_uid(derive_uid("withdrawal", output.sop_instance_uid))
        if (withdrawal := writer.withdrawn(content, uid, report.created_at.astimezone(past.zone), instead)) is not None:
            voids = () if instead else (output.sop_instance_uid,)
            yield replace(output, sop_instance_uid=uid, voids=voids), withdrawal


def _is_void(
    output: OutputObject, message: SentMessage, rejected: frozenset[str], identities: Mapping[str, Identity]
) -> bool:
    films = message.films
    return bool(films) and (films.issubset(rejected) or is_ended(output, films, identities))


def _is_same(earlier: Place, later: Place) -> bool:
    """Whether a message replaces an earlier one; a film or an order may have added what was missing."""
    return earlier[0] == later[0] and all(map(_agree, earlier[1:], later[1:]))


def _agree(before: str, after: str) -> bool:
    return before == after or "" in (before, after)
