"""Each message against the schema of PS3.15 A.5.1, the codes of PS3.16, the tables of A.5.3, and our own document."""

from __future__ import annotations

import base64
import re
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree
from pydicom.sr.codedict import codes

from node import log
from node.audit import message
from node.audit.events import RULES, AuditRule, Party, Subject
from node.audit.message import Reporter
from tests.paths import FIXTURES, REPOSITORY

SCHEMA = etree.RelaxNG(etree.parse(FIXTURES / "audit_message.rng"))
DOCUMENT = (REPOSITORY / "docs" / "operate" / "audit.md").read_text(encoding="utf-8")
AT = datetime(2026, 3, 1, 12, 30, 15, 250_000, tzinfo=UTC)
REPORTER = Reporter(ae_title="CHEX", machine="reader-1", executor="node", process_id=4711)
FACTS: dict[str, object] = {
    "study": "1.2.3",
    "sop_instance_uid": "1.2.3.4",
    "calling_aet": "MODALITY",
    "called_aet": "ARCHIVE",
    "host": "10.0.0.5",
    "user": "ada",
    "reason": "caller",
    "times": 3,
}


def written(event: str, **facts: object) -> etree._Element:
    text = message.write({"event": event, **FACTS, **facts}, at=AT, reporter=REPORTER)
    assert text is not None
    return etree.fromstring(text.encode())


def code(element: etree._Element, path: str) -> tuple[str, str, str]:
    (found,) = element.findall(path)
    return found.get("csd-code", ""), found.get("codeSystemName", ""), found.get("originalText", "")


def users(element: etree._Element) -> list[str | None]:
    return [participant.get("UserID") for participant in element.findall("ActiveParticipant")]


def row(event: str, rule: AuditRule) -> str:
    kind = "" if rule.kind is None else f"{rule.kind.value} {rule.kind.meaning}"
    reasons = f", only for {', '.join(rule.reasons)}" if rule.reasons else ""
    cells = (
        f"`{event}`{reasons}",
        f"{rule.event.value} {rule.event.meaning}",
        kind,
        rule.action,
        rule.outcome,
        rule.party.value,
        rule.subject.value,
    )
    return "| " + " | ".join(cells) + " |"


@pytest.mark.parametrize("event", RULES)
def test_every_message_is_valid_by_the_schema(event: str) -> None:
    assert SCHEMA.validate(written(event)), SCHEMA.error_log


def test_the_schema_refuses_what_the_standard_forbids() -> None:
    good = written("study.viewed")
    for path, attribute in ((".", None), ("EventIdentification", "EventDateTime"), ("ActiveParticipant", "UserID")):
        bad = etree.fromstring(etree.tostring(good))
        (found,) = bad.findall(path) if path == "." else bad.findall(path)[:1]
        if attribute is None:
            found.set("Other", "1")
        else:
            del found.attrib[attribute]
        assert not SCHEMA.validate(bad)


def test_every_code_is_one_of_the_standard() -> None:
    known = {str(entry.value): entry.meaning for entry in (getattr(codes.DCM, name) for name in codes.DCM.dir())}
    found = set()
    for event in RULES:
        for element in written(event).iter():
            if "codeSystemName" in element.attrib:
                found.add((element.get("csd-code"), element.get("originalText"), element.get("codeSystemName")))

    assert len(found) > 20
    assert [entry for entry in found if known.get(str(entry[0])) != entry[1] or entry[2] != "DCM"] == []


def test_every_event_of_the_table_is_a_log_event_and_every_part_is_used() -> None:
    assert set(RULES) <= set(log.EVENTS)
    assert {rule.party for rule in RULES.values()} == set(Party)
    assert {rule.subject for rule in RULES.values()} == set(Subject)


def test_the_document_has_the_table_of_the_code() -> None:
    rows = re.findall(r"^\| `\w+\.\w+`.*\|$", DOCUMENT, re.MULTILINE)

    assert rows == [row(event, rule) for event, rule in RULES.items()]


def test_transfers_name_source_and_destination() -> None:
    for event, source, destination in (("instance.kept", "MODALITY", "4711"), ("delivery.sent", "4711", "ARCHIVE")):
        roles = {
            participant.get("UserID"): code(participant, "RoleIDCode")[0]
            for participant in written(event).findall("ActiveParticipant")
        }
        assert roles == {source: "110153", destination: "110152"}


@pytest.mark.parametrize("event", ["question.answered", "question.refused"])
def test_a_workstation_that_asks_is_the_requestor(event: str) -> None:
    sender, node = written(event).findall("ActiveParticipant")

    assert (sender.get("UserID"), sender.get("AlternativeUserID")) == ("MODALITY", "AETITLES=MODALITY")
    assert (sender.get("UserIsRequestor"), node.get("UserIsRequestor")) == ("true", "false")
    assert node.get("UserID") == "4711"
    assert users(written(event, calling_aet="", host=""))[0] == "unknown"


def test_a_message_about_a_study_names_study_and_instance() -> None:
    (study,) = written("instance.kept").findall("ParticipantObjectIdentification")

    assert study.get("ParticipantObjectID") == "1.2.3"
    assert code(study, "ParticipantObjectIDTypeCode")[0] == "110180"
    (instance,) = study.iter("Instance")
    assert instance.get("UID") == "1.2.3.4"


def test_no_message_has_a_patient_as_participant_object() -> None:
    roles = [
        found.get("ParticipantObjectTypeCodeRole")
        for event in RULES
        for found in written(event, patient_name="Doe^Jane", patient_id="17").iter("ParticipantObjectIdentification")
    ]

    assert set(roles) == {"3", "13"}


def test_what_a_user_did_names_the_user_and_the_address() -> None:
    viewed = written("film.viewed")

    (user, _) = viewed.findall("ActiveParticipant")
    assert (user.get("UserID"), user.get("NetworkAccessPointID"), user.get("UserIsRequestor")) == (
        "ada",
        "10.0.0.5",
        "true",
    )
    assert users(written("film.viewed", user="")) == ["10.0.0.5", "4711"]


@pytest.mark.parametrize(
    ("event", "facts", "indicator", "said"),
    [
        ("correction.made", {"outcome": "done"}, "0", None),
        ("correction.made", {"outcome": "refused"}, "4", None),
        ("correction.made", {"outcome": "not_found"}, "4", None),
        ("correction.made", {"outcome": "failed"}, "8", None),
        ("question.refused", {"reason": "it has no graphic"}, "4", "it has no graphic"),
    ],
)
def test_the_outcome_of_an_act_is_told(event: str, facts: dict[str, object], indicator: str, said: str | None) -> None:
    found = written(event, **facts).find("EventIdentification")

    assert found is not None
    assert found.get("EventOutcomeIndicator") == indicator
    assert said is None or found.findtext("EventOutcomeDescription") == said


def test_only_refused_identities_raise_a_security_alert() -> None:
    for event in ("association.refused", "order.refused"):
        assert message.write({"event": event, "reason": "limit"}, at=AT, reporter=REPORTER) is None
        (alert,) = written(event).findall("ParticipantObjectIdentification")
        (detail,) = alert.findall("ParticipantObjectDetail")
        assert base64.b64decode(detail.get("value", "")) == b"reason=caller; times=3"


def test_a_certificate_fault_of_a_sender_of_orders_is_an_alert() -> None:
    event = {"event": "order.refused", "reason": "tls: peer did not return a certificate", "host": "10.0.0.9"}

    text = message.write(event, at=AT, reporter=REPORTER)

    assert text is not None
    assert users(etree.fromstring(text.encode())) == ["4711", "10.0.0.9"]


def test_a_destination_without_an_ae_title_is_known_by_its_host() -> None:
    event = {"event": "delivery.sent", "study": "1.2", "kind": "sr", "host": "pacs.example.org"}

    text = message.write(event, at=AT, reporter=REPORTER)

    assert text is not None
    assert SCHEMA.validate(etree.fromstring(text.encode()))
    assert users(etree.fromstring(text.encode())) == ["4711", "pacs.example.org"]
    assert "AETITLES=CHEX" in text and text.count("AETITLES") == 1


@pytest.mark.parametrize(
    ("event", "facts"),
    [
        ("delivery.sent", {"kind": "oru", "host": "10.0.0.7"}),
        ("delivery.parked", {"kind": "sr"}),
        ("instance.kept", {"host": "10.0.0.8"}),
        ("film.decided", {}),
    ],
)
def test_what_is_no_dicom_transfer_leaves_no_message(event: str, facts: dict[str, object]) -> None:
    assert message.write({"event": event, "study": "1.2", **facts}, at=AT, reporter=REPORTER) is None


@given(st.text(max_size=400))
def test_any_title_from_outside_gives_one_valid_line(title: str) -> None:
    text = message.write(
        {"event": "association.refused", "reason": "caller", "calling_aet": title}, at=AT, reporter=REPORTER
    )

    assert text is not None
    assert "\n" not in text
    assert SCHEMA.validate(etree.fromstring(text.encode()))


def test_a_line_has_the_header_of_the_profile() -> None:
    found = message.line("<AuditMessage/>", at=AT, reporter=REPORTER)

    header = b"<85>1 2026-03-01T12:30:15.250Z reader-1 chex-node 4711 DICOM+RFC3881 - "
    assert found == header + b"\xef\xbb\xbf<AuditMessage/>"


@pytest.mark.parametrize("event", RULES)
def test_no_message_exceeds_what_collectors_must_take(event: str) -> None:
    long = "x" * 1000
    reason = next(iter(RULES[event].reasons), long)
    facts = {**FACTS, "reason": reason, **dict.fromkeys(("name", "message", "model", "user", "host"), long)}

    text = message.write({"event": event, **facts}, at=AT, reporter=REPORTER)

    assert text is not None
    assert len(message.line(text, at=AT, reporter=REPORTER)) <= 8192  # RFC 5425 4.3.1: should be able to take
