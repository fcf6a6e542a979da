"""Headers of foreign objects that would fill the memory if they were loaded."""

from __future__ import annotations

import struct
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import pytest
from pydicom.datadict import dictionary_VR
from pydicom.tag import Tag
from pydicom.uid import ExplicitVRLittleEndian, ImplicitVRLittleEndian
from pydicom.valuerep import EXPLICIT_VR_LENGTH_32

from node.dicom import attributes
from node.dicom.film_header import parse_header
from node.dicom.header import identify
from node.dicom.header_reading import read_header
from node.errors import Refused, Undecodable
from node.read.decoding import picture_of
from node.store.incoming import has_other_pixels
from tests.support import films

MIB = 1024 * 1024
BULK = 100 * MIB
SPARE = 40 * MIB
STUDY, FILM = b"1.2.3\0", b"1.2.3.4\0"
STUDY_TAG = b"\x20\0\x0d\0UI"
UNDEFINED = 0xFFFFFFFF
ITEM, SEQUENCE_END = struct.pack("<HHL", 0xFFFE, 0xE000, BULK), struct.pack("<HHL", 0xFFFE, 0xE0DD, 0)


def element(group: int, number: int, vr: bytes, length: int) -> bytes:
    if vr in (b"UI", b"SH"):
        return struct.pack("<HH2sH", group, number, vr, length)
    return struct.pack("<HH2sHL", group, number, vr, 0, length)


SOP_INSTANCE = element(0x0008, 0x0018, b"UI", len(FILM)) + FILM
STUDY_INSTANCE = element(0x0020, 0x000D, b"UI", len(STUDY)) + STUDY
SKIPPED = (element(0x0009, 0x1010, b"OB", BULK), b"")
IN_FRAGMENTS = (element(0x0009, 0x1010, b"OB", UNDEFINED) + ITEM, SEQUENCE_END)
IN_A_SEQUENCE = (
    element(0x0009, 0x1010, b"SQ", UNDEFINED)
    + struct.pack("<HHL", 0xFFFE, 0xE000, UNDEFINED)
    + element(0x0009, 0x1011, b"OB", BULK),
    struct.pack("<HHL", 0xFFFE, 0xE00D, 0) + SEQUENCE_END,
)
"""What stands before and after 100 MB of zeros."""


def many_elements(*groups: int) -> bytes:
    """Every private element that so many groups can have, 65,520 in each."""
    return b"".join(
        struct.pack("<HH2sH2s", group, number, b"LO", 2, b"ab") for group in groups for number in range(0x10, 0x10000)
    )


def with_bulk(path: Path, before: bytes, after: bytes) -> Path:
    """A file with a hole of 100 MB, which takes no room on the disk."""
    with path.open("wb") as file:
        file.write(before)
        file.seek(BULK, 1)
        file.write(after)
    return path


@contextmanager
def little_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < SPARE
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("place", ["before", "after"])
def test_what_has_a_length_is_skipped_on_the_way_to_the_uids(tmp_path: Path, place: str) -> None:
    start, end = SKIPPED
    uids = (SOP_INSTANCE + start, end + STUDY_INSTANCE) if place == "before" else (
        SOP_INSTANCE + STUDY_INSTANCE + element(0x0021, 0x1010, b"OB", BULK), b""
    )  # fmt: skip
    path = with_bulk(tmp_path / "film", *uids)

    with path.open("rb") as file, little_memory():
        assert identify(file, ExplicitVRLittleEndian) == ("1.2.3", "1.2.3.4")


@pytest.mark.parametrize("bulk", [IN_FRAGMENTS, IN_A_SEQUENCE])
def test_what_would_have_to_be_loaded_to_be_skipped_is_refused(tmp_path: Path, bulk: tuple[bytes, bytes]) -> None:
    start, end = bulk
    path = with_bulk(tmp_path / "film", SOP_INSTANCE + start, end + STUDY_INSTANCE)

    with path.open("rb") as file, little_memory(), pytest.raises(Refused):
        identify(file, ExplicitVRLittleEndian)


def test_a_uid_as_long_as_a_film_is_refused(tmp_path: Path) -> None:
    before = struct.pack("<HHL", 0x0008, 0x0018, BULK)
    path = with_bulk(tmp_path / "film", before, struct.pack("<HHL", 0x0020, 0x000D, len(STUDY)) + STUDY)

    with path.open("rb") as file, little_memory(), pytest.raises(Refused):
        identify(file, ImplicitVRLittleEndian)


def film_with(bulk: tuple[bytes, bytes], path: Path, *, repaint: Callable[[bytes], bytes] = bytes) -> Path:
    """A film with a large private element right before its rows."""
    content = films.file_bytes(films.thumbnail())
    rows = content.index(element(0x0028, 0x0010, b"US", 2)[:6])
    start, end = (part.replace(b"\x09\0\x10\x10", b"\x27\0\x10\x10") for part in bulk)
    return with_bulk(path, content[:rows] + start, end + repaint(content[rows:]))


def with_another_pixel(end: bytes) -> bytes:
    middle = len(end) // 2
    return end[:middle] + bytes([end[middle] ^ 1]) + end[middle + 1 :]


@pytest.mark.parametrize(("bulk", "is_found"), [(SKIPPED, True), (IN_FRAGMENTS, False), (IN_A_SEQUENCE, False)])
def test_pixels_are_compared_without_what_stands_before_them(
    tmp_path: Path, bulk: tuple[bytes, bytes], is_found: bool
) -> None:
    first = film_with(bulk, tmp_path / "first")
    second = film_with(bulk, tmp_path / "second", repaint=with_another_pixel)

    with little_memory():
        assert not has_other_pixels(first, first)
        assert has_other_pixels(first, second) is is_found


NUMBERS = {"US": "<H", "SS": "<h", "UL": "<L", "SL": "<l", "FL": "<f", "FD": "<d", "AT": "<HH", "UV": "<Q"}
TEXT_VRS = ["CS", "LO", "SH", "UI", "PN", "IS", "DS", "UT", "UC", "OB", "OW", "UN", "AS", "DA"]


@pytest.mark.parametrize("vr", [*TEXT_VRS, *NUMBERS])
@pytest.mark.parametrize("keyword", ["SpecificCharacterSet", "PatientAge"])
def test_text_under_another_value_representation_stops_no_film(keyword: str, vr: str, tmp_path: Path) -> None:
    path, text = tmp_path / "film.dcm", {"SpecificCharacterSet": b"ISO_IR 100", "PatientAge": b"045Y"}[keyword]
    numbers = [100] if vr != "AT" else [8, 5]
    value = struct.pack(NUMBERS[vr], *numbers) if vr in NUMBERS else text
    film = films.thumbnail({"SpecificCharacterSet": "ISO_IR 100", "PatientAge": "045Y"})
    tag = struct.pack("<HH", *divmod(Tag(keyword), 0x10000))
    head, end = films.file_bytes(film).split(
        tag + dictionary_VR(keyword).encode() + struct.pack("<H", len(text)) + text
    )
    is_long = vr in EXPLICIT_VR_LENGTH_32
    path.write_bytes(
        head + tag + vr.encode() + struct.pack("<HL" if is_long else "<H", *[0] * is_long, len(value)) + value + end
    )
    header = read_header(path)

    assert attributes.text(header, "PatientName") == str(film.PatientName)
    assert parse_header(header).sop_instance_uid == film.SOPInstanceUID
    if keyword == "PatientAge" and vr in TEXT_VRS and not vr.startswith("O"):
        assert parse_header(header).age_years == 45
    with path.open("rb") as file:
        file.seek(file.read().index(films.body_of(path.read_bytes())))
        assert identify(file, ExplicitVRLittleEndian) == (film.StudyInstanceUID, film.SOPInstanceUID)


def with_many(before: bytes = b"", after: bytes = b"") -> bytes:
    """The file of a film with private elements before its patient, and after the UIDs of its study and series."""
    content = films.file_bytes(films.thumbnail())
    start = content.index(STUDY_TAG)
    end = content.index(b"\x28\0\x02\0US")
    patient = content.index(b"\x10\0\x10\0PN")
    return content[:patient] + before + content[patient:start] + content[start:end] + after + content[end:]


def test_an_object_of_458_752_elements_is_refused_cheaply() -> None:
    content = with_many(
        before=many_elements(*range(0x0009, 0x000F, 2), 0x000F), after=many_elements(0x0021, 0x0023, 0x0025)
    )
    began = time.process_time()

    with pytest.raises(Refused):
        identify(BytesIO(films.body_of(content)), ExplicitVRLittleEndian)

    assert time.process_time() - began < 4.0


def test_a_film_of_458_752_private_elements_costs_little(tmp_path: Path) -> None:
    path = tmp_path / "film.dcm"
    path.write_bytes(with_many(after=many_elements(*range(0x0021, 0x002F, 2))))
    began = time.process_time()

    assert identify(BytesIO(films.body_of(path.read_bytes())), ExplicitVRLittleEndian)[1]
    with pytest.raises(Undecodable):
        read_header(path)
    assert has_other_pixels(path, path) is False

    assert time.process_time() - began < 4.0  # 0.4 to 0.8 s where it is quiet; 11 s without bounds


def test_elements_within_sequences_are_bounded_too(tmp_path: Path) -> None:
    item = struct.pack("<HHL", 0xFFFE, 0xE000, UNDEFINED)
    nested = element(0x0021, 0x1010, b"SQ", UNDEFINED) + item + many_elements(0x0023, 0x0025)
    nested += struct.pack("<HHL", 0xFFFE, 0xE00D, 0) + SEQUENCE_END
    path = tmp_path / "film.dcm"
    path.write_bytes(with_many(after=nested))
    began = time.process_time()

    with pytest.raises(Undecodable):
        read_header(path)

    assert time.process_time() - began < 4.0  # 0.4 to 0.8 s where it is quiet; 11 s without bounds


def test_a_film_with_thousands_of_private_elements_is_read(tmp_path: Path) -> None:
    path = tmp_path / "film.dcm"
    path.write_bytes(with_many(after=many_elements(0x0021)[: 5_000 * 10]))

    assert picture_of(path).any()
