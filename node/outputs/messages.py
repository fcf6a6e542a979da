"""The interface of message kinds: writing a message and taking it back; `output_kinds.MESSAGES` lists the kinds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from zoneinfo import ZoneInfo

from pydicom.dataset import Dataset

from node import plugins
from node.dicom.dates import stated_offset
from node.domain import UNSET_ZONE, Finding, OutputObject, Report
from node.hl7.order import Order
from node.output_kinds import MESSAGES
from node.outputs import vocabulary
from node.outputs.patient import whole_of_request

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
