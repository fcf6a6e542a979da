"""Writes one log event as an audit message: XML by the schema of PS3.15 A.5.1, with the fields of A.5.2 and A.5.3.

A message has the same facts as its log event: UIDs, AE titles, addresses, users. The profile asks for a patient as a
participant object of most messages about studies; there is none, for no log event has a patient's name or number.
"""

from __future__ import annotations

import base64
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from node.audit.events import RULES, SUCCESS, AuditRule, Party, Subject, dcm
from node.domain import Code
from node.output_kinds import MESSAGES

_PRIORITY: Final = 10 * 8 + 5
"""Facility 10 (security and authorization), severity 5 (normal but significant)."""
_MESSAGE_ID: Final = "DICOM+RFC3881"
_APPLICATION: Final = "chex-node"
_UNKNOWN: Final = "-"

Event = Mapping[str, object]
"""The name of a log event, as `event`, and its fields."""

_SOURCE_ROLE: Final = dcm("110153", "Source Role ID")
_DESTINATION_ROLE: Final = dcm("110152", "Destination Role ID")
_APPLICATION_ROLE: Final = dcm("110150", "Application")
_STUDY_UID: Final = dcm("110180", "Study Instance UID")
_NODE_ID: Final = dcm("110182", "Node ID")

_MACHINE_NAME, _IP_ADDRESS = "1", "2"
_SYSTEM_OBJECT, _REPORT, _SECURITY_RESOURCE = "2", "3", "13"
_APPLICATION_SERVER: Final = "4"

_NOBODY: Final = "unknown"
_OUTCOMES: Final = {"not_found": "4", "refused": "4", "failed": "8"}
"""The outcome of a message by the `outcome` of a user's action."""

_DESCRIBED: Final = (
    "reason",
    "name",
    "message",
    "model",
    "prompts",
    "compared_by",
    "compared_at",
    "films",
    "changed",
    "thresholds",
    "times",
)
_MOST_CHARACTERS: Final = 300
_REASONED: Final = ("study.deleted", "study.reread")
"""Events whose reason a user chose out of a closed list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reporter:
    """The process that reports: its AE title, machine, executor and process number."""

    ae_title: str
    machine: str
    executor: str
    process_id: int


def write(event: Event, *, at: datetime, reporter: Reporter) -> str | None:
    """Return the message of a log event, on one line; None if the event leaves none.

    A transfer without DICOM instances or two known sides gives none: a message by HL7, a delivery to a destination
    that the settings no longer name. For an object that came over HTTP `film.submitted` names the user.
    """
    rule = RULES.get(_text(event, "event"))
    reason = _text(event, "reason").partition(":")[0]  # `tls: what the library says`
    if rule is None or (rule.reasons and reason not in rule.reasons):
        return None
    if not _has_parties(rule, event):
        return None
    root = ET.Element("AuditMessage")
    _identify(root, rule, event, at)
    _participants(root, rule, event, reporter)
    facts = {"AuditSourceID": _clean(reporter.ae_title)}
    kind = ET.SubElement(ET.SubElement(root, "AuditSourceIdentification", facts), "AuditSourceTypeCode")
    kind.set("csd-code", _APPLICATION_SERVER)
    if rule.subject is Subject.STUDY and "study" in event:
        _study(root, event, has_reason=_text(event, "event") in _REASONED)
    if rule.subject is Subject.LIST:
        _list(root, event, reporter)
    if rule.subject is Subject.ALERT:
        _alert(root, event, reporter)
    return '<?xml version="1.0" encoding="UTF-8"?>' + ET.tostring(root, encoding="unicode")


def line(message: str, *, at: datetime, reporter: Reporter) -> bytes:
    """Return a message with its header (RFC 5424 6, as PS3.15 A.6 asks for it), without an end of line."""
    moment = at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    machine = "".join(character for character in reporter.machine if "!" <= character <= "~")[:255] or _UNKNOWN
    header = f"<{_PRIORITY}>1 {moment} {machine} {_APPLICATION} {reporter.process_id} {_MESSAGE_ID} -"
    return f"{header} \N{ZERO WIDTH NO-BREAK SPACE}{message}".encode()


def _has_parties(rule: AuditRule, event: Event) -> bool:
    match rule.party:
        case Party.CALLER:
            return "calling_aet" in event
        case Party.DESTINATION:
            return "host" in event and event.get("kind") not in MESSAGES
        case _:
            return True


def _identify(root: ET.Element, rule: AuditRule, event: Event, at: datetime) -> None:
    outcome = _OUTCOMES.get(_text(event, "outcome"), rule.outcome)
    facts = {
        "EventActionCode": rule.action,
        "EventDateTime": at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "EventOutcomeIndicator": outcome,
    }
    identification = ET.SubElement(root, "EventIdentification", facts)
    _code(identification, "EventID", rule.event)
    if rule.kind is not None:
        _code(identification, "EventTypeCode", rule.kind)
    if outcome != SUCCESS and (reason := _text(event, "reason") or _text(event, "outcome")):
        ET.SubElement(identification, "EventOutcomeDescription").text = _clean(reason)


def _participants(root: ET.Element, rule: AuditRule, event: Event, reporter: Reporter) -> None:
    """Write the node and who takes part with it; a peer over DIMSE is known by its AE title (PS3.15 A.5.2.2)."""
    host = _text(event, "host")
    match rule.party:
        case Party.NOBODY:
            role = _APPLICATION_ROLE if rule.subject is Subject.NOTHING else None
            _node(root, reporter, role=role)
        case Party.USER:
            # Whoever performed what an alert reports is not its requestor (PS3.15 A.5.3.11).
            is_requestor = rule.subject is not Subject.ALERT
            _participant(root, _text(event, "user") or host or _NOBODY, host=host, is_requestor=is_requestor)
            _node(root, reporter)
        case Party.WORKSTATION:
            _peer(root, _text(event, "calling_aet"), host, is_requestor=True)
            _node(root, reporter)
        case Party.CALLER:
            _peer(root, _text(event, "calling_aet"), host, role=_SOURCE_ROLE, is_requestor=True)
            _node(root, reporter, role=_DESTINATION_ROLE)
        case Party.DESTINATION:
            _node(root, reporter, role=_SOURCE_ROLE, is_requestor=True)
            _peer(root, _text(event, "called_aet"), host, role=_DESTINATION_ROLE)
        case Party.REFUSED:
            _node(root, reporter)
            _peer(root, _text(event, "calling_aet"), host)


def _node(root: ET.Element, reporter: Reporter, *, role: Code | None = None, is_requestor: bool = False) -> None:
    participant = _participant(root, str(reporter.process_id), is_requestor=is_requestor, role=role)
    participant.set("AlternativeUserID", f"AETITLES={_clean(reporter.ae_title)}")
    participant.set("UserName", _clean(reporter.executor))
    participant.set("NetworkAccessPointID", _clean(reporter.machine))
    participant.set("NetworkAccessPointTypeCode", _MACHINE_NAME)


def _peer(root: ET.Element, ae_title: str, host: str, *, role: Code | None = None, is_requestor: bool = False) -> None:
    participant = _participant(root, ae_title or host or _NOBODY, host=host, is_requestor=is_requestor, role=role)
    if ae_title:
        participant.set("AlternativeUserID", f"AETITLES={_clean(ae_title)}")


def _participant(
    root: ET.Element, user_id: str, *, host: str = "", is_requestor: bool, role: Code | None = None
) -> ET.Element:
    facts = {"UserID": _clean(user_id), "UserIsRequestor": "true" if is_requestor else "false"}
    if host:
        is_address = ":" in host or host.replace(".", "").isdigit()
        facts["NetworkAccessPointID"] = _clean(host)
        facts["NetworkAccessPointTypeCode"] = _IP_ADDRESS if is_address else _MACHINE_NAME
    participant = ET.SubElement(root, "ActiveParticipant", facts)
    if role is not None:
        _code(participant, "RoleIDCode", role)
    return participant


def _study(root: ET.Element, event: Event, *, has_reason: bool) -> None:
    """Name the study, and the instance if the event is about one; has_reason: and why a user did something to it."""
    study = _object(root, _text(event, "study"), _STUDY_UID, role=_REPORT, name="study")
    if has_reason:
        value = base64.b64encode(_text(event, "reason").encode()).decode("ascii")
        ET.SubElement(study, "ParticipantObjectDetail", {"type": "Reason", "value": value})
    if "sop_instance_uid" in event:
        described = ET.SubElement(study, "ParticipantObjectDescription")
        instances = ET.SubElement(described, "SOPClass", {"NumberOfInstances": "1"})
        ET.SubElement(instances, "Instance", {"UID": _clean(_text(event, "sop_instance_uid"))})


def _list(root: ET.Element, event: Event, reporter: Reporter) -> None:
    """Name the node as the listed object, and the number of studies; never which, nor the search."""
    listed = _object(root, reporter.machine, _NODE_ID, role=_REPORT, name=_text(event, "event"))
    value = base64.b64encode(_text(event, "studies").encode()).decode("ascii")
    ET.SubElement(listed, "ParticipantObjectDetail", {"type": "Number of Studies", "value": value})


def _alert(root: ET.Element, event: Event, reporter: Reporter) -> None:
    """Name the node as the alert's subject, and the event, in the fields of the log event."""
    alert = _object(root, reporter.machine, _NODE_ID, role=_SECURITY_RESOURCE, name=_text(event, "event"))
    said = "; ".join(_clean(f"{name}={event[name]}") for name in _DESCRIBED if name in event) or _text(event, "event")
    value = base64.b64encode(said.encode()).decode("ascii")
    ET.SubElement(alert, "ParticipantObjectDetail", {"type": "Alert Description", "value": value})


def _object(root: ET.Element, name_of: str, kind: Code, *, role: str, name: str) -> ET.Element:
    facts = {
        "ParticipantObjectID": _clean(name_of),
        "ParticipantObjectTypeCode": _SYSTEM_OBJECT,
        "ParticipantObjectTypeCodeRole": role,
    }
    found = ET.SubElement(root, "ParticipantObjectIdentification", facts)
    _code(found, "ParticipantObjectIDTypeCode", kind)
    ET.SubElement(found, "ParticipantObjectName").text = name
    return found


def _code(parent: ET.Element, name: str, code: Code) -> None:
    facts = {"csd-code": code.value, "codeSystemName": code.scheme, "originalText": code.meaning}
    ET.SubElement(parent, name, facts)


def _text(event: Event, name: str) -> str:
    value = event.get(name)
    return "" if value is None else str(value)


def _clean(text: str) -> str:
    """Shorten a text, and replace what XML 1.0 forbids or would end the line: AE titles come from outside."""
    return "".join(character if character.isprintable() else "?" for character in text[:_MOST_CHARACTERS])
