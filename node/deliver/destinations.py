"""The table of destination types; passes each delivery to the code of its type.

A sender returns when the destination has accepted the output. It raises DestinationDown when the destination accepts
nothing now, RetryLater when this output may be accepted later, and GiveUp when it will fail every time.
"""

from __future__ import annotations

from node.config import DestinationSettings, DicomDestination, Hl7Destination
from node.deliver import dicom, hl7


def deliver(content: bytes, destination: DestinationSettings, *, calling_aet: str) -> None:
    """Send the content of one output file to its destination.

    Raises RetryLater or GiveUp.
    """
    match destination:
        case DicomDestination():
            dicom.send(content, destination, calling_aet=calling_aet)
        case Hl7Destination():
            hl7.send(content, destination)


def probe(destination: DestinationSettings, *, calling_aet: str) -> None:
    """Check whether a destination that was down answers again, without sending an output.

    Raises DestinationDown.
    """
    match destination:
        case DicomDestination():
            dicom.echo(destination, calling_aet=calling_aet)
        case Hl7Destination():
            hl7.probe(destination)
