"""A type of destination: a folder that another program watches, such as a router or a share of the house.

Each object is a file named after its SOP Instance UID. A file is there whole or not at all, so a watcher never sees
half of one, and an object that is sent again replaces itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from typing import Annotated, Final

from pydicom import dcmread

from node.check_result import Check, fault, ok
from node.deliver.kinds import Calling, Sender
from node.errors import DestinationDown
from node.output_kinds import DEFAULT_OUTPUTS
from node.settings.destinations import DestinationType, Outputs, TlsSettings, TypeName
from node.settings.rules import FilePath, NotBlank, between
from node.store import files


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderDestination:
    """A folder that gets results as files; directory: must exist, so that a share that is away is noticed."""

    name: NotBlank
    directory: FilePath
    type: TypeName = "example-folder"
    outputs: Outputs = DEFAULT_OUTPUTS
    give_up_hours: Annotated[float, between(0.001, 8760.0)] = 72.0

    @property
    def host(self) -> str:
        """A folder has no address."""
        return ""

    @property
    def port(self) -> int:
        """A folder has no port."""
        return 0

    @property
    def tls(self) -> TlsSettings | None:
        """A folder has no connection."""
        return None

    @property
    def storage_commitment(self) -> bool:
        """A folder tells nobody what it keeps."""
        return False


def send(content: bytes, destination: FolderDestination, _calling: Calling) -> None:
    """Write the object into the folder, synced. Raises DestinationDown if the folder takes no file now."""
    uid = dcmread(BytesIO(content), specific_tags=["SOPInstanceUID"]).SOPInstanceUID
    probe(destination, _calling)
    try:
        files.write(destination.directory / f"{uid}.dcm", content, mode=files.ORDINARY)
    except OSError as error:
        raise DestinationDown(f"{destination.name}: its directory takes no file ({error.strerror})") from error


def probe(destination: FolderDestination, _calling: Calling) -> None:
    """Check that the folder is there and may be written. Raises DestinationDown."""
    if not os.access(destination.directory, os.W_OK | os.X_OK):
        raise DestinationDown(f"{destination.name}: its directory is not there, or the node may not write into it")


def examine(destination: FolderDestination, calling: Calling) -> Iterator[Check]:
    """Say for `doctor` whether the folder takes files; none is written."""
    name = f"destination {destination.name}"
    try:
        probe(destination, calling)
    except DestinationDown as error:
        yield fault(name, f"{error}; mount or make {destination.directory}, or correct directory of this destination")
    else:
        yield ok(name, f"{destination.directory} may be written; no object was sent")


SENDER: Final[Sender[FolderDestination]] = Sender(send=send, probe=probe, examine=examine)
TYPE: Final = DestinationType(settings=FolderDestination, sender="watched_folder:SENDER")
