"""The exception tree: the class of an error, never its text, tells the caller what to do next."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar


class NodeError(Exception):
    """Everything this program raises on purpose. Messages say what, which and what now; never patient data."""


class ConfigError(NodeError):
    """The settings cannot be used. Holds every mistake found, one line each."""

    def __init__(self, mistakes: Sequence[str]) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = tuple(mistakes)


class InputError(NodeError):
    """What a person gave on the command line cannot be used (exit 2)."""


class Stopped(NodeError):
    """Asked to stop while it waited for something; there is nothing to clean up."""


class Refused(NodeError):
    """A C-STORE that is not acknowledged; the status goes back to the sender (PS3.4 B.2.3)."""

    status: ClassVar[int] = 0xC000
    reason: ClassVar[str] = "cannot_understand"


class SpoolFull(Refused):
    """The disk is below its reserve: the sender keeps the film and tries again (PS3.4 B.2.3, A7xx)."""

    status = 0xA700
    reason = "out_of_resources"


class Undecodable(NodeError):
    """The pixels of a film cannot become gray values; `reason` is one of `domain.Reason`."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Failed(Refused):
    """Something of ours went wrong while an object was received; the same object may be taken later (PS3.7 C)."""

    status = 0x0110
    reason = "processing_failure"


class RetryLater(NodeError):
    """Busy peer, busy disk: the same work will succeed later."""


class DestinationDown(RetryLater):
    """Nothing can be sent there now, whatever it is: everything else for it waits as well."""


class GiveUp(NodeError):
    """Will fail every time: park it for a person."""


def is_of_disk(error: BaseException) -> bool:
    """Say whether an error is the disk's, which no other study would be spared.

    Libraries raise an OSError without a number for what is wrong with a file, pydicom where one ends too early.
    """
    return isinstance(error, OSError) and error.errno is not None


def where(error: BaseException) -> str:
    """Name an unforeseen error by its class and place; its text may hold patient data."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}"
