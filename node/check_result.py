"""The result of one check, and running checks so that a failing check does not end the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from node.errors import NodeError, please_report, where


class CheckState(StrEnum):
    """ok; note: the node works, but a person should know; fault: a person must act."""

    OK = "ok"
    NOTE = "note"
    FAULT = "fault"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The result of one check: its name, its state, and one line with the finding and the remedy."""

    name: str
    state: CheckState
    message: str


def ok(name: str, message: str) -> Check:
    """Return a good result."""
    return Check(name=name, state=CheckState.OK, message=message)


def note(name: str, message: str) -> Check:
    """Return a result with a warning."""
    return Check(name=name, state=CheckState.NOTE, message=message)


def fault(name: str, message: str) -> Check:
    """Return a fault with its remedy."""
    return Check(name=name, state=CheckState.FAULT, message=message)


def run_check(name: str, look: Callable[[], Iterable[Check]]) -> tuple[Check, ...]:
    """Run one check; an exception becomes its fault."""
    try:
        return tuple(look())
    except NodeError as error:
        return tuple(fault(name, mistake) for mistake in str(error).split("\n"))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the boundary to this machine; the text of a foreign error may hold a password
        return (fault(name, f"cannot be checked: {where(error)}; {please_report()}"),)
