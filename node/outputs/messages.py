"""The interface of message kinds: writing a message and taking it back; `output_kinds.MESSAGES` lists the kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol
from zoneinfo import ZoneInfo

from pydicom.dataset import Dataset

from node import plugs
from node.domain import OutputObject, Report
from node.hl7.order import Order
from node.output_kinds import MESSAGES

Place = tuple[str, str, str]
"""A receiver's key of a message: number of the patient, its authority, and the accession number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SentMessage:
    """The identifiers in a stored message. films: SOP Instance UIDs of its films."""

    films: frozenset[str]
    place: Place
    is_withdrawal: bool


class Write(Protocol):
    """Writes the message of one report."""

    def __call__(
        self,
        report: Report,
        sources: Mapping[str, Dataset],
        zone: ZoneInfo,
        *,
        order: Order | None,
        documents: Sequence[OutputObject],
    ) -> tuple[OutputObject, bytes]:
        """Return the output, and the message as bytes.

        sources: header of each film's object by SOP Instance UID
        order: the order for this study, if an information system sent it
        documents: the other outputs of the round; the message names the structured reports, in every form
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageWriter:
    """The code of a kind of message.

    read: returns the identifiers in a stored message; None if it cannot be read
    withdrawn: gets a message, the UID and time of its withdrawal, and the messages that replace it. Returns the
     message that takes back the parts without a replacement; None if there are none
    """

    write: Write
    read: Callable[[bytes], SentMessage | None]
    withdrawn: Callable[[bytes, str, datetime, Iterable[bytes]], bytes | None]


def writer_of(kind: str) -> MessageWriter:
    """Return the writer of a kind of message; imports it on first use."""
    return plugs.load(MESSAGES[kind].writer, MessageWriter)
