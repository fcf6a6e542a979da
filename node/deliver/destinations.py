"""The table of destination types; passes each delivery to the code of its type.

A sender returns when the destination has accepted the output. It raises DestinationDown when the destination accepts
nothing now, RetryLater when this output may be accepted later, and GiveUp when it will fail every time.
"""

from __future__ import annotations

from node.deliver import dicom, dicomweb, hl7
from node.deliver.associations import Associations
from node.settings.destinations import DestinationSettings, DicomDestination, DicomwebDestination, Hl7Destination


def deliver(
    content: bytes, destination: DestinationSettings, *, calling_aet: str, associations: Associations | None = None
) -> None:
    """Send the content of one output file to its destination.

    associations: those that are open from earlier objects
    Raises RetryLater or GiveUp.
    """
    match destination:
        case DicomDestination():
            dicom.send(content, destination, calling_aet=calling_aet, associations=associations)
        case Hl7Destination():
            hl7.send(content, destination)
        case DicomwebDestination():
            dicomweb.send(content, destination)


def probe(destination: DestinationSettings, *, calling_aet: str) -> None:
    """Check whether a destination that was down answers again, without sending an output.

    Raises DestinationDown.
    """
    match destination:
        case DicomDestination():
            dicom.echo(destination, calling_aet=calling_aet)
        case Hl7Destination():
            hl7.probe(destination)
        case DicomwebDestination():
            dicomweb.probe(destination)
