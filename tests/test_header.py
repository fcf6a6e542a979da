"""Headers of foreign objects that would fill the memory if they were loaded."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pydicom.uid import ExplicitVRLittleEndian, ImplicitVRLittleEndian

from node.conflict import has_other_pixels
from node.errors import Refused
from node.header import identify
from tests import films

MIB = 1024 * 1024
BULK = 100 * MIB
SPARE = 40 * MIB
STUDY, FILM = b"1.2.3\0", b"1.2.3.4\0"
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
