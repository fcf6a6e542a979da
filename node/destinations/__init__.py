"""The table of senders; turns one delivery into one call.

A sender returns when the destination has taken the output, raises RetryLater when the same attempt may succeed
later, and GiveUp when it will fail every time.
"""

from __future__ import annotations

from pathlib import Path

from node.config import DestinationSettings, DicomDestination, Hl7Destination
from node.destinations import dicom, hl7


def deliver(path: Path, destination: DestinationSettings, *, calling_aet: str) -> None:
    """Hand one output file to its destination.

    Raises RetryLater or GiveUp.
    """
    match destination:
        case DicomDestination():
            dicom.send(path, destination, calling_aet=calling_aet)
        case Hl7Destination():
            hl7.send(path, destination)


def probe(destination: DestinationSettings, *, calling_aet: str) -> None:
    """Ask a destination that was down whether it is there again, without sending anything.

    Raises DestinationDown.
    """
    match destination:
        case DicomDestination():
            dicom.echo(destination, calling_aet=calling_aet)
        case Hl7Destination():
            hl7.probe(destination)
