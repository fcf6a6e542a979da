"""The table of senders; turns one delivery into one call.

A sender returns when the destination has taken the object, raises RetryLater when the same attempt may succeed
later, and GiveUp when it will fail every time.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

from node.config import DestinationSettings
from node.destinations import dicom


class Sender(Protocol):
    """Sends one file."""

    def __call__(self, path: Path, destination: DestinationSettings, *, calling_aet: str) -> None:
        """Return when it was taken; raise RetryLater, DestinationDown or GiveUp."""


SENDERS: Final[Mapping[str, Sender]] = {"dicom": dicom.send}


def deliver(path: Path, destination: DestinationSettings, *, calling_aet: str) -> None:
    """Hand one output file to its destination.

    Raises RetryLater or GiveUp.
    """
    SENDERS[destination.type](path, destination, calling_aet=calling_aet)
