"""Objects whose header can be taken in two ways: what is checked when they come is what is read of them later."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Final

import pytest
from pydicom import dcmread
from pydicom.datadict import dictionary_VR
from pydicom.dataset import Dataset
from pydicom.tag import Tag
from pydicom.uid import UID, DeflatedExplicitVRLittleEndian, ExplicitVRLittleEndian, RLELossless
from pynetdicom.dsutils import encode

from node.commands import read_files
from node.commands.explain.film import explain_file
from node.config import ListenerSettings
from node.dicom import header_reading
from node.dicom.header import identify
from node.domain import Film, Note
from node.errors import InputError, Refused, Undecodable
from node.metrics import Metrics
from node.outputs import wording
from node.outputs.patient import copy_patient, noted
from node.read import prompts
from node.read.film import Answered, answer_film
from node.receive.intake import IncomingFile, Intake
from node.store.spool import Spool
from tests.support import films
from tests.support.fakes import ScriptedReader

OTHER: Final = "1.2.3.4.5.6.7.80"
NAMING: Final = ("SOPClassUID", "SOPInstanceUID", "StudyInstanceUID", "SeriesInstanceUID")
PLACES: Final = ("PatientName", "SeriesInstanceUID", "StudyID", "Rows", None)
"""Before which element another one is put; None: behind the pixels."""


def element(keyword: str, value: str) -> bytes:
    """An element of a text, explicit little endian."""
    tag, encoded = Tag(keyword), value.encode() + b"\0" * (len(value) % 2)
    return struct.pack("<HH2sH", tag.group, tag.element, dictionary_VR(keyword).encode(), len(encoded)) + encoded


def start_of(content: bytes, keyword: str) -> int:
    """Where an element of a file begins."""
    tag = Tag(keyword)
    return content.index(struct.pack("<HH", tag.group, tag.element), 144)


def put(content: bytes, added: bytes, *, before: str | None) -> bytes:
    at = len(content) if before is None else start_of(content, before)
    return content[:at] + added + content[at:]


def without(content: bytes, keyword: str) -> tuple[bytes, bytes]:
    """A file without an element of a UID, and the element."""
    at = start_of(content, keyword)
    end = at + 8 + int.from_bytes(content[at + 6 : at + 8], "little")
    return content[:at] + content[end:], content[at:end]


def twice(keyword: str, place: str | None, *, is_other: bool = True) -> bytes:
    film = films.thumbnail()
    return put(films.file_bytes(film), element(keyword, OTHER if is_other else film[keyword].value), before=place)


def late(keyword: str, place: str | None) -> bytes:
    rest, moved = without(films.file_bytes(films.thumbnail()), keyword)
    return put(rest, moved, before=place)


def in_rle(content: Callable[[bytes], bytes]) -> bytes:
    film = films.compressed(films.thumbnail(), RLELossless)
    return content(films.file_bytes(film))


def deflated(content: bytes) -> bytes:
    """The same object in the deflated transfer syntax (PS3.5 A.5)."""
    film = films.thumbnail()
    film.file_meta.TransferSyntaxUID = DeflatedExplicitVRLittleEndian
    head, inflater = films.file_bytes(film), zlib.compressobj(wbits=-zlib.MAX_WBITS)
    body = inflater.compress(films.body_of(content)) + inflater.flush()
    return head[: -len(films.body_of(head))] + body + b"\0" * (len(body) % 2)


PLAIN: Final = films.file_bytes(films.thumbnail())
MISTAKABLE: Final = {
    **{f"{keyword} again before {place}": twice(keyword, place) for keyword in NAMING for place in PLACES[1:]},
    **{f"{keyword} again at once": twice(keyword, keyword) for keyword in NAMING},
    **{f"{keyword} late before {place}": late(keyword, place) for keyword in NAMING for place in ("Rows", None)},
    **{f"{keyword} again, the same": twice(keyword, "Rows", is_other=False) for keyword in NAMING},
    "an early study": put(
        without(films.file_bytes(films.thumbnail()), "StudyInstanceUID")[0],
        element("StudyInstanceUID", OTHER),
        before="SOPClassUID",
    ),
    "behind compressed pixels": in_rle(lambda content: content + element("SOPInstanceUID", OTHER)),
    "before compressed pixels": in_rle(lambda c: put(c, element("SOPInstanceUID", OTHER), before="Rows")),
    "deflated": deflated(twice("SOPInstanceUID", "Rows")),
    "deflated, behind the pixels": deflated(twice("SOPInstanceUID", None)),
    "two pictures": films.file_bytes(films.thumbnail()) + struct.pack("<HH2sHL", 0x7FE0, 0x10, b"OW", 0, 2) + b"\0\1",
}


def intake(folder: Path) -> Intake:
    return Intake(ListenerSettings(), Spool(folder, min_free_mib=0), metrics=Metrics(), on_kept=lambda _study: None)


def as_c_store(folder: Path, content: bytes) -> None:
    """Take an object as the listener does, under the UID of the thumbnail."""
    film, syntax = films.thumbnail(), dcmread(BytesIO(content)).file_meta.TransferSyntaxUID
    taking = intake(folder)
    incoming = taking.begin(
        sop_class_uid=film.SOPClassUID,
        sop_instance_uid=film.SOPInstanceUID,
        transfer_syntax_uid=syntax,
        sender="TESTER",
    )
    try:
        incoming.write(films.body_of(content))
        taking.keep(
            incoming,
            sop_instance_uid=film.SOPInstanceUID,
            transfer_syntax_uid=syntax,
            size=len(content),
            is_stat=False,
            sender={},
        )
    finally:
        incoming.discard()


def over_http(folder: Path, content: bytes) -> None:
    file = IncomingFile(intake(folder))
    try:
        file.write(content)
        file.keep(is_stat=False, tell=lambda _reason: None)
    finally:
        file.discard()


def by_read(folder: Path, content: bytes) -> None:
    read_files.collect([written(folder, content)])


def written(folder: Path, content: bytes) -> Path:
    path = folder / "film.dcm"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("take", [as_c_store, over_http, by_read])
@pytest.mark.parametrize("content", MISTAKABLE.values(), ids=MISTAKABLE)
def test_an_object_that_can_be_mistaken_is_refused_and_in_order_taken(
    tmp_path: Path, content: bytes, take: Callable[[Path, bytes], None]
) -> None:
    with pytest.raises((Refused, InputError), match=r"twice|late|readable|names no SOP"):
        take(tmp_path, content)
    take(tmp_path, PLAIN)


def answered(folder: Path, content: bytes) -> Answered:
    as_c_store(folder, content)
    return answer_film(written(folder, content), ScriptedReader(), prompts.load("chexpert14"))


def film_of(answer: Answered) -> Film:
    assert answer.film is not None
    assert answer.film.is_read
    return noted(answer.film, answer.dataset)


DISORDERED: Final = {
    "a name again": put(PLAIN, element("PatientName", "Another^One"), before="Rows"),
    "a number again": put(PLAIN, element("PatientID", "another"), before=None),
    "a number again, the same": put(PLAIN, element("PatientID", films.thumbnail().PatientID), before="StudyID"),
    "a number late": put(PLAIN, element("AccessionNumber", "A1"), before="Rows"),
    "rows again": put(PLAIN, PLAIN[start_of(PLAIN, "Rows") :][:10], before="PixelData"),
    "behind the pixels": put(PLAIN, element("PlacerOrderNumberImagingServiceRequest", "12"), before=None),
}


OBLONG = films.file_bytes(films.thumbnail({"PixelSpacing": [0.4, 0.8]}))


@pytest.mark.parametrize(
    ("content", "note"),
    [
        *((content, Note.HEADER_DISORDERED) for content in DISORDERED.values()),
        (OBLONG, Note.OBLONG_PIXELS),
        (films.file_bytes(films.thumbnail({"PixelSpacing": [0.4, 0.4]})), None),
        (PLAIN, None),
        (PLAIN + bytes(64), None),  # zeros behind the pixels are no element
    ],
    ids=[*DISORDERED, "oblong pixels", "square pixels", "in order", "zeros at the end"],
)
def test_other_disorder_and_oblong_pixels_are_read_with_a_caution(
    tmp_path: Path, content: bytes, note: Note | None
) -> None:
    film = film_of(answered(tmp_path, content))

    noted = [each for each in (Note.HEADER_DISORDERED, Note.OBLONG_PIXELS) if each in film.notes]
    assert noted == ([note] if note else [])
    assert tuple(wording.CAUTIONS[each] for each in noted) == wording.cautions(film)
    assert (Note.HEADER_DISORDERED in explain_file(tmp_path / "film.dcm", model=tmp_path).notes) is (
        note is Note.HEADER_DISORDERED
    )


@pytest.mark.parametrize(
    "keyword",
    [
        *("PatientID", "PatientName", "StudyDate", "StudyTime", "StudyID", "StudyDescription", "AccessionNumber"),
        *("ReferringPhysicianName", "RequestedProcedureID", "RequestedProcedureDescription"),
        *("TimezoneOffsetFromUTC", "PatientOrientation"),
    ],
)
def test_of_two_patients_studies_or_requests_none_is_copied(tmp_path: Path, keyword: str) -> None:
    source = answered(tmp_path, put(PLAIN, 2 * element(keyword, "ANOTHER"), before="Rows")).dataset
    target = Dataset()

    copy_patient(source, target)

    assert keyword not in source
    assert not target.get(keyword)
    assert keyword in target or keyword not in ("PatientID", "PatientName"), "required, if empty (type 2)"


def test_a_big_deflated_film_is_never_two_objects_and_one_of_unexpected_encoding_is_one(tmp_path: Path) -> None:
    film = films.thumbnail()
    content = deflated(films.file_bytes(film) + bytes(8) * 300_000 + element("SOPInstanceUID", OTHER))
    with BytesIO(films.body_of(content)) as body:
        assert identify(body, DeflatedExplicitVRLittleEndian)[1] == film.SOPInstanceUID
    with pytest.raises(Undecodable):
        header_reading.read_header(written(tmp_path, content))

    # pydicom asks about the first element twice where the syntax is explicit and the dataset is not
    implicit, content = encode(film, is_implicit_vr=True, is_little_endian=True) or b"", films.file_bytes(film)
    path = written(tmp_path, content[: -len(films.body_of(content))] + implicit)
    assert Note.HEADER_DISORDERED not in header_reading.read_noted_header(path)[1]
    assert identify(BytesIO(implicit), UID(ExplicitVRLittleEndian))[1] == film.SOPInstanceUID
