"""The exception tree. The class of an error, never its text, tells the caller what to do next."""

from __future__ import annotations

import errno
import os
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Final

from models.program import FAULTS_URL

INTERRUPTED: Final = 130
"""The exit code that a shell expects after Ctrl-C: 128 and the number of SIGINT."""

_TAKES_NOTHING: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO))
_UNREADABLE: Final = frozenset((errno.EIO, errno.EBADMSG, errno.EUCLEAN))


class NodeError(Exception):
    """Base of all errors that this program raises on purpose. The message has the fault, its place and the remedy.

    No message contains patient data.
    """


class ConfigError(NodeError):
    """The settings cannot be used. Holds every mistake, one line each."""

    def __init__(self, mistakes: Sequence[str]) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = tuple(mistakes)


class InputError(NodeError):
    """An argument on the command line cannot be used (exit code 2)."""


class Stopped(NodeError):
    """The node was asked to stop while it waited; nothing needs cleaning up."""


class Refused(NodeError):
    """A C-STORE that is not acknowledged; the sender gets the status (PS3.4 B.2.3)."""

    status: ClassVar[int] = 0xC000
    reason: ClassVar[str] = "cannot_understand"


class SyntaxRefused(Refused):
    """An object in a transfer syntax that the node does not accept (PS3.18 I.2.2)."""

    status = 0xC122


class SpoolFull(Refused):
    """Free space is below the reserve: the sender keeps the film and tries again (PS3.4 B.2.3, A7xx)."""

    status = 0xA700
    reason = "out_of_resources"


class Undecodable(NodeError):
    """The pixels of a film cannot be decoded to gray values; `reason` is one of `domain.Reason`."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Failed(Refused):
    """The node failed while it received an object; the same object may be accepted later (PS3.7 C)."""

    status = 0x0110
    reason = "processing_failure"


class RetryLater(NodeError):
    """The peer or the disk is busy: the same work may succeed later."""


class AskerGone(NodeError):
    """Who asked has closed the connection, so the question is not answered."""


class DestinationDown(RetryLater):
    """The destination accepts nothing now: all its deliveries wait."""


class OutcomeUnknown(RetryLater):
    """The destination's answer leaves open whether it took the object."""


class OtherForm(NodeError, ValueError):
    """A stored document has a format that this program does not know."""


class ModelLost(NodeError):
    """The model is unusable in this process, for example after a GPU error: the process must end."""


class ReaderFailed(NodeError):
    """A network other than ChEX failed on a film, or its result breaks the contract: that film alone is parked."""


class GiveUp(NodeError):
    """The work will fail every time: park it for a person."""


def is_of_disk(error: BaseException) -> bool:
    """Return whether an error comes from the disk, which affects every study.

    Libraries raise an OSError without a number for faults of a file; pydicom does for one that ends too early.
    """
    return isinstance(error, OSError) and error.errno is not None


def is_not_writable(error: BaseException) -> bool:
    """Whether a disk stores nothing now: it is full, mounted read-only, or fails. The settings are not at fault."""
    return isinstance(error, OSError) and error.errno in _TAKES_NOTHING


def is_of_file(error: BaseException) -> bool:
    """Whether a disk has lost part of one file, for example to a bad sector; the rest of the disk may be good."""
    return isinstance(error, OSError) and error.errno in _UNREADABLE


def please_report() -> str:
    """Ask for a report of a fault of the program, at its address if it has one."""
    return f"this is a fault of the program, please report it{FAULTS_URL and f' at {FAULTS_URL}'}"


def reason_of(error: BaseException) -> tuple[str, str]:
    """Return the loggable reason of an error that ended some work, and its kind: foreseen or unforeseen."""
    return (str(error), "foreseen") if isinstance(error, NodeError) else (where(error), "unforeseen")


def where(error: BaseException) -> str:
    """Name an unforeseen error by its class and place, one of the system also by its number's meaning.

    Its text is not used: it may contain patient data.
    """
    frame = traceback.extract_tb(error.__traceback__)[-1]
    meaning = f" ({os.strerror(error.errno)})" if isinstance(error, OSError) and error.errno is not None else ""
    return f"{type(error).__name__}{meaning} at {Path(frame.filename).name}:{frame.lineno}"
