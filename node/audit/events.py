"""Which log event becomes which audit message: the one table of PS3.15 A.5.3 for this node.

A log event that is not in the table leaves no message, nor does one whose `reason` is not among the rule's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from node.domain import Code


def dcm(value: str, meaning: str) -> Code:
    """Return a code of PS3.16 (DCM)."""
    return Code(value=value, scheme="DCM", meaning=meaning)


class Party(StrEnum):
    """Who takes part besides the node."""

    NOBODY = "the node"
    USER = "the user, the node"
    WORKSTATION = "the sender of the object, the node"
    CALLER = "the caller (source), the node (destination)"
    DESTINATION = "the node (source), the destination"
    REFUSED = "the node, the refused side"


class Subject(StrEnum):
    """The participant object of a message."""

    NOTHING = "none"
    STUDY = "study"
    LIST = "list of studies"
    ALERT = "alert"


SUCCESS: Final = "0"
MINOR: Final = "4"
SERIOUS: Final = "8"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRule:
    """The message of one log event.

    action: C create, R read, U update, D delete, E execute; outcome: SUCCESS, MINOR or SERIOUS failure
    reasons: the reasons for which the event leaves a message; empty: any
    """

    event: Code
    action: str
    kind: Code | None = None
    outcome: str = SUCCESS
    party: Party = Party.NOBODY
    subject: Subject = Subject.NOTHING
    reasons: tuple[str, ...] = ()


_ACTIVITY: Final = dcm("110100", "Application Activity")
_BEGIN: Final = dcm("110102", "Begin Transferring DICOM Instances")
_ACCESSED: Final = dcm("110103", "DICOM Instances Accessed")
_TRANSFERRED: Final = dcm("110104", "DICOM Instances Transferred")
_DELETED: Final = dcm("110105", "DICOM Study Deleted")
_ALERT: Final = dcm("110113", "Security Alert")
_AUTHENTICATION: Final = dcm("110114", "User Authentication")

_START: Final = dcm("110120", "Application Start")
_STOP: Final = dcm("110121", "Application Stop")
_LOGIN: Final = dcm("110122", "Login")
_LOGOUT: Final = dcm("110123", "Logout")
_NODE_AUTHENTICATION: Final = dcm("110126", "Node Authentication")
_SECURITY: Final = dcm("110129", "Security Configuration")
_SOFTWARE: Final = dcm("110131", "Software Configuration")
_RESTRICTED: Final = dcm("110132", "Use of Restricted Function")
_RECORDING_STOPPED: Final = dcm("110133", "Audit Recording Stopped")
_RECORDING_STARTED: Final = dcm("110134", "Audit Recording Started")
_USERS: Final = dcm("110137", "User Security Attributes Changed")


def _activity(kind: Code) -> AuditRule:
    return AuditRule(event=_ACTIVITY, action="E", kind=kind)


def _received(action: str) -> AuditRule:
    return AuditRule(event=_TRANSFERRED, action=action, party=Party.CALLER, subject=Subject.STUDY)


def _sent(event: Code, action: str, outcome: str = SUCCESS) -> AuditRule:
    return AuditRule(event=event, action=action, outcome=outcome, party=Party.DESTINATION, subject=Subject.STUDY)


def _touched(action: str, party: Party = Party.USER, outcome: str = SUCCESS) -> AuditRule:
    return AuditRule(event=_ACCESSED, action=action, outcome=outcome, party=party, subject=Subject.STUDY)


def _alert(kind: Code, outcome: str, party: Party = Party.NOBODY, reasons: tuple[str, ...] = ()) -> AuditRule:
    return AuditRule(
        event=_ALERT, action="E", kind=kind, outcome=outcome, party=party, subject=Subject.ALERT, reasons=reasons
    )


def _signed(kind: Code, outcome: str = SUCCESS) -> AuditRule:
    return AuditRule(event=_AUTHENTICATION, action="E", kind=kind, outcome=outcome, party=Party.USER)


RULES: Final[Mapping[str, AuditRule]] = {
    "service.started": _activity(_START),
    "service.stopped": _activity(_STOP),
    "instance.kept": _received("C"),
    "instance.conflict": _received("C"),
    "instance.repeated": _received("R"),
    "delivery.begun": _sent(_BEGIN, "E"),
    "delivery.sent": _sent(_TRANSFERRED, "R"),
    "delivery.delayed": _sent(_TRANSFERRED, "R", MINOR),
    "delivery.parked": _sent(_TRANSFERRED, "R", SERIOUS),
    "study.finished": _touched("C", Party.NOBODY),
    "worklist.viewed": AuditRule(event=_ACCESSED, action="R", party=Party.USER, subject=Subject.LIST),
    "study.viewed": _touched("R"),
    "film.viewed": _touched("R"),
    "output.downloaded": _touched("R"),
    "questions.viewed": _touched("R"),
    "corrections.viewed": _touched("R"),
    "question.asked": _touched("R"),
    "question.sent": _touched("C"),
    "question.removed": _touched("D"),
    "question.answered": _touched("C", Party.WORKSTATION),
    "question.refused": _touched("C", Party.WORKSTATION, MINOR),
    "correction.made": _touched("U"),
    "corrections.finished": _touched("C"),
    "film.rejected": _touched("U", Party.NOBODY),
    "study.retried": _touched("U"),
    "study.reread": _touched("U"),
    "study.deleted": AuditRule(event=_DELETED, action="D", party=Party.USER, subject=Subject.STUDY),
    "film.submitted": _touched("C"),
    "study.removed": AuditRule(event=_DELETED, action="D", subject=Subject.STUDY),
    "session.begun": _signed(_LOGIN),
    "session.refused": _signed(_LOGIN, MINOR),
    "session.ended": _signed(_LOGOUT),
    "association.refused": _alert(_NODE_AUTHENTICATION, MINOR, Party.REFUSED, ("caller", "called_ae", "tls")),
    "order.refused": _alert(_NODE_AUTHENTICATION, MINOR, Party.REFUSED, ("caller", "tls")),
    "access.refused": _alert(_RESTRICTED, MINOR, Party.REFUSED),
    "access.denied": _alert(_RESTRICTED, MINOR, Party.USER),
    "destination.examined": _alert(_RESTRICTED, SUCCESS, Party.USER),
    "certificate.reloaded": _alert(_SECURITY, SUCCESS),
    "certificate.refused": _alert(_SECURITY, MINOR),
    "passwords.reloaded": _alert(_USERS, SUCCESS),
    "passwords.refused": _alert(_USERS, MINOR),
    "configuration.reloaded": _alert(_SOFTWARE, SUCCESS),
    "configuration.refused": _alert(_SOFTWARE, MINOR),
    "model.promoted": _alert(_SOFTWARE, SUCCESS),
    "model.accepted": _alert(_SOFTWARE, SUCCESS),
    "audit.stopped": _alert(_RECORDING_STOPPED, SERIOUS),
    "audit.resumed": _alert(_RECORDING_STARTED, SUCCESS),
}
