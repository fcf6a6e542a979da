"""Films whose header and pixels contradict each other: read as a person would see them, with a note, or refused."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping
from functools import cache
from io import BytesIO
from pathlib import Path
from zoneinfo import ZoneInfo

import cv2
import imagecodecs
import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from pydicom import dcmread
from pydicom.dataset import Dataset
from pydicom.encaps import encapsulate, generate_frames
from pydicom.uid import (
    HTJ2K,
    UID,
    DeflatedExplicitVRLittleEndian,
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    HTJ2KLossless,
    HTJ2KLosslessRPCL,
    ImplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGBaseline8Bit,
    JPEGExtended12Bit,
    JPEGLSLossless,
    RLELossless,
)

from models.contract import Question
from node.dicom.header import identify
from node.dicom.header_reading import read_header
from node.dicom.question_object import class_of, sender_of
from node.domain import Note, Reason
from node.errors import InputError
from node.outputs.asked_question import answer_to_json
from node.outputs.source import from_files
from node.outputs.writers import write_objects
from node.read import open_film, prompts
from node.read.film import answer_film, answer_picture
from node.receive.presentation_contexts import TRANSFER_SYNTAXES
from node.store.incoming import has_other_pixels
from tests.node.read.test_decoding import with_frame
from tests.support import films, samples
from tests.support.decoded import load, picture_of, refusal, stored_picture
from tests.support.fakes import ScriptedReader

PROMPTS = prompts.load("chexpert14")
Changes = Mapping[str, object]
Elements = list[tuple[int, bytes, bytes]]


def table(entries: npt.NDArray[np.integer], *, bits: int, first: int = 0) -> list[Dataset]:
    item = Dataset()
    item.add_new("LUTDescriptor", "US", [entries.size % 2**16, first, bits])
    item.add_new("LUTData", "OW", entries.astype("<u2").tobytes())
    return [item]


def film_of(changes: Changes) -> Dataset:
    """RG1 as a film of 12 bits, with these attributes."""
    return films.changed(dcmread(BytesIO(_film())), changes)


@cache
def _film() -> bytes:
    return films.file_bytes(films.at_depth(12))


def with_values(pixels: npt.NDArray[np.integer], *, bits: int = 12, changes: Changes | None = None) -> Dataset:
    """A film of MONOCHROME2 without window that stores these values."""
    film = films.with_pixels(films.ramp(), pixels, bits=bits)
    return films.changed(film, changes or {})


def stored() -> npt.NDArray[np.int64]:
    """The values of RG1 in 12 bits; high ones are dark."""
    values: npt.NDArray[np.int64] = film_of({}).pixel_array.astype(np.int64)
    return values


def likeness(first: npt.NDArray[np.number], second: npt.NDArray[np.number]) -> float:
    """The correlation of two pictures; below 0 if one is the negative of the other."""
    return float(np.corrcoef(first.ravel(), second.ravel())[0, 1])


RAMP = np.arange(4096)
NO_WINDOW: dict[str, object] = {"WindowCenter": None, "WindowWidth": None}
WHOLE, OF_8_BITS = ({"WindowCenter": width // 2, "WindowWidth": width} for width in (4096, 256))
UNREADABLE_MAPPINGS: dict[str, Changes] = {
    "a width of 0.5": {"WindowWidth": 0.5},
    "a width below 0": {"WindowWidth": -5},
    "a window of 8 bits": OF_8_BITS,
    "a center below all values": {"WindowCenter": -1e9},
    "a center above all values": {"WindowCenter": 1e9},
    "a width of 16 bits": {"WindowCenter": 32768, "WindowWidth": 65536},
    "an absurd width": {"WindowWidth": 1e12},
    "a center that is no number": {"WindowCenter": "NaN"},
    "an exact width of 1": {"WindowWidth": 1, "VOILUTFunction": "LINEAR_EXACT"},
    "a sigmoid that is a threshold": {"WindowWidth": 1e-6, "VOILUTFunction": "SIGMOID"},
    "a sigmoid that is flat": {"WindowWidth": 1e9, "VOILUTFunction": "SIGMOID"},
    "a first window of several": {"WindowCenter": [9000, 2048], "WindowWidth": [10, 4096]},
    "a constant table": {"VOILUTSequence": table(np.full(4096, 255), bits=8)},
    "a table of two grays": {"VOILUTSequence": table(np.where(RAMP > 2000, 255, 0), bits=8)},
    "a table for 8 bits": {"VOILUTSequence": table(np.arange(256), bits=8)},
    "a table for other values": {"VOILUTSequence": table(np.arange(256), bits=8, first=60000)},
    "a modality table of two values": {"ModalityLUTSequence": table(np.where(RAMP > 2000, 4095, 0), bits=12)},
    "a modality table of one value": {"ModalityLUTSequence": table(np.full(4096, 77), bits=12)},
    "a modality table that ends early": {"ModalityLUTSequence": table(np.arange(400), bits=12)},
    "a slope near 0": {"RescaleSlope": 1e-9, "RescaleIntercept": 0},
    "a slope that swallows the values": {"RescaleSlope": 1e-30, "RescaleIntercept": 1000},
    "a slope beyond all numbers": {"RescaleSlope": 1e308, "RescaleIntercept": 0},
    "an intercept beyond all values": {"RescaleSlope": 1, "RescaleIntercept": -1e9},
}


@pytest.mark.parametrize("case", UNREADABLE_MAPPINGS)
def test_a_film_nobody_could_read_is_stretched_with_a_note_and_shown_so(case: str, tmp_path: Path) -> None:
    film = film_of(UNREADABLE_MAPPINGS[case])
    for gray in ("voi", "mimic_jpg"):
        stretched = load(film, gray)
        assert stretched.notes == (Note.STRETCHED,)
        assert likeness(stretched.gray, load(film_of({}), gray).gray) > 0.95
        assert stretched.gray.std() > 0.15

    seen, shown = load(film).gray * 255, stored_picture(film)
    assert np.abs(picture_of(film) - seen).max() <= 0.51
    assert np.abs(shown.shown(shown.window).astype(float) - seen).max() <= 1.01
    assert np.abs(by_state(film, tmp_path).astype(float) - seen).max() <= 1.01


@pytest.mark.parametrize("photometric", ["MONOCHROME1", "MONOCHROME2"])
def test_a_stretch_keeps_what_the_header_shows_bright(photometric: str) -> None:
    falling = table(RAMP[::-1] // 2048, bits=1)
    polarity = {"PhotometricInterpretation": photometric}
    good = load(film_of({**polarity, "WindowCenter": 2048, "WindowWidth": 4096})).gray

    assert likeness(load(film_of({**polarity, "WindowWidth": 1})).gray, good) > 0.95
    assert likeness(load(film_of({**polarity, "VOILUTSequence": falling})).gray, good) < -0.95
    assert likeness(load(film_of({**polarity, "ModalityLUTSequence": falling})).gray, good) < -0.95
    assert likeness(load(film_of({**polarity, "RescaleSlope": -1, "RescaleIntercept": 1e9})).gray, good) < -0.95


def by_state(film: Dataset, folder: Path) -> npt.NDArray[np.uint8]:
    """What a viewer shows of a film with the presentation state that the node writes (PS3.4 N.2), 0 to 255."""
    path = films.saved(folder, film)
    answered = answer_film(path, ScriptedReader(), PROMPTS)
    assert answered.film is not None
    uid = answered.film.source
    sources = from_files({uid: answered.dataset}, {uid: path})
    [made] = write_objects(samples.report(answered.film), sources, zone=ZoneInfo("UTC"), kinds=("gsps",))
    state, values = made.dataset, film.pixel_array.astype(float)
    if "ModalityLUTSequence" in state:
        values = looked_up(state.ModalityLUTSequence[0], values)[0]
    else:
        values = values * float(state.get("RescaleSlope", 1)) + float(state.get("RescaleIntercept", 0))
    (voi,) = state.SoftcopyVOILUTSequence
    if "VOILUTSequence" in voi:
        entries, bits = looked_up(voi.VOILUTSequence[0], values)
        gray = entries / (2**bits - 1)
    else:
        center, width = float(voi.WindowCenter), float(voi.WindowWidth)
        is_exact = voi.get("VOILUTFunction") == "LINEAR_EXACT"
        low, high = center - width / 2, center + width / 2 - (0 if is_exact else 1)
        gray = np.clip((values - low) / (high - low), 0, 1)
    return np.rint(255 * (1 - gray if state.PresentationLUTShape == "INVERSE" else gray)).astype(np.uint8)


def looked_up(item: Dataset, values: npt.NDArray[np.floating]) -> tuple[npt.NDArray[np.floating], int]:
    count, first, bits = item.LUTDescriptor
    entries = np.frombuffer(item.LUTData, "<u2" if bits > 8 else "u1").astype(float)[: count or 2**16]
    return entries[np.clip(values - first, 0, entries.size - 1).astype(int)], bits


@pytest.mark.parametrize(
    ("highest", "bits", "is_scaled"),
    [
        (4095, 12, False),
        (4095, 13, True),
        (4096, 13, False),
        (32767, 16, True),
        (32768, 16, False),
        (65535, 12, False),
        (200, 300, True),
    ],
)
def test_a_table_is_scaled_below_half_of_its_range(highest: int, bits: int, is_scaled: bool, tmp_path: Path) -> None:
    film = film_of({"VOILUTSequence": table(RAMP * highest // 4095, bits=bits)})

    assert load(film).notes == ((Note.TABLE_SCALED,) if is_scaled else ())
    assert picture_of(film).max() > 120
    assert np.abs(by_state(film, tmp_path).astype(float) - picture_of(film)).max() <= 1
    if highest == 4095:
        assert np.array_equal(load(film).gray, load(film_of({"VOILUTSequence": table(RAMP, bits=12)})).gray)


def collimated(outside: npt.NDArray[np.integer] | int) -> npt.NDArray[np.int64]:
    """RG1, positive, in the middle of a film whose rest stores other values: a quarter of it is exposed."""
    small = 4095 - stored()[::2, ::2]
    rows, columns = small.shape
    pixels = np.full((2 * rows, 2 * columns), 0, dtype=np.int64) + outside
    pixels[rows // 2 : rows // 2 + rows, columns // 2 : columns // 2 + columns] = small
    return pixels


def noise(highest: int) -> npt.NDArray[np.int64]:
    rows, columns = stored()[::2, ::2].shape
    return np.random.default_rng(37).integers(0, highest, (2 * rows, 2 * columns))


def slanted() -> npt.NDArray[np.int64]:
    """RG1, positive, in a field that is turned by 8 degrees and takes two thirds, with a letter beside it."""
    pixels = np.maximum(4095 - stored(), 150)
    rows, columns = pixels.shape
    corners = cv2.boxPoints(((columns / 2, rows / 2), (0.8 * columns, 0.8 * rows), 8.0))
    field = cv2.fillConvexPoly(np.zeros(pixels.shape, np.uint8), corners.astype(np.int32), 1)
    cv2.putText(field, "L", (columns - 60, 60), cv2.FONT_HERSHEY_SIMPLEX, 1.5, 1, 6)
    around = np.random.default_rng(41).integers(0, 150, pixels.shape)
    return np.where(field > 0, pixels, around)


def with_range(film: Dataset, low: int, high: int) -> Dataset:
    film.add_new("PixelPaddingValue", "US", low)
    film.add_new("PixelPaddingRangeLimit", "US", high)
    return film


READABLE: dict[str, Callable[[], Dataset]] = {
    "a film as it is": lambda: film_of({}),
    "a window that is empty": lambda: film_of({"WindowCenter": "", "WindowWidth": ""}),
    "a window of half the values": lambda: film_of({"WindowCenter": 1900, "WindowWidth": 2400}),
    "a window of twice the values": lambda: film_of({"WindowCenter": 2048, "WindowWidth": 8192}),
    "a table that falls": lambda: film_of({"VOILUTSequence": table(RAMP[::-1], bits=12)}),
    "no window": lambda: film_of(NO_WINDOW),
    "no window, low is black": lambda: film_of(NO_WINDOW | {"PhotometricInterpretation": "MONOCHROME2"}),
    "no window, but slope and intercept": lambda: film_of(NO_WINDOW | {"RescaleSlope": 3, "RescaleIntercept": -1024}),
    "no window, but an intercept": lambda: film_of(NO_WINDOW | {"RescaleIntercept": 500}),
    "no window, but a slope": lambda: film_of(NO_WINDOW | {"RescaleSlope": 3}),
    "no window, but a table": lambda: film_of(NO_WINDOW | {"ModalityLUTSequence": table(RAMP, bits=16)}),
    "no window, but a falling one": lambda: film_of(NO_WINDOW | {"ModalityLUTSequence": table(RAMP[::-1], bits=12)}),
    "much black background": lambda: with_values(collimated(0), changes=WHOLE),
    "much black background, no window": lambda: with_values(collimated(0)),
    "a small exposed field": lambda: with_values(np.pad((4095 - stored())[::2, ::2], 240), changes=WHOLE),
    "a background of noise": lambda: with_values(collimated(noise(150)), changes=WHOLE),
    "much white background": lambda: with_values(collimated(4095), changes=WHOLE),
    "a background of padding": lambda: with_range(with_values(collimated(0), changes=WHOLE), 0, 0),
    "values of 8 bits in 16": lambda: with_values((4095 - stored()) // 16, bits=16, changes=OF_8_BITS),
}


@pytest.mark.parametrize("case", READABLE)
def test_a_film_that_can_be_read_keeps_its_gray_values_and_is_shown_so(case: str, tmp_path: Path) -> None:
    film = READABLE[case]()

    assert [load(film, gray).notes for gray in ("voi", "mimic_jpg")] == [(), ()]
    assert np.abs(by_state(film, tmp_path).astype(float) - load(film).gray * 255).max() <= 1.01


@pytest.mark.parametrize("gray", ["voi", "mimic_jpg"])
@pytest.mark.parametrize("share", [0.2, 0.54, 0.69])
@pytest.mark.parametrize("is_bright", [False, True])
@pytest.mark.parametrize("part", ["a film", "lungs at the edge"])
def test_a_padding_range_that_hides_much_is_ignored(part: str, is_bright: bool, share: float, gray: str) -> None:
    pixels = 4095 - stored()
    if part == "lungs at the edge":
        rows, columns = pixels.shape
        pixels = pixels[rows // 6 : 5 * rows // 6, columns // 6 : 5 * columns // 6]
    limit = int(np.quantile(pixels, 1 - share if is_bright else share))

    plain, ranged = (with_values(pixels, changes=WHOLE) for _ in range(2))
    found = load(with_range(ranged, *((limit, 4095) if is_bright else (0, limit))), gray)

    assert found.notes == (Note.PADDING_IGNORED,)
    assert np.array_equal(found.gray, load(plain, gray).gray)


@pytest.mark.parametrize(
    ("pixels", "low", "high"),
    [
        pytest.param(lambda: collimated(0), 0, 0, id="one value around a quarter"),
        pytest.param(lambda: collimated(4095), 4090, 4095, id="a range of which one value occurs"),
        pytest.param(slanted, 0, 149, id="noise around a collimated field"),
    ],
)
def test_padding_around_the_exposure_is_black(pixels: Callable[[], npt.NDArray[np.int64]], low: int, high: int) -> None:
    found = load(with_range(with_values(pixels(), changes=WHOLE), low, high))

    assert found.notes == ()
    assert not found.gray[:16, :16].any()


def two_grays() -> npt.NDArray[np.int64]:
    return np.where(stored() > 2000, 4095, 0)


REFUSED: dict[str, Callable[[], Dataset]] = {
    "two grays": lambda: with_values(two_grays()),
    "two grays and a window": lambda: with_values(two_grays(), changes=WHOLE),
    "two neighboring values": lambda: with_values(two_grays() // 4095),
    "twelve grays": lambda: with_values(stored() // 342),
    "nearly all white": lambda: with_values(np.where(stored() > 300, 4095, stored()), changes=WHOLE),
}


@pytest.mark.parametrize("gray", ["voi", "mimic_jpg"])
@pytest.mark.parametrize("case", REFUSED)
def test_a_film_that_no_stretch_helps_is_not_read(case: str, gray: str) -> None:
    assert refusal(REFUSED[case](), gray) == Reason.UNREADABLE


def test_one_bright_pixel_leaves_the_published_picture_its_grays() -> None:
    good, spoiled = 4095 - stored(), 4095 - stored()
    spoiled[3, 3] = 65535

    found = load(with_values(spoiled, bits=16, changes=WHOLE), "mimic_jpg")

    assert (found.notes, len(np.unique(found.gray)) > 100) == ((Note.STRETCHED,), True)
    assert likeness(found.gray, load(with_values(good), "mimic_jpg").gray) > 0.95


def picture_file(folder: Path, pixels: npt.NDArray[np.integer], *, suffix: str = "png") -> Path:
    path = folder / f"film.{suffix}"
    Image.fromarray(pixels.astype(np.uint8)).save(path, quality=20)
    return path


@pytest.mark.parametrize(
    ("change", "notes"),
    [
        pytest.param(lambda picture: picture, (), id="as it is"),
        pytest.param(lambda picture: picture // 2, (), id="half as bright"),
        pytest.param(lambda picture: picture // 4, (Note.STRETCHED,), id="a quarter as bright"),
        pytest.param(lambda picture: 255 - picture // 8, (Note.STRETCHED,), id="nearly white"),
    ],
)
def test_a_picture_nobody_could_read_is_stretched_with_a_note(
    change: Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.uint8]], notes: tuple[Note, ...], tmp_path: Path
) -> None:
    good = picture_of(film_of({}))
    path = picture_file(tmp_path, change(good))

    image = open_film.load(path, ScriptedReader())

    assert image.notes == notes
    assert abs(likeness(image.gray, good)) > 0.95
    assert image.gray.max() > 0.95 or not notes
    assert np.array_equal(open_film.show_picture(path), np.rint(image.gray * 255))
    assert answer_picture(image, ScriptedReader(), PROMPTS, source="1.2").notes == (Note.VIEW_UNKNOWN, *notes)
    (answer,) = open_film.ask(path, [Question(prompt="Edema")], reader=ScriptedReader(), prompts=PROMPTS)
    assert answer_to_json(answer)["notes"] == list(notes)


@pytest.mark.parametrize("suffix", ["PNG", "JPEG", "png", "jpg"])
def test_a_picture_of_few_pixels_or_grays_is_refused(suffix: str, tmp_path: Path) -> None:
    whole = picture_of(film_of({}))

    assert open_film.load(picture_file(tmp_path, whole[:64], suffix=suffix), ScriptedReader()).framing.rows == 64
    with pytest.raises(InputError, match="a side under 64 pixels"):
        open_film.load(picture_file(tmp_path, whole[:63], suffix=suffix), ScriptedReader())
    for few in ((whole > 128) * 255, whole // 20):
        with pytest.raises(InputError, match="name a film"):
            open_film.load(picture_file(tmp_path, few, suffix=suffix), ScriptedReader())


@pytest.mark.parametrize(
    ("photometric", "shape", "is_disputed"),
    [
        ("MONOCHROME2", "INVERSE", True),
        ("MONOCHROME2", "inverse", True),
        ("MONOCHROME1", "IDENTITY", True),
        ("MONOCHROME1", "INVERSE", False),
        ("MONOCHROME2", "IDENTITY", False),
        ("MONOCHROME1", None, False),
        ("MONOCHROME2", "LIN OD", False),
    ],
)
def test_a_film_that_viewers_show_either_way_says_so(photometric: str, shape: str | None, is_disputed: bool) -> None:
    film = film_of({"PhotometricInterpretation": photometric, "PresentationLUTShape": shape})
    is_inverse = photometric == "MONOCHROME1" or (shape or "").upper() == "INVERSE"

    assert load(film).notes == ((Note.POLARITY_UNCLEAR,) if is_disputed else ())
    assert likeness(load(film).gray, stored() * (-1 if is_inverse else 1)) > 0.95


@pytest.mark.parametrize("syntax", [JPEG2000Lossless, HTJ2KLossless])
@pytest.mark.parametrize("bits", [8, 12, 16])
@pytest.mark.parametrize("is_signed", [False, True])
def test_the_sign_of_a_jpeg_2000_codestream_counts(bits: int, is_signed: bool, syntax: UID) -> None:
    film, plain = (films.at_depth(bits, signed=is_signed) for _ in range(2))
    if syntax == JPEG2000Lossless:
        films.compressed(film, syntax)
    else:
        with_frame(film, imagecodecs.htj2k_encode(film.pixel_array, reversible=True), syntax)

    wrong = load(films.changed(film, {"PixelRepresentation": int(not is_signed)}))

    assert wrong.notes == (Note.SIGN_DISAGREES,)
    assert np.array_equal(wrong.gray, load(plain).gray)


@pytest.mark.parametrize("make", [films.thumbnail, lambda: films.at_depth(8), lambda: films.ramp(WHOLE)])
@pytest.mark.parametrize("more", [b"\0" * 2, b"\xff" * 100, b"\x5a" * 510])
def test_bytes_behind_the_pixels_are_cut_with_a_note(make: Callable[[], Dataset], more: bytes) -> None:
    film = make()
    film.PixelData += more

    assert load(film).notes == (Note.PIXELS_CUT,)
    assert np.array_equal(load(film).gray, load(make()).gray)


def test_pixels_of_another_size_are_refused() -> None:
    whole = films.thumbnail().PixelData
    a_column_more, a_frame_more = whole + bytes(2 * 245), whole + whole

    for pixels in (whole[:-2], b"", a_column_more, a_frame_more, whole * 4 + bytes(2)):
        assert refusal(films.thumbnail({"PixelData": pixels})) == Reason.UNDECODABLE


DELIMITER, ITEM = b"\xfe\xff\xdd\xe0\0\0\0\0", b"\xfe\xff\0\xe0"
WHOLE_ENDS: dict[str, Callable[[bytes], bytes]] = {
    "no delimiter": lambda content: content.removesuffix(DELIMITER),
    "half a delimiter": lambda content: content[:-4],
    "other elements": lambda content: content.removesuffix(DELIMITER) + b"\xfc\xff\xfc\xffOB\0\0\2\0\0\0\0\0",
    "zeros": lambda content: content.removesuffix(DELIMITER) + bytes(510),
}
CUT_OFF: dict[str, Callable[[bytes], bytes]] = {
    "20 bytes lost": lambda content: content[: -len(DELIMITER) - 20],
    "1000 bytes lost": lambda content: content[: -len(DELIMITER) - 1000],
    "a fragment lost": lambda content: content[: content.rindex(ITEM)],
}


@pytest.mark.parametrize("end", [*WHOLE_ENDS, *CUT_OFF])
@pytest.mark.parametrize(("syntax", "fragments"), [(JPEG2000Lossless, 3), (JPEGLSLossless, 1), (RLELossless, 1)])
def test_a_whole_codestream_is_read_whatever_ends_it(syntax: UID, fragments: int, end: str, tmp_path: Path) -> None:
    film = films.compressed(films.thumbnail({"DataSetTrailingPadding": None}), syntax)
    (frame,) = generate_frames(film.PixelData, number_of_frames=1)
    film.PixelData = encapsulate([frame], fragments_per_frame=fragments)
    content = films.file_bytes(film)
    assert content.endswith(DELIMITER)
    path = tmp_path / "film.dcm"
    path.write_bytes((WHOLE_ENDS | CUT_OFF)[end](content))

    if end in CUT_OFF:
        assert refusal(path) == Reason.UNDECODABLE
    else:
        assert load(path).notes == ()
        assert np.array_equal(load(path).gray, load(films.thumbnail()).gray)


def encoded(number: int, vr: bytes, value: bytes, *, syntax: UID) -> bytes:
    """An element of group 2, as it stands in a dataset of this syntax."""
    if syntax.is_implicit_VR:
        return struct.pack("<HHL", 2, number, len(value)) + value
    return struct.pack("<HH2sH" if syntax.is_little_endian else ">HH2sH", 2, number, vr, len(value)) + value


META_VALUES: Elements = [
    (0, b"UL", struct.pack("<L", 9999)),
    (2, b"UI", b"1.2.840.10008.5.1.4.1.1.4\0"),
    (3, b"UI", b"1.2.3.4.5.6\0"),
    (0x10, b"UI", b"1.2.840.10008.1.2.4.90"),
    (0x16, b"AE", b"NOBODY"),
]
PLAIN_SYNTAXES = [ExplicitVRLittleEndian, ImplicitVRLittleEndian, ExplicitVRBigEndian]


@pytest.mark.parametrize("values", [META_VALUES, META_VALUES[3:4], META_VALUES[:1], META_VALUES[::-1]])
@pytest.mark.parametrize("syntax", [*PLAIN_SYNTAXES, DeflatedExplicitVRLittleEndian, JPEG2000Lossless])
def test_meta_elements_inside_a_dataset_are_dropped(syntax: UID, values: Elements, tmp_path: Path) -> None:
    film, content = films.thumbnail(), in_syntax(syntax)
    body = films.body_of(content)
    strange = b"".join(encoded(*value, syntax=syntax) for value in values)
    if syntax == DeflatedExplicitVRLittleEndian:
        packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
        body = packer.compress(strange + zlib.decompress(body, -zlib.MAX_WBITS)) + packer.flush()
        body += bytes(len(body) % 2)
    else:
        body = strange + body
    path = tmp_path / "film.dcm"
    path.write_bytes(content[: -len(films.body_of(content))] + body)
    answered = answer_film(path, ScriptedReader(), PROMPTS)

    assert answered.film is not None
    assert (answered.film.is_read, answered.film.source) == (True, film.SOPInstanceUID)
    assert np.array_equal(load(path).gray, load(films.thumbnail()).gray)
    dataset = read_header(path)
    assert dataset.file_meta.TransferSyntaxUID == syntax
    assert [element.tag for element in dataset if element.tag.group == 2] == []
    assert identify(BytesIO(body), syntax) == (film.StudyInstanceUID, film.SOPInstanceUID)
    assert sender_of(dataset) != "NOBODY"
    assert class_of(path) == film.SOPClassUID
    if syntax == ExplicitVRLittleEndian:
        plain = tmp_path / "plain.dcm"
        plain.write_bytes(content)
        assert not has_other_pixels(path, plain)


@pytest.mark.parametrize("syntax", PLAIN_SYNTAXES)
def test_a_wrong_group_length_hides_nothing(syntax: UID, tmp_path: Path) -> None:
    path, content = tmp_path / "film.dcm", bytearray(in_syntax(syntax))
    (length,) = struct.unpack("<L", content[140:144])
    for error in (-60, -17, 6, 9999):
        content[140:144] = struct.pack("<L", length + error)
        path.write_bytes(content)

        assert read_header(path).file_meta.TransferSyntaxUID == syntax
        assert np.array_equal(load(path).gray, load(films.thumbnail()).gray)


def in_syntax(syntax: UID) -> bytes:
    """The file of the thumbnail in a transfer syntax."""
    film = films.thumbnail()
    if syntax.is_encapsulated:
        return films.file_bytes(films.compressed(film, syntax))
    assert list(film.iterall())  # converts all values, which are copied as they are otherwise
    if not syntax.is_little_endian:
        film.PixelData = np.frombuffer(film.PixelData, "<u2").astype(">u2").tobytes()
    film.file_meta.TransferSyntaxUID = syntax
    film.set_original_encoding(syntax.is_implicit_VR, syntax.is_little_endian)
    return films.file_bytes(film)


@pytest.mark.parametrize("syntax", [JPEGExtended12Bit, JPEGBaseline8Bit])
def test_lossy_jpeg_of_12_bits_is_read_if_it_is_whole(syntax: UID) -> None:
    film = film_of({})
    frame = bytes(imagecodecs.jpeg8_encode(film.pixel_array, 98, bitspersample=12))

    for gray, tolerance in (("voi", 0.01), ("mimic_jpg", 0.1)):
        read = load(with_frame(film_of({}), frame, syntax), gray)
        assert read.notes == ()
        assert np.abs(read.gray - load(film, gray).gray).max() < tolerance
    for lost in (2, 100, 20000):
        assert refusal(with_frame(film_of({}), frame[:-lost], syntax)) == Reason.UNDECODABLE


def test_real_lossy_jpeg_of_12_bits_shows_what_the_lossless_film_shows() -> None:
    names = ("JPEGext12", "JPEGlossless")
    lossy, lossless = (picture_of(films.shared(f"not_chest/RG2_hip_{name}.dcm")) for name in names)

    assert likeness(lossy, lossless) > 0.999


@pytest.mark.parametrize("syntax", [HTJ2KLossless, HTJ2KLosslessRPCL, HTJ2K])
@pytest.mark.parametrize("bits", [8, 12, 16])
def test_high_throughput_jpeg_2000_is_offered_and_read(bits: int, syntax: UID) -> None:
    film = films.at_depth(bits)
    level, tolerance = (0.0001, 0.01) if syntax == HTJ2K else (None, 0)
    frame = imagecodecs.htj2k_encode(film.pixel_array, level, reversible=syntax != HTJ2K)

    image = load(with_frame(film, frame, syntax))

    assert (image.notes, syntax in TRANSFER_SYNTAXES) == ((), True)
    assert np.abs(image.gray - load(films.at_depth(bits)).gray).max() <= tolerance
