"""ORU^R01 over MLLP: one message, one connection, and what its acknowledgment means.

The stored message is the same for all; where it goes is written into its header here, from settings alone, so that a
repeat has the same bytes. An answer counts only when it names this message: a late one to an earlier message is
passed over. A connection that cannot be made is the destination's fault, and everything else for it waits; one that
ends without an answer, or on which none comes, may be this message's fault and stops no other.
"""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Final

from node.config import Hl7Destination
from node.destinations.connection import connect
from node.errors import GiveUp, RetryLater
from node.hl7 import character_sets, mllp
from node.hl7.acknowledgment import Acknowledgment, Code, read_acknowledgment
from node.hl7.text import SEGMENT_END, escape

_CONNECT_SECONDS: Final = 10.0
_PROBE_SECONDS: Final = 5.0

# Table 0357: segment sequence, required field missing, data type, table value; unsupported message type, event,
# processing id, version; duplicate key. The same message would meet the same error again.
_HOPELESS: Final = frozenset(("100", "101", "102", "103", "200", "201", "202", "203", "205"))

# Where the header names sender, receiver, processing id and character set, counted from the segment's name (2.15.9).
_FIRST_ADDRESS, _CONTROL_ID, _PROCESSING_ID, _CHARACTER_SET = 2, 9, 10, 17


def send(path: Path, destination: Hl7Destination) -> None:
    """Send one message and wait for its acknowledgment.

    Raises RetryLater, DestinationDown when no connection can be made, or GiveUp.
    """
    content = address(path.read_bytes(), destination)
    with connect(destination, limit_seconds=_CONNECT_SECONDS) as connection:
        try:
            answer = _exchange(connection, content, destination)
        except mllp.BrokenFrame as error:
            raise RetryLater(f"{destination.name} answered with something that is no acknowledgment") from error
        except TimeoutError as error:
            raise RetryLater(_no_answer(destination)) from error
        except OSError as error:
            raise RetryLater(_lost(destination)) from error
    judge(answer, destination.name)


def probe(destination: Hl7Destination) -> None:
    """Look whether a connection can be made. Raises DestinationDown."""
    connect(destination, limit_seconds=_PROBE_SECONDS).close()


def address(content: bytes, destination: Hl7Destination) -> bytes:
    """Write into a message's header who sends it to whom, as what (MSH-3 to MSH-6, MSH-11), in which character set.

    The whole message is in that set (MSH-18).
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
    return character_sets.encode(f"{'|'.join(fields)}{SEGMENT_END}{rest}", destination.character_set)


def judge(answer: Acknowledgment, name: str) -> None:
    """Turn an acknowledgment into an outcome (HL7 2.5.1 2.9.2).

    AE says that the content is at fault, AR that something else is, which by the standard may pass. Engines do not
    keep to it: they answer AE when a system behind them is down, and AR for what they filter out. So the error code
    decides where there is one, and both are tried again where there is none, until `give_up_hours` have passed.
    Raises RetryLater or GiveUp.
    """
    if answer.code == Code.ACCEPT:
        return
    if answer.code not in set(Code):
        raise RetryLater(f"{name} answered with an unknown acknowledgment code")
    hopeless = sorted(_HOPELESS.intersection(answer.conditions))
    if hopeless:
        raise GiveUp(f"{name} answered {answer.code} with error {', '.join(hopeless)}; see its log, then retry")
    raise RetryLater(f"{name} answered {answer.code}")


def _exchange(connection: socket.socket, content: bytes, destination: Hl7Destination) -> Acknowledgment:
    """Send a message and wait for the answer that names it.

    Raises RetryLater, BrokenFrame, TimeoutError and other OSErrors.
    """
    control_id = content.split(b"|", _CONTROL_ID + 1)[_CONTROL_ID].decode()
    end = time.monotonic() + destination.answer_seconds
    connection.settimeout(destination.answer_seconds)
    connection.sendall(mllp.frame(content))
    frames = mllp.Frames(connection)
    while (left := end - time.monotonic()) > 0:
        received = frames.next(idle_seconds=left, frame_seconds=left)
        if received is None:
            raise RetryLater(_lost(destination))
        try:
            answer = read_acknowledgment(received)
        except ValueError as error:
            raise mllp.BrokenFrame("an answer is no acknowledgment") from error
        if answer.control_id == control_id:
            return answer
    raise TimeoutError


def _lost(destination: Hl7Destination) -> str:
    return f"{destination.name} ended the connection without an answer"


def _no_answer(destination: Hl7Destination) -> str:
    return f"{destination.name} gave no answer to this message in {destination.answer_seconds:g} s"
