"""ORU^R01 over MLLP: one connection per message, and the meaning of its acknowledgment.

The stored message is the same for all destinations. The addresses are written into its header here, from settings
alone, so that a repeated message has the same bytes. An acknowledgment counts if it names this message, or none; one of
another message is ignored. An answer that cannot be read, or that never names this message, leaves open whether it was
taken: some systems would store it again with each repeat, so it is parked after a few. If no connection can be made,
the destination is down and all its deliveries wait. If a connection ends or times out without an answer, only this
message is delayed.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Final

from node.check_result import Check, fault, ok
from node.deliver.connections import START, connect, explain
from node.deliver.kinds import Calling, Sender
from node.errors import DestinationDown, GiveUp, OutcomeUnknown, RetryLater
from node.hl7 import mllp, text
from node.hl7.acknowledgment import Acknowledgment, AcknowledgmentCode, read_acknowledgment
from node.hl7.text import SEGMENT_END, escape, read
from node.settings.destinations import Hl7Destination

_CONNECT_SECONDS: Final = 10.0
_PROBE_SECONDS: Final = 5.0

# Table 0357: segment sequence, required field missing, data type, table value; unsupported message type, event,
# processing id, version; duplicate key. The same message would get the same error again.
_HOPELESS: Final = frozenset(("100", "101", "102", "103", "200", "201", "202", "203", "205"))

# Fields that identify patient and order: `?` in place of a character would name another one.
_IDENTIFIERS: Final = {"PID": (3,), "ORC": (2, 3), "OBR": (2, 3, 18, 19)}

# Where the header names sender, receiver, processing id and character set, counted from the segment's name (2.15.9).
_FIRST_ADDRESS, _CONTROL_ID, _PROCESSING_ID, _CHARACTER_SET = 2, 9, 10, 17


def send(content: bytes, destination: Hl7Destination, _calling: Calling) -> None:
    """Send one message and wait for its acknowledgment.

    Raises RetryLater, OutcomeUnknown, DestinationDown when no connection can be made, or GiveUp.
    """
    check_identifiers(content, destination)
    addressed = address(content, destination)
    with connect(destination, limit_seconds=_CONNECT_SECONDS) as connection:
        try:
            answer = _exchange(connection, addressed, destination)
        except ValueError as error:  # of the frame, or of the message in it
            raise OutcomeUnknown(f"{destination.name} sent an answer that is not an acknowledgment: {error}") from error
        except TimeoutError as error:
            raise RetryLater(
                f"{destination.name} gave no answer to this message in {destination.answer_seconds:g} s"
            ) from error
        except OSError as error:
            raise RetryLater(_lost(destination)) from error
    judge(answer, destination.name)


def probe(destination: Hl7Destination, _calling: Calling) -> None:
    """Check whether a connection can be made. Raises DestinationDown."""
    connect(destination, limit_seconds=_PROBE_SECONDS).close()


def examine(destination: Hl7Destination, _calling: Calling) -> Iterator[Check]:
    """Connect, with TLS too if it is set; no message is sent."""
    name = f"destination {destination.name}"
    try:
        if destination.tls is None:
            connect(destination, limit_seconds=_PROBE_SECONDS).close()
        else:
            explain(destination, limit_seconds=_PROBE_SECONDS)
    except DestinationDown as error:
        yield fault(name, f"{error}; {START}")
        return
    secured = " and TLS" if destination.tls is not None else ""
    yield ok(name, f"{destination.host}:{destination.port} accepts a connection{secured}; no message was sent")


def address(content: bytes, destination: Hl7Destination) -> bytes:
    """Write sender, receiver, processing id and character set into the header (MSH-3 to MSH-6, MSH-11, MSH-18).

    The whole message is encoded in that character set.
    """
    header, rest = content.decode().split(SEGMENT_END, 1)
    fields = header.split("|")
    fields[_FIRST_ADDRESS : _FIRST_ADDRESS + 4] = map(
        escape,
        (
            destination.sending_application,
            destination.sending_facility,
            destination.receiving_application,
            destination.receiving_facility,
        ),
    )
    fields[_PROCESSING_ID], fields[_CHARACTER_SET] = destination.processing_id, destination.character_set
    return text.encode(f"{'|'.join(fields)}{SEGMENT_END}{rest}", destination.character_set)


def check_identifiers(content: bytes, destination: Hl7Destination) -> None:
    """Raise GiveUp if the character set of a destination lacks a character of an identifier."""
    for segment in read(content).named(*_IDENTIFIERS):
        for field in _IDENTIFIERS[segment.name]:
            if field < len(segment.fields) and not text.holds(segment.fields[field], destination.character_set):
                raise GiveUp(
                    f"a number of patient or order has a character that the character_set of {destination.name} lacks; "
                    f'set character_set = "{text.DEFAULT}" if {destination.name} can read it, then retry'
                )


def judge(answer: Acknowledgment, name: str) -> None:
    """Turn an acknowledgment into an outcome (HL7 2.5.1 2.9.2).

    By the standard AE means that the content is wrong, and AR another reason, which may be temporary. Interface engines
    do not follow this: they answer AE when a system behind them is down, and AR for messages that they filter out. So
    the error code decides. Without an error code both are retried until `give_up_hours` have passed.
    Raises RetryLater, OutcomeUnknown or GiveUp.
    """
    if answer.code == AcknowledgmentCode.ACCEPT:
        return
    if answer.code not in set(AcknowledgmentCode):
        raise OutcomeUnknown(f"{name} answered with an unknown acknowledgment code")
    hopeless = sorted(_HOPELESS.intersection(answer.conditions))
    if hopeless:
        raise GiveUp(f"{name} answered {answer.code} with error {', '.join(hopeless)}; see its log, then retry")
    raise RetryLater(f"{name} answered {answer.code}")


def _exchange(connection: socket.socket, content: bytes, destination: Hl7Destination) -> Acknowledgment:
    """Send a message and wait for the acknowledgment that names it.

    Raises RetryLater, OutcomeUnknown, ValueError for anything but an acknowledgment, TimeoutError and other OSErrors.
    """
    control_id = content.split(b"|", _CONTROL_ID + 1)[_CONTROL_ID].decode()
    end = time.monotonic() + destination.answer_seconds
    connection.settimeout(destination.answer_seconds)
    connection.sendall(mllp.frame(content))
    frames, named_another = mllp.Frames(connection), False
    try:
        while (received := _next(frames, end)) is not None:
            answer = read_acknowledgment(received)
            if answer.control_id in ("", control_id):  # some peers name no message, and only one was sent here
                return answer
            named_another = True
    except OSError:
        if not named_another:
            raise
    if named_another:
        raise OutcomeUnknown(f"{destination.name} acknowledged another message (MSA-2) than this one (MSH-10)")
    raise RetryLater(_lost(destination))


def _next(frames: mllp.Frames, end: float) -> bytes | None:
    """Return the next answer before an end on the monotonic clock. Raises BrokenFrame and OSError."""
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return frames.next(idle_seconds=left, frame_seconds=left)


def _lost(destination: Hl7Destination) -> str:
    return f"{destination.name} ended the connection without an answer"


SENDER: Final[Sender[Hl7Destination]] = Sender(send=send, probe=probe, examine=examine)
