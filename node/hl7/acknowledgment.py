"""Acknowledgments (HL7 2.5.1 2.9): read those of a peer, write our own. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from node.hl7.text import HEADER, SEGMENT_END, Delimiters, Message, Segment, escape, read


class AcknowledgmentCode(StrEnum):
    """Table 0008, original mode: accepted, wrong in its content, not processed for another reason."""

    ACCEPT = "AA"
    ERROR = "AE"
    REJECT = "AR"


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledgment:
    """A peer's answer to one message.

    conditions: error codes of table 0357, from whichever place the peer's version uses
    """

    code: str
    control_id: str
    conditions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Complaint:
    """Why a message was not accepted: a code of table 0357 and a text without patient data."""

    condition: str
    text: str


# Enhanced mode was not asked for (MSH-15 is empty), but some engines answer in it: its letters mean the same (2.9.3).
_ENHANCED: Final = {"CA": AcknowledgmentCode.ACCEPT, "CE": AcknowledgmentCode.ERROR, "CR": AcknowledgmentCode.REJECT}


def read_acknowledgment(content: bytes) -> Acknowledgment:
    """Read a peer's answer. Raises ValueError when it is not an acknowledgment."""
    message = read(content)
    answer = next(message.named("MSA"), None)
    if answer is None:
        raise ValueError("the acknowledgment has no MSA segment")
    code = answer.text(1)
    return Acknowledgment(
        code=str(_ENHANCED.get(code, code)), control_id=answer.text(2), conditions=tuple(_conditions(message, answer))
    )


def acknowledge(
    message: Message | None, code: AcknowledgmentCode, *, now: datetime, complaint: Complaint | None = None
) -> bytes:
    """Write the answer to a message; None: the content was not a message.

    now: in the site's time zone
    """
    header = Segment(fields=(HEADER,), delimiters=Delimiters()) if message is None else message.header
    asked, trigger, processing = header.text(10), header.text(9, 2), header.text(11)
    own_id = hashlib.sha256(f"{asked} {now.isoformat()}".encode()).hexdigest()[:20]
    # From whom it was asked, and to whom.
    addresses = "|".join("^".join(map(escape, header.components(field))) for field in (5, 6, 3, 4))
    lines = [
        f"MSH|^~\\&|{addresses}|{now:%Y%m%d%H%M%S%z}||ACK^{escape(trigger)}^ACK|{own_id}|{escape(processing) or 'P'}"
        "|2.5.1||||||UNICODE UTF-8",
        f"MSA|{code}|{escape(asked)}",
    ]
    if complaint is not None:
        lines[-1] += f"|{escape(complaint.text)}"
        lines.append(f"ERR|||{complaint.condition}^^HL70357|E||||{escape(complaint.text)}")
    return (SEGMENT_END.join(lines) + SEGMENT_END).encode()


def _conditions(message: Message, answer: Segment) -> Iterator[str]:
    """Return error codes: ERR-3 in 2.5, ERR-1.4 in earlier versions, MSA-6 in still earlier ones."""
    yield from filter(None, (answer.text(6),))
    for error in message.named("ERR"):
        yield from filter(None, (error.text(3), error.text(1, 4)))
