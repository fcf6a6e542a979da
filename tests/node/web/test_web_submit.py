"""Objects submitted over HTTP: each is stored as one that came by C-STORE, however it is written, or refused."""

from __future__ import annotations

import http.client
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO

import httpx2
import pytest
from pydicom import dcmread
from pydicom.dataset import Dataset
from pydicom.uid import ExplicitVRLittleEndian, JPEG2000Lossless

from node.store.spool import Spool
from tests.support import films, peers
from tests.support.peers import LOOPBACK
from tests.support.service import Service, settings_for

SINGLE = "application/dicom"
RELATED = 'multipart/related; type="application/dicom"; boundary=end-of-film'


UID, REASON = "00081155", "00081197"  # Referenced SOP Instance UID, Failure Reason


def listed(answer: httpx2.Response, sequence: str, element: str) -> list[object]:
    """The values of an element in a sequence of an answer."""
    return [item[element]["Value"][0] for item in answer.json().get(sequence, {}).get("Value", [])]


@dataclass(frozen=True, kw_only=True)
class Node:
    """A running node without destinations."""

    service: Service
    spool: Spool

    def submit(self, body: bytes, *, kind: str = SINGLE, to: str = "/api/v1/instances") -> httpx2.Response:
        return self.service.request("POST", to, body, kind=kind)

    def assert_stored(self, answer: httpx2.Response, *sent: Dataset) -> None:
        """Check that all was stored, byte for byte behind the file meta information."""
        assert (answer.status_code, listed(answer, "00081199", UID)) == (200, [each.SOPInstanceUID for each in sent])
        for each in sent:
            (instance,) = self.spool.instances(str(each.StudyInstanceUID))
            stored = instance.path.read_bytes()
            assert films.body_of(stored) == films.body_of(films.file_bytes(each))
            assert dcmread(BytesIO(stored)).file_meta.TransferSyntaxUID == each.file_meta.TransferSyntaxUID


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    directory = tmp_path_factory.mktemp("submit") / "node"
    settings = replace(settings_for(directory, archive_port=104), destinations=())
    listener = replace(settings.listener, max_object_mib=1)
    with Service(replace(settings, listener=listener)) as service:
        yield Node(service=service, spool=Spool(directory))


def film(name: str) -> Dataset:
    """A film in a study of its own."""
    return films.as_another(films.thumbnail(), name, study=name)


def related(
    files: Sequence[bytes],
    *,
    end: bytes = b"\r\n",
    headers: bytes = b"Content-Type: application/dicom\r\n",
    before: bytes = b"",
    padding: bytes = b"",
) -> bytes:
    """A body with several files whose lines end so; before: the first boundary; padding: behind each."""
    parts = (b"--end-of-film" + padding + end + headers + end + file + end for file in files)
    return before + b"".join(parts) + b"--end-of-film--"


def test_a_film_is_stored_byte_for_byte_read_and_downloaded(node: Node) -> None:
    sent = film("single")

    answer = node.submit(films.file_bytes(sent), to="/api/v1/instances?priority=stat")

    node.assert_stored(answer, sent)
    assert answer.headers["content-type"] == "application/dicom+json"
    assert node.spool.is_stat(str(sent.StudyInstanceUID))
    finished = ("study.finished", sent.StudyInstanceUID)
    # In another order of the tests, the films of all others are read before.
    node.service.wait_for_line(lambda line: (line["event"], line.get("study")) == finished, limit_seconds=240)
    told = node.service.request("GET", f"/api/v1/studies/{sent.StudyInstanceUID}").json()
    assert ({output["kind"] for output in told["outputs"]}, told["deliveries"]) == ({"sr", "gsps"}, [])
    paths = [f"/api/v1/outputs/{output['uid']}" for output in told["outputs"]]
    assert {node.service.request("GET", path).status_code for path in paths} == {200}


def test_it_is_the_same_object_as_by_c_store(node: Node) -> None:
    sent = film("both ways")
    before = len(node.service.logged("instance.repeated"))

    assert node.submit(films.file_bytes(sent)).status_code == 200
    assert peers.send(sent, port=node.service.dicom_port) == 0

    node.service.wait_for("instance.repeated", count=before + 1)
    assert len(node.spool.versions(str(sent.StudyInstanceUID))) == 1


def test_what_cannot_be_stored_is_told_with_its_reason(node: Node) -> None:
    good, other, announced = film("good"), film("of another syntax"), film("announced")
    unknown = films.file_bytes(other).replace(ExplicitVRLittleEndian.encode(), b"1.2.840.10008.1.2.9", 1)
    cut = films.file_bytes(film("cut"))[:200]
    another = f"{announced.SOPInstanceUID[:-1]}{(int(announced.SOPInstanceUID[-1]) + 1) % 10}"
    not_announced = films.file_bytes(announced).replace(announced.SOPInstanceUID.encode(), another.encode(), 1)

    answer = node.submit(related([films.file_bytes(good), unknown, cut, b"no film"]), kind=RELATED)
    renamed = node.submit(not_announced)

    assert answer.status_code == 202
    assert listed(answer, "00081199", UID) == [good.SOPInstanceUID]
    assert (listed(answer, "00081198", UID), listed(answer, "00081198", REASON)) == ([other.SOPInstanceUID], [0xC122])
    assert listed(answer, "0008119A", REASON) == [0xC000, 0xC000]
    assert (renamed.status_code, listed(renamed, "00081198", REASON)) == (409, [0xC000]), "another UID than announced"


def test_the_refused_parts_of_a_request_are_one_line_of_the_log(node: Node) -> None:
    before, sent = len(node.service.logged("instance.refused")), film("after them")
    unknown = films.file_bytes(film("of a syntax")).replace(ExplicitVRLittleEndian.encode(), b"1.2.840.10008.1.2.9", 1)

    assert node.submit(related([b"no film"] * 999 + [unknown]), kind=RELATED).status_code == 409
    assert node.submit(films.file_bytes(sent)).status_code == 200

    kept = ("instance.kept", sent.SOPInstanceUID)
    node.service.wait_for_line(lambda line: (line["event"], line.get("sop_instance_uid")) == kept)
    told = node.service.logged("instance.refused")[before:]  # a line about what was refused before may come late
    assert [(line["reason"], line["times"]) for line in told if "times" in line] == [("cannot_understand", 1000)]
    assert len(told) < 10


def test_a_request_that_is_no_submission_or_a_file_that_cannot_be_completed_is_refused(node: Node) -> None:
    for kind, body, status in (
        ("application/json", b"{}", 415),
        ("multipart/form-data; boundary=end-of-film", b"", 415),
        ('multipart/related; type="application/dicom+json"; boundary=x', b"--x--", 415),
        ('multipart/related; type="application/dicom"', b"--x--", 400),
        ('multipart/related; type="application/dicom"; boundary=' + "x" * 300, b"", 400),
        *((RELATED, body, 400) for body in (b"", b"--another--", b"--end-of-film--", related([b"film"])[:-30])),
        (RELATED, b"--end-of-film\r\n\r\n\r\n" * 1001 + b"--end-of-film--", 413),
    ):
        answer = node.submit(body, kind=kind)
        assert (answer.status_code, b"\n" in answer.content) == (status, False), (kind, body)

    compressed = films.file_bytes(films.compressed(films.thumbnail(), JPEG2000Lossless))
    for content in (
        *(b"", b"no film", b"\0" * 2000, b"x" * 128 + b"DICM", b"x" * 128 + b"DICX" + b"\2\0\0\0"),
        without(compressed)[:500],
        b"\0\10\0\5" + b"big endian" * 20,
        films.file_bytes(films.thumbnail())[:150],
    ):
        answer = node.submit(content)
        refused = listed(answer, "0008119A", REASON) or listed(answer, "00081198", REASON)
        assert (answer.status_code, refused) == (409, [0xC000]), content


def test_an_object_above_the_limit_of_the_listener_or_a_lost_connection_leaves_nothing(node: Node) -> None:
    large, lost = films.file_bytes(film("large")) + b"\0" * 1024 * 1024, films.file_bytes(film("lost"))

    answer = node.submit(large)
    connection = http.client.HTTPConnection(LOOPBACK, node.service.http_port, timeout=60)
    connection.putrequest("POST", "/api/v1/instances")
    connection.putheader("Content-Type", SINGLE)
    connection.putheader("Content-Length", str(len(lost)))
    connection.endheaders(lost[:-100])
    connection.close()

    assert (answer.status_code, "listener.max_object_mib" in str(answer.json()["detail"])) == (413, True)
    # Not at once: what the node notes meanwhile of objects that came before is written in the same way.
    peers.wait_until(lambda: not [*node.spool.directory.rglob(".incoming-*")], what="nothing half-written is left")
    assert not node.service.logged("page.failed")


def without(content: bytes, *elements: str) -> bytes:
    """A file without some elements of its file meta information, and without its length."""
    part = dcmread(BytesIO(content))
    meta = b""
    for element in part.file_meta:
        if element.keyword not in elements and element.tag != 0x00020000:
            value = element.value if element.VR == "OB" else str(element.value).encode()
            value += b"\0" * (len(value) % 2)
            length = struct.pack("<HL", 0, len(value)) if element.VR == "OB" else struct.pack("<H", len(value))
            meta += struct.pack("<HH", element.tag.group, element.tag.element) + element.VR.encode() + length + value
    return content[:132] + meta + films.body_of(content)


def wrong_length(content: bytes, off: int) -> bytes:
    (length,) = struct.unpack("<L", content[140:144])
    return content[:140] + struct.pack("<L", length + off) + content[144:]


FILES: dict[str, Callable[[bytes], bytes]] = {
    "a preamble with something in it": lambda content: b"II*\0" + b"x" * 124 + content[128:],
    "no group length": lambda content: without(content),
    **{f"a group length {off} bytes off": partial(wrong_length, off=off) for off in (-17, -2, 2, 6, 9999)},
    "no preamble": lambda content: content[132:],
    "no SOP Instance UID in the meta": lambda content: without(content, "MediaStorageSOPInstanceUID"),
    "no SOP Class UID in the meta": lambda content: without(content, "MediaStorageSOPClassUID"),
    "no names in the meta": lambda content: without(content, "MediaStorageSOPClassUID", "MediaStorageSOPInstanceUID"),
    "no transfer syntax": lambda content: without(content, "TransferSyntaxUID"),
    "a dataset alone": films.body_of,
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_stored_as_dcmtk_reads_it(node: Node, name: str) -> None:
    alone, part = film(f"{name} alone"), film(f"{name} as a part")

    node.assert_stored(node.submit(FILES[name](films.file_bytes(alone))), alone)
    node.assert_stored(node.submit(related([FILES[name](films.file_bytes(part))]), kind=RELATED), part)


BODIES: dict[str, dict[str, bytes]] = {
    "as the standard has it": {},
    "line feeds": {"end": b"\n", "headers": b"Content-Type: application/dicom\n"},
    "line feeds in the headers": {"headers": b"Content-Type: application/dicom\nContent-Length: 7\n"},
    "no headers": {"headers": b""},
    "no headers and line feeds": {"headers": b"", "end": b"\n"},
    "an empty line first": {"before": b"\r\n"},
    "a text first": {"before": b"This is a message in MIME format.\r\n\r\n"},
    "a text and line feeds": {"before": b"This is a message in MIME format.\n", "end": b"\n"},
    "a text with something like the boundary": {"before": b"--end-of-film-not-yet\r\n"},
    "blanks behind the boundary": {"padding": b" \t "},
}


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("after", [b"", b"\r\n", b"\nand more text\r\n--end-of-film\r\n"], ids=["cut", "line", "text"])
def test_a_multipart_body_is_read_as_others_write_it(node: Node, name: str, after: bytes) -> None:
    path = "/api/v1/instances" if after else "/api/v1/dicomweb/studies"
    sent = [film(f"{name} {after!r} {number}") for number in range(2)]

    answer = node.submit(related([*map(films.file_bytes, sent)], **BODIES[name]) + after, kind=RELATED, to=path)

    node.assert_stored(answer, *sent)
