"""Files and multipart bodies as others write them: each is stored as it is, or refused."""

from __future__ import annotations

import struct
from io import BytesIO

import pytest
from pydicom import dcmread
from pydicom.uid import JPEG2000Lossless

from tests.node.web import test_web_submit
from tests.node.web.test_web_submit import RELATED, Node, film, kept, reasons, related, uids
from tests.support import films

node_of_http = test_web_submit.node


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


def wrong_length(content: bytes) -> bytes:
    return content[:140] + struct.pack("<L", 9999) + content[144:]


FILES = {
    "a preamble with something in it": lambda content: b"II*\0" + b"x" * 124 + content[128:],
    "no group length": lambda content: without(content),
    "a group length that is wrong": wrong_length,
    "no preamble": lambda content: content[132:],
    "no SOP Instance UID in the meta": lambda content: without(content, "MediaStorageSOPInstanceUID"),
    "no SOP Class UID in the meta": lambda content: without(content, "MediaStorageSOPClassUID"),
    "no names in the meta": lambda content: without(content, "MediaStorageSOPClassUID", "MediaStorageSOPInstanceUID"),
    "no transfer syntax": lambda content: without(content, "TransferSyntaxUID"),
    "a dataset alone": films.body_of,
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["single", "related"])
def test_a_file_is_stored_as_dcmtk_reads_it(node_of_http: Node, name: str, kind: str) -> None:
    sent = film(f"{name} {kind}")
    content = FILES[name](films.file_bytes(sent))

    if kind == "related":
        answer = node_of_http.submit(related([content]), kind=RELATED)
    else:
        answer = node_of_http.submit(content)

    assert (answer.status_code, uids(answer, "00081199")) == (200, [sent.SOPInstanceUID])
    stored = kept(node_of_http, sent)
    assert films.body_of(stored) == films.body_of(films.file_bytes(sent))
    assert dcmread(BytesIO(stored)).file_meta.TransferSyntaxUID == sent.file_meta.TransferSyntaxUID


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no film",
        b"\0" * 2000,
        b"x" * 128 + b"DICM",
        b"x" * 128 + b"DICX" + b"\2\0\0\0",
        without(films.file_bytes(films.compressed(films.thumbnail(), JPEG2000Lossless)))[:500],
        b"\0\10\0\5" + b"big endian" * 20,
        films.file_bytes(films.thumbnail())[:150],
    ],
)
def test_what_cannot_be_completed_is_refused(node_of_http: Node, content: bytes) -> None:
    answer = node_of_http.submit(content)

    assert answer.status_code == 409
    assert (reasons(answer, "0008119A") or reasons(answer, "00081198")) == [0xC000]


def body(
    *parts: bytes,
    end: bytes = b"\r\n",
    headers: bytes = b"Content-Type: application/dicom\r\n",
    before: bytes = b"",
    padding: bytes = b"",
) -> bytes:
    """A multipart body whose lines end so; before: the first boundary; padding: behind each."""
    lines = b"".join(b"--end-of-film" + padding + end + headers + end + part + end for part in parts)
    return before + lines + b"--end-of-film--"


BODIES: dict[str, dict[str, bytes]] = {
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
def test_a_multipart_body_is_read_as_others_write_it(node_of_http: Node, name: str, after: bytes) -> None:
    sent = [film(f"{name} {after!r} {number}") for number in range(2)]

    answer = node_of_http.submit(body(*map(films.file_bytes, sent), **BODIES[name]) + after, kind=RELATED)

    assert (answer.status_code, uids(answer, "00081199")) == (200, [each.SOPInstanceUID for each in sent])
    assert [films.body_of(kept(node_of_http, each)) for each in sent] == [
        films.body_of(films.file_bytes(each)) for each in sent
    ]
