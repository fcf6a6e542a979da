"""STOW-RS and QIDO-RS: each answer of an archive and what follows, TLS and tokens, and the whole way with Orthanc."""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from dicomweb_client.api import DICOMwebClient

from node.config import AuditSettings
from node.deliver import dicomweb
from node.deliver.kinds import Calling
from node.domain import Delivery
from node.errors import DestinationDown, GiveUp, RetryLater
from node.settings.destinations import DicomwebDestination, TlsSettings
from node.store.database import connect
from node.store.ledger import Ledger
from node.store.spool import Spool
from tests.support import films, peers, senders
from tests.support.certificates import Authority
from tests.support.orthanc import Orthanc
from tests.support.service import Service, run_command, settings_for
from tests.support.web_archive import WebArchive, web_archive

CONTENT = films.file_bytes(films.thumbnail())
UID = str(films.thumbnail().SOPInstanceUID)
TRANSFERS = ("Begin Transferring DICOM Instances", "DICOM Instances Transferred")
STUDY = str(films.thumbnail().StudyInstanceUID)


@pytest.fixture
def archive() -> Iterator[WebArchive]:
    with web_archive() as archive:
        yield archive


def to(port: int, *, scheme: str = "http", tls: TlsSettings | None = None) -> DicomwebDestination:
    url = f"{scheme}://{peers.LOOPBACK}:{port}/dicom-web"
    return DicomwebDestination(name="web", url=url, answer_seconds=1.0, tls=tls)


def deliver(destination: DicomwebDestination) -> None:
    senders.deliver(CONTENT, destination, calling_aet="CHEX")


def reason(value: object, *, sequence: str = "00081198") -> bytes:
    failed = {"00081197": {"vr": "US", "Value": [value]}}
    return json.dumps({sequence: {"vr": "SQ", "Value": [failed]}}).encode()


XML = """<?xml version="1.0"?><NativeDicomModel xmlns="http://dicom.nema.org/PS3.19/models/NativeDICOM">
<DicomAttribute tag="00081198" vr="SQ" keyword="FailedSOPSequence"><Item number="1"><DicomAttribute tag="00081197"
vr="US"><Value number="1">{}</Value></DicomAttribute></Item></DicomAttribute></NativeDicomModel>"""


def test_the_bytes_of_the_file_are_one_part_of_the_request_that_takes_no_proxy(
    archive: WebArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://{peers.LOOPBACK}:1")

    deliver(to(archive.port))

    ((method, path, headers, body),) = archive.requests
    kind, _, boundary = headers["Content-Type"].partition("; boundary=")
    assert (method, path, kind) == ("POST", "/dicom-web/studies", 'multipart/related; type="application/dicom"')
    start = f"--{boundary}\r\nContent-Type: application/dicom\r\n\r\n".encode()
    assert body == start + CONTENT + f"\r\n--{boundary}--\r\n".encode()
    assert "Authorization" not in headers
    assert headers["Accept"] == "application/dicom+json"


@pytest.mark.parametrize(
    ("status", "body"),
    [
        *((status, b"") for status in range(200, 205)),
        (200, b"<xml/>"),
        (202, b"{}"),
        (200, b"[" * 100_000),
        (409, reason(0x0111)),  # a duplicate
    ],
)
def test_an_answer_without_a_failure_means_stored(archive: WebArchive, status: int, body: bytes) -> None:
    archive.status, archive.body = status, body

    deliver(to(archive.port))

    assert len(archive.requests) == 1


@pytest.mark.parametrize(
    ("status", "words"),
    [
        *((status, "does not admit") for status in (401, 403)),
        *((status, "not available") for status in (502, 503, 504)),
    ],
)
def test_a_probe_finds_an_archive_down_that_takes_nothing_now(archive: WebArchive, status: int, words: str) -> None:
    archive.status = status

    with pytest.raises(DestinationDown, match=words):
        senders.probe(to(archive.port), calling_aet="CHEX")

    ((method, path, *_),) = archive.requests
    assert (method, path) == ("GET", "/dicom-web/studies?StudyInstanceUID=2.25.0&limit=1"), "no patient comes back"


@pytest.mark.parametrize("how", [{"body": b"{" * 200, "drops": 0.1}, {"closes": True}], ids=["in drops", "no answer"])
def test_an_answer_that_does_not_come_whole_is_tried_again_in_time(archive: WebArchive, how: dict[str, object]) -> None:
    vars(archive).update(how)
    began = time.monotonic()

    with pytest.raises(RetryLater, match="no whole answer"):
        deliver(to(archive.port))

    assert time.monotonic() - began < 5


def test_an_archive_that_is_gone_is_down() -> None:
    with socket.socket() as bound:
        bound.bind((peers.LOOPBACK, 0))
        with pytest.raises(DestinationDown, match="Connection refused"):
            deliver(to(bound.getsockname()[1]))


def test_the_token_is_read_anew_each_time(archive: WebArchive, tmp_path: Path) -> None:
    token = tmp_path / "token"
    destination = replace(to(archive.port), token_file=token)
    with pytest.raises(DestinationDown, match="token_file cannot be read"):
        deliver(destination)
    for text in ("first", "second\n"):
        token.write_text(text)
        deliver(destination)
    token.write_text("two\nlines")
    with pytest.raises(DestinationDown, match="does not hold one line"):
        deliver(destination)

    assert [headers["Authorization"] for _, _, headers, _ in archive.requests] == ["Bearer first", "Bearer second"]


def test_both_sides_of_tls_are_known(authority: Authority, tmp_path: Path) -> None:
    pacs, own = authority.issue("web"), authority.issue("node of the web")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority.certificate)
    context.load_cert_chain(pacs.certificate, pacs.key)
    context.verify_mode = ssl.CERT_REQUIRED
    known = TlsSettings(ca=authority.certificate, certificate=own.certificate, key=own.key)
    with web_archive(tls=context) as archive:
        deliver(to(archive.port, scheme="https", tls=known))
        with pytest.raises(RetryLater):
            deliver(to(archive.port, scheme="https", tls=TlsSettings(ca=authority.certificate)))
        stranger = Authority.found(tmp_path)
        for doubted in (TlsSettings(ca=stranger.certificate), None):  # None: the authorities of the system
            with pytest.raises(DestinationDown, match="certificate is refused"):
                deliver(to(archive.port, scheme="https", tls=doubted))

    assert len(archive.requests) == 1


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (200, f'[{{"00080018": {{"vr": "UI", "Value": ["{UID}"]}}}}]', True),
        (200, '[{"00080018": {"vr": "UI", "Value": ["1.2.3"]}}]', False),
        (200, "[]", False),
        (204, "", False),
        (404, "", False),
        (501, "", GiveUp),
        *((status, "", RetryLater) for status in (429, 500, 503)),
    ],
)
def test_a_query_says_whether_an_object_is_kept(
    archive: WebArchive, status: int, body: str, expected: bool | type[Exception]
) -> None:
    archive.status, archive.body = status, body.encode()

    if isinstance(expected, bool):
        assert dicomweb.is_kept(STUDY, UID, to(archive.port)) is expected
        return
    with pytest.raises(expected, match="storage_commitment = false" if expected is GiveUp else None):
        dicomweb.is_kept(STUDY, UID, to(archive.port))


@pytest.mark.parametrize(
    ("status", "commits", "state"),
    [
        (200, False, "ok"),
        (204, True, "ok"),
        (404, False, "note"),
        (404, True, "fault"),
        (403, False, "fault"),
        (503, False, "fault"),
    ],
)
def test_doctor_asks_for_no_study_and_sends_no_object(
    archive: WebArchive, status: int, commits: bool, state: str
) -> None:
    archive.status, archive.body = status, b"[]"

    (check,) = dicomweb.examine(replace(to(archive.port), storage_commitment=commits), Calling(ae_title="CHEX"))

    assert check.state == state
    asked = ("GET", "/dicom-web/studies?StudyInstanceUID=2.25.0&limit=1")
    assert [request[:2] for request in archive.requests] == [asked]


def test_results_arrive_in_orthanc_and_are_committed(tmp_path: Path) -> None:
    with Orthanc(tmp_path, node_port=1) as orthanc:
        url = f"http://{peers.LOOPBACK}:{orthanc.http_port}/dicom-web"
        destination = DicomwebDestination(name="web", url=url, storage_commitment=True)
        audit = AuditSettings(file=tmp_path / "audit.log")
        settings = replace(settings_for(tmp_path / "node", archive_port=1), destinations=(destination,), audit=audit)
        with Service(settings) as service:
            assert peers.send(films.thumbnail(), port=service.dicom_port) == 0
            service.wait_for("delivery.committed", count=2)
            examined = run_command("doctor", service.settings_path).stdout
            assert service.stop() == 0

        client = DICOMwebClient(url=url)
        found = client.search_for_instances(study_instance_uid=STUDY)
        assert sorted(item["00080060"]["Value"][0] for item in found) == ["PR", "SR"]
        spool = Spool(tmp_path / "node")
        for output in (output for mark in spool.rounds(STUDY) for output in mark.outputs):
            uids = (STUDY, output.series_instance_uid, output.sop_instance_uid)
            assert client.retrieve_instance(*uids).SOPInstanceUID == output.sop_instance_uid
            assert spool.output(output) in orthanc.files()  # not a byte is changed
    assert "answers a query for no study" in examined
    told = [line for line in (tmp_path / "audit.log").read_text().splitlines() if f'UserID="{peers.LOOPBACK}"' in line]
    assert [sum(f'originalText="{event}"' in line for line in told) for event in TRANSFERS] == [2, 2]


def test_an_object_that_an_archive_lost_is_sent_again(archive: WebArchive, tmp_path: Path) -> None:
    spool, ledger = Spool(tmp_path), Ledger(connect(tmp_path / "ledger.sqlite"))
    films.keep(spool, films.thumbnail())
    delivery = Delivery(destination="web", study_uid=STUDY, sop_instance_uid=UID, kind="sr")
    spool.keep_output(delivery, CONTENT)
    ledger.add_delivery(delivery)
    sending = senders.sending(spool, ledger, replace(to(archive.port), storage_commitment=True))
    now = time.time()
    assert sending.send(delivery, 1, now).to_confirm_since is not None

    archive.body = b"[]"
    soon, later = (sending.commit([delivery], 1, started) for started in (now, now - 700))

    assert (soon.again, soon.open) == ((), (delivery,))
    assert (later.again, later.open) == ((delivery,), ())
    ledger.close()


@pytest.mark.parametrize(
    ("status", "said", "error", "words"),
    [
        *((status, b"", GiveUp, f"refused the object with status {status}") for status in (400, 409, 413, 422)),
        *((status, b"", GiveUp, "correct destinations.url") for status in (301, 302, 303, 307, 308, 404, 405, 501)),
        *((status, b"", RetryLater, f"web answered {status}") for status in (408, 429, 500)),
        *((status, b"", DestinationDown, "does not admit") for status in (401, 403)),
        *((status, b"", DestinationDown, "not available") for status in (502, 503, 504)),
        (200, reason("43264"), GiveUp, "A900"),
        (201, reason("A900"), GiveUp, "A900"),
        (202, reason("0xA900"), GiveUp, "A900"),
        (409, reason(" a900 "), GiveUp, "A900"),
        (409, reason(43264.0), GiveUp, "A900"),
        (409, reason("A700"), RetryLater, "A700"),
        *((202, reason(written), RetryLater, "0110") for written in ("272", "0110")),
        (409, reason(0xA700), RetryLater, "A700"),
        (202, reason(0x0122), GiveUp, "0122"),
        (200, reason(0xC000), GiveUp, "C000"),
        *((409, reason(odd), RetryLater, "0110") for odd in ("no space", None, -1, True)),
        (202, reason(43264, sequence="0008119A"), GiveUp, "A900"),
        (409, XML.format(43264).encode(), GiveUp, "A900"),
        (202, XML.format(42752).encode(), RetryLater, "A700"),
        *((status, b"", GiveUp, str(status)) for status in (406, 411, 414, 415)),
        (400, b"<html><h1>Bad Request</h1><p>Invalid <b>SOP Class</b></p></html>", GiveUp, "400; see its log"),
        (409, b'{"Message": "The instance already exists"}', GiveUp, "409"),
        (507, b"", RetryLater, "507"),
        (400, b"Patient MEIER^Hans 19700101: duplicate of PID-7788" * 500, GiveUp, "400"),
    ],
)
def test_the_status_and_reason_of_an_archive_decide_and_are_told_not_what_it_quotes_of_a_patient(
    archive: WebArchive, status: int, said: bytes, error: type[Exception], words: str
) -> None:
    archive.status, archive.body = status, said
    archive.headers = {"Location": f"http://{peers.LOOPBACK}:{archive.port}/elsewhere"}

    with pytest.raises(error) as caught:
        deliver(to(archive.port))

    told = str(caught.value)
    assert (type(caught.value), words in told, len(told) < 250) == (error, True, True)
    assert not any(secret in told.lower() for secret in ("meier", "hans", "1970", "7788"))
    assert len(archive.requests) == 1  # it follows nowhere
