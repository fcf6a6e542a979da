"""What every kind of message is written and taken back by; `output_kinds.MESSAGES` names the kinds."""

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
"""Where a receiver puts a message: number of the patient, its authority, and the accession number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SentMessage:
    """What a message says of itself. films: SOP Instance UIDs of the films that it is about."""

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

    read: what a stored message says of itself; None if it cannot be read
    withdrawn: gets a message, the UID and time of its withdrawal, and the messages that take its place. Returns the
        message that takes back what these do not replace; None if nothing is left
    """

    write: Write
    read: Callable[[bytes], SentMessage | None]
    withdrawn: Callable[[bytes, str, datetime, Iterable[bytes]], bytes | None]


def writer_of(kind: str) -> MessageWriter:
    """Return the writer of a kind of message, which is imported now if it was not before."""
    return plugs.load(MESSAGES[kind].writer, MessageWriter)
