"""Films to gray values and thumbnails: what real files decode to, how they are turned, and every refusal."""

from __future__ import annotations

import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydicom.dataset import Dataset
from pydicom.uid import (
    UID,
    DeflatedExplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGLSLossless,
    RLELossless,
)

from node.dicom import header
from node.dicom.film_header import parse_header
from node.dicom.header_reading import read_header
from node.domain import Reason
from node.errors import ConfigError, Undecodable
from node.read import grayscale
from node.read.decoding import Thumbnail, sides_known
from node.read.framing import Turn
from node.rounds.films import Thumbnails
from tests.support import films, samples
from tests.support.decoded import load, picture_of, refusal, stored_picture


def saved(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "film.dcm"
    path.write_bytes(content)
    return path


def test_rg1_is_shown_with_dark_lungs_and_bright_bones() -> None:
    film, picture = load(films.rg1()), picture_of(films.rg1())

    lung, spine = film.gray[600:700, 1200:1400].mean(), film.gray[1000:1100, 880:960].mean()
    assert film.gray.shape == picture.shape == (1955, 1841)
    assert lung < 0.6 < 0.8 < spine
    assert film.framing.analyzed.edges == (0.0, 57.0, 1841.0, 1898.0)
    assert np.abs(picture / 255 - film.gray).max() <= 0.5 / 255 + 1e-6


@pytest.mark.parametrize(("name", "tolerance"), [("RG1_J2KR", 0.0), ("RG1_J2KI", 0.03), ("RG1_JLSN", 1e-3)])
def test_rg1_is_the_same_film_in_every_encoding(name: str, tolerance: float) -> None:
    assert np.abs(load(films.shared(f"chest/{name}.dcm")).gray - load(films.rg1()).gray).max() <= tolerance


@pytest.mark.parametrize("gray", ["voi", "mimic_jpg"])
@pytest.mark.parametrize("syntax", [RLELossless, JPEGLSLossless, JPEG2000Lossless])
@pytest.mark.parametrize(("bits", "signed"), [(8, False), (12, False), (16, False), (12, True), (16, True)])
def test_lossless_encodings_change_nothing(syntax: UID, gray: str, bits: int, signed: bool) -> None:
    plain = films.at_depth(bits, signed=signed)

    film = load(films.compressed(films.at_depth(bits, signed=signed), syntax), gray)

    assert film.notes == ()
    assert np.array_equal(film.gray, load(plain, gray).gray)


@pytest.mark.parametrize(
    "name",
    [
        "chest/CR-MONO1-10-chest_headerless.dcm",
        "chest/nih_google_dx_sc.dcm",
        "not_chest/RG2_hip_JPEGlossless.dcm",
        "not_chest/MG1_JPEGext12.dcm",
        "not_chest/RG3_extremityAP_MONO1_JPEGLS.dcm",
        "not_chest/CT2_RLE.dcm",
    ],
)
@pytest.mark.parametrize("gray", ["voi", "mimic_jpg"])
def test_other_real_films_decode(name: str, gray: str) -> None:
    film = load(films.shared(name), gray)

    assert film.gray.min() >= 0 and film.gray.max() <= 1
    assert film.gray.std() > 0.1


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize(("bits", "shift"), [(16, 0), (15, 0), (12, 0), (12, 4), (10, 3), (8, 8)])
def test_stored_bits_are_counted_from_their_lowest_value(bits: int, shift: int, signed: bool) -> None:
    pixels = np.random.default_rng(bits + shift).integers(0, 2**16, (70, 80))
    film = films.with_pixels(films.thumbnail(), pixels, bits=16, signed=signed)
    films.changed(film, {"BitsStored": bits, "HighBit": bits + shift - 1})
    stored = (pixels >> shift) % 2**bits
    picture = stored_picture(film)
    assert np.array_equal(picture.indices, (stored + 2 ** (bits - 1)) % 2**bits if signed else stored)
    assert np.array_equal(picture.levels.counts, np.bincount(picture.indices.ravel(), minlength=2**bits))


@pytest.mark.parametrize(
    ("orientation", "turn"),
    [
        (["L", "F"], Turn()),
        (["R", "F"], Turn(mirror_columns=True)),
        (["L", "H"], Turn(mirror_rows=True)),
        (["R", "H"], Turn(mirror_columns=True, mirror_rows=True)),
        (["F", "L"], Turn(transpose=True)),
        (["F", "R"], Turn(transpose=True, mirror_columns=True)),
        (["H", "L"], Turn(transpose=True, mirror_rows=True)),
        (["H", "R"], Turn(transpose=True, mirror_columns=True, mirror_rows=True)),
    ],
)
def test_a_film_is_turned_upright_by_its_orientation(orientation: list[str], turn: Turn) -> None:
    stored = films.thumbnail()
    upright = load(films.thumbnail()).gray
    pixels = stored.pixel_array[:: -1 if turn.mirror_rows else 1, :: -1 if turn.mirror_columns else 1]
    films.with_pixels(stored, pixels.T if turn.transpose else pixels, bits=15)
    stored.PatientOrientation = orientation

    film = load(stored)

    assert film.framing.turn == turn
    assert sides_known(parse_header(stored))
    assert np.array_equal(film.gray, upright)
    assert picture_of(stored).shape == (stored.Rows, stored.Columns)


@pytest.mark.parametrize("orientation", [None, "", ["L"], ["L", "R"], ["LA", "F"], ["L", "P"], ["left", "foot"]])
def test_without_a_frontal_orientation_no_side_is_known(orientation: object) -> None:
    film = films.thumbnail({"PatientOrientation": orientation})

    assert not sides_known(parse_header(film))
    assert load(film).framing.turn == Turn()


def padding() -> Dataset:
    film = films.constant(7)
    film.add_new("PixelPaddingValue", "US", 7)
    return film


def empty_in_the_square() -> Dataset:
    """A film that shows something outside the square alone that the network sees."""
    pixels = np.full((300, 100), 5000)
    pixels[:50] = np.arange(100)
    return films.with_pixels(films.thumbnail(), pixels, bits=15)


@pytest.mark.parametrize("gray", ["voi", "mimic_jpg"])
@pytest.mark.parametrize("film", [films.constant, lambda: films.constant(5000), padding, empty_in_the_square])
def test_a_film_without_contrast_where_it_is_read_is_blank(film: Callable[[], Dataset], gray: str) -> None:
    assert refusal(film(), gray) == Reason.BLANK


@pytest.mark.parametrize(
    "changes",
    [
        {"BitsStored": 0},
        {"BitsStored": 17},
        {"HighBit": 30},
        {"HighBit": 3},
        {"BitsAllocated": None},
        {"PixelRepresentation": None},
        {"PhotometricInterpretation": None},
    ],
)
def test_a_header_that_does_not_fit_its_pixels_is_refused(changes: dict[str, object]) -> None:
    assert refusal(films.thumbnail(changes)) == Reason.UNDECODABLE


def test_an_unknown_transfer_syntax_or_gray_mode_is_refused() -> None:
    film = films.thumbnail()
    with pytest.raises(ConfigError, match="voi"):  # a mistake of the settings
        load(film, "sepia")

    film.file_meta.TransferSyntaxUID = UID("1.2.3.4.5")
    assert refusal(film) == Reason.UNDECODABLE


@pytest.mark.parametrize("syntax", [RLELossless, JPEGLSLossless, JPEG2000Lossless])
def test_a_codestream_of_another_size_or_of_noise_is_refused(syntax: UID) -> None:
    larger = films.compressed(films.thumbnail(), syntax)
    larger.Rows -= 5
    noise = films.compressed(films.thumbnail(), syntax)
    noise.PixelData = noise.PixelData[:60] + bytes(len(noise.PixelData) - 60)

    assert refusal(larger) == Reason.UNDECODABLE
    assert refusal(noise) in (Reason.UNDECODABLE, Reason.BLANK)


def test_a_bare_dataset_is_read(tmp_path: Path) -> None:
    path = saved(tmp_path, films.headerless_bytes(films.thumbnail()))

    assert np.array_equal(load(path).gray, load(films.thumbnail()).gray)


def test_a_truncated_file_keeps_its_header_and_is_not_decoded(tmp_path: Path) -> None:
    film, content = films.thumbnail(), films.file_bytes(films.thumbnail())
    path = saved(tmp_path, content[: len(content) * 3 // 5])

    assert (read_header(path).SOPInstanceUID, refusal(path)) == (film.SOPInstanceUID, Reason.UNDECODABLE)


@pytest.mark.parametrize(
    "content",
    [b"", b"hello " * 400, bytes(4000), b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 8, b"\xff\xd8\xff\xe0" * 99],
)
def test_a_file_that_is_no_dicom_is_refused(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(Undecodable):
        read_header(saved(tmp_path, content))


@given(data=st.data())
def test_bent_bytes_end_in_a_film_or_a_refusal(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    content = bytearray(films.file_bytes(films.ramp()))
    for at in data.draw(st.lists(st.integers(128, 2400), min_size=1, max_size=6)):
        content[at] = data.draw(st.integers(0, 255))
    path = saved(tmp_path_factory.getbasetemp(), bytes(content))

    try:
        load(path)
    except Undecodable as refused:
        assert refused.reason in tuple(Reason)


def deflated(path: Path, content: bytes, *, has_preamble: bool = True) -> Path:
    """Write a file whose meta information says that `content`, raw deflate, is its data set."""
    film = films.ramp()
    film.file_meta.TransferSyntaxUID = DeflatedExplicitVRLittleEndian
    whole = films.file_bytes(film)
    path.write_bytes(whole[0 if has_preamble else 132 : -len(films.body_of(whole))] + content)
    return path


@pytest.mark.parametrize("has_preamble", [True, False])
@pytest.mark.parametrize("read", [read_header, picture_of])
def test_a_deflate_bomb_is_never_inflated(tmp_path: Path, read: Callable[[Path], object], has_preamble: bool) -> None:
    deflater = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    pixels = b"\xe0\x7f\x10\0OW\0\0\xf0\xff\xff\xff"
    head = deflater.compress(pixels) + deflater.flush(zlib.Z_FULL_FLUSH)
    mebibyte = deflater.compress(bytes(2**20)) + deflater.flush(zlib.Z_FULL_FLUSH)  # stands for itself, any number
    path = deflated(tmp_path / "bomb.dcm", head + mebibyte * 600 + deflater.flush(), has_preamble=has_preamble)
    assert path.stat().st_size < 2**20

    tracemalloc.start()
    try:
        with pytest.raises(Undecodable, match="inflates to more than") as refused:
            read(path)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert refused.value.reason == Reason.UNDECODABLE
    assert most < 64 * 2**20


@pytest.mark.parametrize("is_cut", [True, False])
def test_a_broken_deflated_file_is_refused(tmp_path: Path, is_cut: bool) -> None:
    deflater = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    whole = deflater.compress(films.body_of(films.file_bytes(films.ramp()))) + deflater.flush()
    assert read_header(deflated(tmp_path / "whole.dcm", whole))
    with pytest.raises(Undecodable) as refused:
        read_header(deflated(tmp_path / "broken.dcm", whole[:-100] if is_cut else b"\xff" * 100))
    assert refused.value.reason == Reason.UNDECODABLE


@pytest.mark.parametrize(("module", "name"), [(grayscale, "levels_of"), (header, "read")])
def test_a_lack_of_memory_is_no_fault_of_a_film(monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str) -> None:
    monkeypatch.setattr(module, name, Mock(side_effect=MemoryError))

    with pytest.raises(MemoryError):
        load(films.thumbnail())


def without_window() -> Dataset:
    return films.changed(films.rg1(), {"WindowCenter": None, "WindowWidth": None, "VOILUTSequence": None})


@pytest.mark.parametrize("film", [films.rg1, films.thumbnail, without_window])
def test_a_reading_makes_the_thumbnail_of_the_film_as_displayed(film: Callable[[], Dataset]) -> None:
    stored = stored_picture(film())

    read = load(film()).thumbnail

    again, shown = stored.thumbnail(), samples.thumbnail_of(stored.shown())
    assert read is not None
    assert (read.step, read.stretch) == (again.step, again.stretch) == (shown.step, stored.stretch)
    assert np.array_equal(read.gray, again.gray)
    assert np.array_equal(read.gray, shown.gray)
    assert samples.thumbnail_of(np.zeros((511, 65_535), np.uint8)).gray.size < 2**21, "that of a long strip is small"


def test_a_kept_thumbnail_is_taken_once_and_the_oldest_of_many_is_dropped() -> None:
    kept, small = Thumbnails(), Thumbnail(gray=np.zeros((2, 2), np.uint8), step=1)
    for number in range(1000):
        kept.keep(Path(str(number)), small)

    assert [number for number in range(1000) if kept.take(Path(str(number))) is small] == [*range(744, 1000)]
    assert kept.take(Path("999")) is None
