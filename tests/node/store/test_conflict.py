"""Objects that come again under one UID: the same, with other patient data, with other pixels."""

from __future__ import annotations

import struct
from copy import deepcopy
from pathlib import Path

import pytest
from pydicom import Dataset
from pydicom.uid import (
    UID,
    DeflatedExplicitVRLittleEndian,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
    JPEG2000Lossless,
    RLELossless,
)

from node.store.incoming import has_other_pixels
from tests.support import films, peers
from tests.support.listening import Node, listening


def stored(folder: Path, film: Dataset, name: str) -> Path:
    path = folder / name
    path.write_bytes(films.file_bytes(film))
    return path


def renamed(film: Dataset) -> Dataset:
    """The same picture of a patient whose name was corrected."""
    other = deepcopy(film)
    other.PatientName = "Corrected^Name^Which^Is^Longer"
    return other


def repainted(film: Dataset) -> Dataset:
    """Another picture under the same UID; one pixel near the end."""
    other = deepcopy(film)
    pixels = bytearray(other.PixelData)
    pixels[-10] ^= 1
    other.PixelData = bytes(pixels)
    return other


def in_syntax(film: Dataset, syntax: UID) -> Dataset:
    if syntax in (JPEG2000Lossless, RLELossless):
        return films.compressed(deepcopy(film), syntax)
    other = deepcopy(film)
    other.file_meta.TransferSyntaxUID = syntax
    return other


@pytest.mark.parametrize("syntax", [ImplicitVRLittleEndian, ExplicitVRLittleEndian, RLELossless, JPEG2000Lossless])
def test_changed_pixels_are_told_from_changed_patient_data(tmp_path: Path, syntax: UID) -> None:
    film = films.thumbnail()
    known = stored(tmp_path, in_syntax(film, syntax), "known")

    assert not has_other_pixels(known, stored(tmp_path, in_syntax(renamed(film), syntax), "renamed"))
    assert has_other_pixels(known, stored(tmp_path, in_syntax(repainted(film), syntax), "repainted"))


def test_the_two_plain_little_endian_syntaxes_are_compared(tmp_path: Path) -> None:
    film = films.thumbnail()
    known = stored(tmp_path, film, "known")

    assert not has_other_pixels(known, stored(tmp_path, in_syntax(film, ImplicitVRLittleEndian), "implicit"))
    assert has_other_pixels(known, stored(tmp_path, in_syntax(repainted(film), ImplicitVRLittleEndian), "repainted"))


@pytest.mark.parametrize("syntax", [JPEG2000Lossless, RLELossless, DeflatedExplicitVRLittleEndian])
def test_what_only_a_decoder_could_tell_is_no_conflict(tmp_path: Path, syntax: UID) -> None:
    film = films.thumbnail()

    other = stored(tmp_path, in_syntax(repainted(film), syntax), "other")

    assert not has_other_pixels(stored(tmp_path, film, "known"), other)
    assert not has_other_pixels(other, stored(tmp_path, film, "known"))


def test_another_size_is_another_picture_in_every_syntax(tmp_path: Path) -> None:
    film = films.thumbnail()
    cut = deepcopy(film)
    cut.Rows -= 1
    cut.PixelData = cut.PixelData[: cut.Rows * cut.Columns * 2]

    assert has_other_pixels(stored(tmp_path, film, "known"), stored(tmp_path, in_syntax(cut, JPEG2000Lossless), "cut"))


def test_objects_without_pixels_never_conflict_with_each_other(tmp_path: Path) -> None:
    report = films.thumbnail()
    del report.PixelData, report.Rows, report.Columns

    assert not has_other_pixels(stored(tmp_path, report, "known"), stored(tmp_path, renamed(report), "other"))
    assert has_other_pixels(stored(tmp_path, films.thumbnail(), "film"), stored(tmp_path, report, "report"))


@pytest.mark.parametrize(
    ("kept", "is_other"), [(0, False), (10, False), (200, False), (2000, True), (-1000, True), (-1, False)]
)
def test_an_unparsable_or_truncated_file_raises_nothing(tmp_path: Path, kept: int, is_other: bool) -> None:
    film = films.compressed(films.thumbnail(), JPEG2000Lossless)
    known, cut = stored(tmp_path, film, "known"), tmp_path / "cut"
    cut.write_bytes(films.file_bytes(film)[:kept])

    assert has_other_pixels(known, cut) is is_other
    assert not has_other_pixels(cut, known)


@pytest.mark.parametrize("syntax", [ExplicitVRLittleEndian, JPEG2000Lossless])
def test_a_whole_film_mends_a_truncated_one_never_vice_versa(tmp_path: Path, syntax: UID) -> None:
    whole, cut = stored(tmp_path, in_syntax(films.thumbnail(), syntax), "whole"), tmp_path / "cut"
    cut.write_bytes(whole.read_bytes()[:-1000])

    assert not has_other_pixels(cut, whole)
    assert has_other_pixels(whole, cut)


def test_a_length_beyond_the_end_of_the_file_ends_the_reading(tmp_path: Path) -> None:
    content = bytearray(films.file_bytes(films.thumbnail()))
    place = content.rindex(b"\xe0\x7f\x10\x00OW") + 8
    content[place : place + 4] = struct.pack("<L", 0xFFFFFFFE)
    paths = (tmp_path / "one", tmp_path / "other")
    for path in paths:
        path.write_bytes(content)

    assert not has_other_pixels(*paths)


def test_changed_pixels_are_kept_aside_reported_and_not_read(tmp_path: Path) -> None:
    film = films.thumbnail()
    with listening(tmp_path) as node:
        assert send(node, film) == 0x0000
        node.told.clear()

        assert send(node, repainted(film)) == 0x0000
        assert send(node, repainted(film)) == 0x0000

        (conflict,) = node.spool.conflicts(film.StudyInstanceUID)
        (instance,) = node.spool.study(film.StudyInstanceUID).instances
        assert instance.number == 1
        assert node.told == []
        assert conflict.path.read_bytes()[-200:] == films.file_bytes(repainted(film))[-200:]
        assert node.count("cxr_instances_total", outcome="conflict") == 1
        assert node.count("cxr_instances_total", outcome="repeated") == 1


def test_a_correction_that_is_taken_back_is_a_third_version(tmp_path: Path) -> None:
    film = films.thumbnail()
    with listening(tmp_path) as node:
        for version in (film, renamed(film), film):
            assert send(node, version) == 0x0000

        (newest,) = node.spool.study(film.StudyInstanceUID).instances
        assert newest.number == 3
        assert node.count("cxr_instances_total", outcome="kept") == 3
        assert node.spool.conflicts(film.StudyInstanceUID) == []


def test_a_conflict_with_the_newest_version_survives_a_crash(tmp_path: Path) -> None:
    film = films.thumbnail()
    with listening(tmp_path) as node:
        send(node, film)
        send(node, repainted(film))
        (conflict,) = node.spool.conflicts(film.StudyInstanceUID)
        conflict.path.unlink()  # as if the power had gone before it had its name

        assert send(node, repainted(film)) == 0x0000

        assert [kept.sha256 for kept in node.spool.conflicts(film.StudyInstanceUID)] == [conflict.sha256]
        assert len(node.spool.study(film.StudyInstanceUID).instances) == 1


def send(node: Node, film: Dataset) -> int | None:
    return peers.send(film, port=node.listener.port)
