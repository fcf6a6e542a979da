"""A FHIR server: each of its answers and what follows; who the node says that it is."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from node.deliver import fhir
from node.deliver.kinds import Calling
from node.errors import DestinationDown, GiveUp, RetryLater
from node.outputs.fhir import write
from node.settings.destinations import FhirDestination
from tests.support import peers, samples, senders
from tests.support.web_archive import WebArchive, web_archive

BUNDLE = write(
    samples.report(samples.several()), samples.sources(samples.cr()), samples.BERLIN, order=None, documents=[]
)[1]
CALLING = Calling(ae_title="CHEX")


@pytest.fixture
def server() -> Iterator[WebArchive]:
    with web_archive() as server:
        yield server


def to(server: WebArchive) -> FhirDestination:
    return FhirDestination(name="fhir", url=f"http://{peers.LOOPBACK}:{server.port}/r5", answer_seconds=1.0)


def outcome(code: str, *, severity: str = "error") -> bytes:
    issue = {"severity": severity, "code": code, "diagnostics": "Doe^Jane was born 1950"}
    return json.dumps({"resourceType": "OperationOutcome", "issue": [issue]}).encode()


def test_the_bundle_is_posted_to_the_base_as_it_was_written(server: WebArchive) -> None:
    senders.deliver(BUNDLE, to(server), calling_aet="CHEX")

    ((method, path, headers, body),) = server.requests
    kinds = {headers["Content-Type"], headers["Accept"]}
    assert (method, path, kinds, body) == ("POST", "/r5", {"application/fhir+json"}, BUNDLE)
    server.status = 201
    senders.deliver(BUNDLE, to(server), calling_aet="CHEX")


@pytest.mark.parametrize(
    ("status", "body", "follows"),
    [
        (400, outcome("invalid"), GiveUp),
        (422, outcome("business-rule"), GiveUp),
        (412, outcome("multiple-matches"), GiveUp),
        *(
            (422, outcome(code), RetryLater)
            for code in ("lock-error", "transient", "no-store", "exception", "timeout", "incomplete")
        ),
        *((status, b"", GiveUp) for status in (301, 404, 406, 410, 413, 415)),
        (422, outcome("lock-error", severity="fatal"), RetryLater),
        (422, outcome("lock-error", severity="warning"), GiveUp),
        (422, outcome("Doe^Jane"), GiveUp),
        (409, outcome("conflict"), RetryLater),
        (429, outcome("throttled"), RetryLater),
        (500, b"<html>Doe^Jane</html>", RetryLater),
        (400, b"[1, 2", GiveUp),
        *((status, b"", DestinationDown) for status in (401, 403, 502, 503, 504)),
    ],
)
def test_status_and_issue_decide_and_no_text_of_the_server_is_told(
    server: WebArchive, status: int, body: bytes, follows: type[Exception]
) -> None:
    server.status, server.body = status, body

    with pytest.raises(follows) as told:
        fhir.send(BUNDLE, to(server), CALLING)

    assert type(told.value) is follows
    assert "Doe" not in str(told.value) and str(status) in str(told.value)


def test_a_server_that_is_gone_is_down() -> None:
    with web_archive() as server:
        destination = to(server)
    with pytest.raises(DestinationDown):
        fhir.send(BUNDLE, destination, CALLING)
    with pytest.raises(DestinationDown):
        fhir.probe(destination, CALLING)


def without_system(found: dict[str, object]) -> dict[str, object]:
    """Remove the system of an identifier of a patient or a request."""
    if "value" in found and "type" in found:
        found.pop("system", None)
    return found


def test_the_systems_of_the_server_name_patient_and_accession_number(server: WebArchive) -> None:
    destination = replace(to(server), patient_system="urn:oid:1.2.3", accession_system="https://ris.example/accession")

    fhir.send(BUNDLE, destination, CALLING)

    sent = json.loads(server.requests[0][3])
    report = sent["entry"][-1]["resource"]
    assert report["subject"]["identifier"]["system"] == "urn:oid:1.2.3"
    assert report["basedOn"][0]["identifier"]["system"] == "https://ris.example/accession"
    assert json.loads(server.requests[0][3], object_hook=without_system) == json.loads(
        BUNDLE, object_hook=without_system
    )


def test_a_login_of_a_file_is_sent_by_basic_authentication(server: WebArchive, tmp_path: Path) -> None:
    login = tmp_path / "login"
    login.write_text("chex:s3cret\n")

    fhir.send(BUNDLE, replace(to(server), login_file=login), CALLING)

    sent = server.requests[0][2]["Authorization"]
    assert base64.b64decode(sent.removeprefix("Basic ")) == b"chex:s3cret"


@pytest.mark.parametrize(
    ("status", "statement", "state"),
    [
        (200, {"fhirVersion": "5.0.0"}, "ok"),
        (200, {"fhirVersion": "4.0.1"}, "fault"),
        (404, {"fhirVersion": "5.0.0"}, "fault"),
        (200, {}, "fault"),
        (403, {}, "fault"),
    ],
)
def test_doctor_asks_for_the_release_and_sends_no_bundle(
    server: WebArchive, status: int, statement: dict[str, str], state: str
) -> None:
    server.status, server.body = status, json.dumps(statement).encode()

    first, *rest = fhir.examine(to(server), CALLING)

    assert first.state == state
    assert ["patient_system is empty" in check.message for check in rest] == [True] * (state == "ok")
    assert [request[:2] for request in server.requests] == [("GET", "/r5/metadata?_summary=true")]
