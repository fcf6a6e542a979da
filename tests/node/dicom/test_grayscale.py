"""The grayscale pipeline from stored values to displayed gray, against the formulas of the standard."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydicom import dcmwrite
from pydicom.dataset import Dataset
from pydicom.uid import ExplicitVRBigEndian, ExplicitVRLittleEndian

from node.dicom.grayscale_header import LookUpTable, WordTable, parse_grayscale
from node.domain import Reason
from node.errors import Undecodable
from node.read.decoding import GrayPicture
from node.read.grayscale import FloatTable, displayed, levels_of
from tests.support import films
from tests.support.decoded import load, refusal


@pytest.fixture(scope="module")
def film() -> Dataset:
    """One film for all examples; each of them sets the same attributes."""
    return films.ramp()


def decode(film: Dataset | Path, gray: str = "voi") -> GrayPicture:
    return load(film, gray).gray


def lut(first: int, entries: list[int], *, bits: int) -> list[Dataset]:
    item = Dataset()
    item.add_new("LUTDescriptor", "US", [len(entries), first, bits])
    item.add_new("LUTData", "US", entries)
    return [item]


def swapped(data: bytes) -> bytes:
    """Turn the bytes of each word round."""
    return np.frombuffer(data, "<u2").astype(">u2").tobytes()


def shown(film: Dataset, *, lowest: int = 0, bits: int = 12) -> FloatTable:
    """The gray that the header asks for, of all values of so many bits, whether or not a person could read it."""
    header = parse_grayscale(film, photometric_interpretation=film.PhotometricInterpretation)
    pixels = np.arange(4096, dtype=np.uint16).reshape(64, 64)
    return displayed(header, levels_of(header, pixels, lowest=lowest, bits=bits))


WIDE: dict[str, object] = {"WindowCenter": 2048, "WindowWidth": 4096}
RAMP = np.arange(4096) / 4095


def test_windows_are_those_of_the_standard() -> None:
    """PS3.3 C.11.2.1.2 and C.11.2.1.3."""
    of_1000: dict[str, object] = {"WindowCenter": 2000, "WindowWidth": 1000}
    narrow = shown(films.ramp({"WindowCenter": 1000, "WindowWidth": 101}))
    exact = shown(films.ramp({**of_1000, "VOILUTFunction": "LINEAR_EXACT"}))
    sigmoid = shown(films.ramp({**of_1000, "VOILUTFunction": "Sigmoid"}))
    rescaled = {"RescaleSlope": 2, "RescaleIntercept": -1000, "WindowCenter": 3000, "WindowWidth": 2000}

    assert shown(films.ramp(WIDE)) == pytest.approx(RAMP, abs=1e-6)
    assert narrow[949] == 0 and narrow[1050] == 1
    assert narrow[1000] == pytest.approx((1000 - 999.5) / 100 + 0.5, abs=1e-6)
    assert (exact[1500], exact[2000], exact[2500]) == pytest.approx((0, 0.5, 1), abs=1e-6)
    assert (sigmoid[2000], sigmoid[2250]) == pytest.approx((0.5, 1 / (1 + np.exp(-1))), abs=1e-6)
    assert shown(films.ramp(rescaled)) == pytest.approx(exact, abs=2e-3), "after the rescale"
    first_of_two = films.ramp({"WindowCenter": [2048, 100], "WindowWidth": [4096, 10]})
    assert shown(first_of_two) == pytest.approx(RAMP, abs=1e-6)


def test_a_modality_table_comes_before_a_window_and_a_display_table_instead_and_inverse_films_are_turned() -> None:
    falling = lut(0, [4095 - value for value in range(4096)], bits=12)
    step = lut(1000, [0] * 1000 + [255] * 1000, bits=8)
    packed = lut(0, [0], bits=8)
    packed[0].LUTDescriptor = [4096, 0, 8]  # two entries of 8 bits in a word
    packed[0].add_new("LUTData", "OW", (np.arange(4096) >> 4).astype(np.uint8).tobytes())

    assert shown(films.ramp({**WIDE, "ModalityLUTSequence": falling})) == pytest.approx(RAMP[::-1], abs=1e-6)
    gray = shown(films.ramp({"VOILUTSequence": step, "WindowCenter": 10, "WindowWidth": 5}))
    assert (gray[0], gray[1999], gray[2000], gray[4095]) == (0, 0, 1, 1)
    assert shown(films.ramp({"VOILUTSequence": packed})) == pytest.approx((np.arange(4096) >> 4) / 255)
    for inverse in ({"PhotometricInterpretation": "MONOCHROME1"}, {"PresentationLUTShape": "INVERSE"}):
        assert shown(films.ramp({**WIDE, **inverse})) == pytest.approx(1 - RAMP, abs=1e-6)


@pytest.mark.parametrize("window", [(None, None), ("NaN", 4096), (2048, "NaN"), (2048, 0), (2048, -5), (2048, None)])
def test_the_range_of_the_values_replaces_an_unusable_window(window: tuple[object, object]) -> None:
    gray = shown(films.ramp({"WindowCenter": window[0], "WindowWidth": window[1]}))

    assert gray.min() == 0 and gray.max() == 1
    assert gray[2048] == pytest.approx(0.5, abs=1e-3)
    assert np.all(np.diff(gray) >= 0)


@pytest.mark.parametrize(("lowest", "first"), [(0, 40_000), (-(2**15), 40_000 - 2**16)])
def test_a_lut_that_begins_high_begins_below_0_only_for_signed_values(lowest: int, first: int) -> None:
    gray = shown(films.ramp({"VOILUTSequence": lut(40_000, [0, 255], bits=8)}), lowest=lowest, bits=16)

    assert np.array_equal(gray, np.arange(lowest, lowest + 2**16) > first)


@pytest.mark.parametrize("keyword", ["VOILUTSequence", "ModalityLUTSequence"])
@pytest.mark.parametrize("bits", [8, 16])
def test_big_and_little_endian_films_have_the_same_gray(tmp_path: Path, keyword: str, bits: int) -> None:
    entries = (np.arange(4096) ** 2 // 256).astype("<u2")
    data = entries.tobytes() if bits == 16 else (entries >> 8).astype(np.uint8).tobytes()
    grays = []
    for syntax in (ExplicitVRLittleEndian, ExplicitVRBigEndian):
        film = films.ramp()
        is_big = syntax == ExplicitVRBigEndian
        item = Dataset()
        item.add_new("LUTDescriptor", "US", [4096, 0, bits])
        item.add_new("LUTData", "OW", swapped(data) if is_big else data)
        film.add_new(keyword, "SQ", [item])
        if is_big:
            film.PixelData = swapped(film.PixelData)
        film.file_meta.TransferSyntaxUID = syntax
        path = tmp_path / f"{syntax}.dcm"
        dcmwrite(path, film, implicit_vr=False, little_endian=not is_big)
        grays.append(decode(path).ravel())

    assert np.array_equal(grays[0], grays[1])
    assert len(np.unique(grays[0])) > 200
    assert np.all(np.diff(grays[0]) >= 0)


def test_a_lut_has_the_entries_that_it_says_or_is_refused() -> None:
    table = lut(0, [1, 2, 3], bits=8)

    table[0].LUTDescriptor = [4, 0, 8]
    assert refusal(films.ramp({"VOILUTSequence": table})) == Reason.UNDECODABLE
    table[0].LUTDescriptor = [2, 0, 8]
    assert table_of(table).tolist() == [1, 2]
    table[0].LUTDescriptor = [0, 0, 16]  # 65536 (PS3.3 C.11.1.1)
    table[0].add_new("LUTData", "OW", np.arange(2**16, dtype="<u2").tobytes())
    assert np.array_equal(table_of(table), np.arange(2**16))


def table_of(sequence: list[Dataset]) -> WordTable:
    read = parse_grayscale(films.ramp({"VOILUTSequence": sequence}), photometric_interpretation="MONOCHROME2").voi_lut
    assert isinstance(read, LookUpTable)
    return read.entries


@pytest.mark.parametrize(
    ("highest", "bits", "white"),
    [
        (255, 8, 255),
        (4095, 16, 4095),
        (32767, 16, 32767),
        (32768, 16, 65535),
        (300, 8, 300),
        (0, 8, 255),
        (40_000, 17, 65535),
    ],
)
def test_white_is_what_the_bits_of_a_lut_hold_unless_its_entries_are_of_others(
    highest: int, bits: int, white: float
) -> None:
    assert LookUpTable(entries=np.array([0, highest, 0], dtype=np.uint16), first=0, bits=bits).top == white


@pytest.mark.parametrize(
    ("photometric", "shape", "is_inverted", "is_disputed"),
    [
        ("MONOCHROME2", None, False, False),
        ("MONOCHROME2", "IDENTITY", False, False),
        ("MONOCHROME2", "inverse", True, True),
        ("monochrome1", None, True, False),
        ("MONOCHROME1", "INVERSE", True, False),
        ("MONOCHROME1", "identity", True, True),
    ],
)
def test_polarity_is_disputed_where_two_attributes_contradict_and_half_a_window_is_one(
    photometric: str, shape: str | None, is_inverted: bool, is_disputed: bool
) -> None:
    film = films.ramp({"PresentationLUTShape": shape})

    header = parse_grayscale(film, photometric_interpretation=photometric)

    assert (header.is_inverted, header.is_disputed) == (is_inverted, is_disputed)
    for keyword, has_window in (("WindowCenter", True), ("WindowWidth", True), ("Rows", False)):
        half = films.changed(Dataset(), {keyword: 100})
        assert parse_grayscale(half, photometric_interpretation=photometric).has_window is has_window


@pytest.mark.parametrize("gray", ["voi", "mimic_jpg"])
@pytest.mark.parametrize("photometric", ["MONOCHROME1", "MONOCHROME2"])
def test_padding_is_black_and_sets_no_contrast(photometric: str, gray: str) -> None:
    pixels = 1000 + np.arange(4096).reshape(64, 64) % 500
    pixels[:, :4] = 4095
    film = films.with_pixels(films.ramp({"PhotometricInterpretation": photometric}), pixels, bits=12)
    film.add_new("PixelPaddingValue", "US", 4000)
    film.add_new("PixelPaddingRangeLimit", "US", 4095)

    decoded = decode(film, gray)

    assert np.all(decoded[:, :4] == 0)
    assert decoded[:, 4:].max() - decoded[:, 4:].min() > 0.9


@pytest.mark.parametrize(
    ("padding", "vr", "stated"),
    [(-2000, "US", 2**16 - 2000), (-2000, "SS", -2000), (50_000, "SS", 50_000 - 2**16), (50_000, "US", 50_000)],
)
def test_padding_written_with_either_sign_is_understood(padding: int, vr: str, stated: int) -> None:
    film = films.at_depth(16, signed=padding < 0)
    pixels = film.pixel_array.astype(np.int64)
    pixels[:5] = padding
    films.with_pixels(film, pixels, bits=16, signed=padding < 0)
    film.add_new("PixelPaddingValue", vr, stated)

    assert np.all(decode(film)[:5] == 0)


@pytest.mark.parametrize("photometric", ["MONOCHROME1", "MONOCHROME2"])
def test_mimic_jpg_is_scaled_inverted_and_equalized_as_by_opencv(photometric: str) -> None:
    film = films.thumbnail({"PhotometricInterpretation": photometric})
    stored = film.pixel_array.astype(np.float64)
    eight = np.floor((stored - stored.min()) / (stored.max() - stored.min()) * 255).astype(np.uint8)
    expected = cv2.equalizeHist(eight if photometric == "MONOCHROME2" else 255 - eight)

    assert np.array_equal(np.rint(decode(film, "mimic_jpg") * 255).astype(np.uint8), expected)


@given(
    center=st.floats(-1e5, 1e5),
    width=st.floats(-10, 1e5),
    slope=st.floats(-100, 100),
    intercept=st.floats(-1e4, 1e4),
    function=st.sampled_from(("", "LINEAR", "LINEAR_EXACT", "SIGMOID")),
    gray=st.sampled_from(("voi", "mimic_jpg")),
)
@example(center=0.0, width=2e-309, slope=1.0, intercept=0.0, function="SIGMOID", gray="voi")
@example(center=0.0, width=2e-309, slope=1.0, intercept=0.0, function="LINEAR_EXACT", gray="voi")
def test_gray_values_lie_between_0_and_1_or_the_film_is_blank(
    film: Dataset, center: float, width: float, slope: float, intercept: float, function: str, gray: str
) -> None:
    numbers = {"WindowCenter": center, "WindowWidth": width, "RescaleSlope": slope, "RescaleIntercept": intercept}
    films.changed(film, {keyword: f"{value:.6g}" for keyword, value in numbers.items()} | {"VOILUTFunction": function})

    try:
        decoded = decode(film, gray)
    except Undecodable as refused:
        assert refused.reason == Reason.BLANK
    else:
        assert 0 <= decoded.min() <= decoded.max() <= 1
