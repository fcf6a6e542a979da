"""Films whose header and pixels contradict each other: read as a person would see them, with a note, or refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache
from io import BytesIO
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from pydicom import dcmread
from pydicom.dataset import Dataset
from pydicom.uid import UID, JPEG2000Lossless, JPEGLSLossless, RLELossless

from node.domain import Note, Reason, Report
from node.errors import InputError, Undecodable
from node.outputs import impression, oru, report_json, report_txt, wording
from node.outputs.answer_json import answer_to_json
from node.outputs.source import from_files
from node.outputs.writers import make_report, write_objects
from node.read import open_film, prompts
from node.read.decoding import Radiograph, load, picture_of, stored_picture
from node.read.film import answer_film, answer_picture
from node.read.model import FilmQuestion
from node.settings.destinations import OUTPUT_KINDS
from tests import films
from tests.fakes import ScriptedReader

PROMPTS = prompts.load("chexpert14")
ZONE = ZoneInfo("Europe/Berlin")
Changes = Mapping[str, object]


def square(columns: int, rows: int) -> tuple[float, float, float, float]:
    return ScriptedReader().square(columns, rows)


def read(film: Dataset, gray: str = "voi") -> Radiograph:
    return load(film, gray=gray, square=square)


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
UNREADABLE_MAPPINGS: dict[str, Changes] = {
    "a width of 1": {"WindowWidth": 1},
    "a width of 0.5": {"WindowWidth": 0.5},
    "a width below 0": {"WindowWidth": -5},
    "a width of 128": {"WindowWidth": 128},
    "a width of 256": {"WindowWidth": 256},
    "a window of 8 bits": {"WindowCenter": 128, "WindowWidth": 256},
    "a center below all values": {"WindowCenter": -1e9},
    "a center above all values": {"WindowCenter": 1e9},
    "a center beside the values": {"WindowCenter": 6500},
    "a width of 16 bits": {"WindowCenter": 32768, "WindowWidth": 65536},
    "an absurd width": {"WindowWidth": 1e12},
    "a center that is no number": {"WindowCenter": "NaN"},
    "an exact width of 1": {"WindowWidth": 1, "VOILUTFunction": "LINEAR_EXACT"},
    "a sigmoid that is a threshold": {"WindowWidth": 1e-6, "VOILUTFunction": "SIGMOID"},
    "a sigmoid that is flat": {"WindowWidth": 1e9, "VOILUTFunction": "SIGMOID"},
    "a first window of several": {"WindowCenter": [9000, 2048], "WindowWidth": [10, 4096]},
    "a constant table": {"VOILUTSequence": table(np.full(4096, 255), bits=8)},
    "a table of zeros": {"VOILUTSequence": table(np.zeros(4096, dtype=np.int64), bits=16)},
    "a table of two grays": {"VOILUTSequence": table(np.where(RAMP > 2000, 255, 0), bits=8)},
    "a table for 8 bits": {"VOILUTSequence": table(np.arange(256), bits=8)},
    "a table for other values": {"VOILUTSequence": table(np.arange(256), bits=8, first=60000)},
    "a table of two grays that falls": {
        "PhotometricInterpretation": "MONOCHROME2",
        "VOILUTSequence": table(np.where(RAMP > 2000, 0, 255), bits=8),
    },
    "a modality table of two values": {"ModalityLUTSequence": table(np.where(RAMP > 2000, 4095, 0), bits=12)},
    "a modality table of one value": {"ModalityLUTSequence": table(np.full(4096, 77), bits=12)},
    "a modality table that ends early": {"ModalityLUTSequence": table(np.arange(400), bits=12)},
    "a slope near 0": {"RescaleSlope": 1e-9, "RescaleIntercept": 0},
    "a slope that swallows the values": {"RescaleSlope": 1e-30, "RescaleIntercept": 1000},
    "a slope beyond all numbers": {"RescaleSlope": 1e308, "RescaleIntercept": 0},
    "an intercept beyond all values": {"RescaleSlope": 1, "RescaleIntercept": -1e9},
}


@pytest.mark.parametrize("gray", ["voi", "mimic_jpg"])
@pytest.mark.parametrize("case", UNREADABLE_MAPPINGS)
def test_a_film_nobody_could_read_is_stretched_with_a_note(case: str, gray: str) -> None:
    film = read(film_of(UNREADABLE_MAPPINGS[case]), gray)

    assert film.notes == (Note.STRETCHED,)
    assert likeness(film.gray, read(film_of({}), gray).gray) > 0.95
    assert film.gray.std() > 0.15


@pytest.mark.parametrize("case", UNREADABLE_MAPPINGS)
def test_a_stretched_film_is_shown_everywhere_as_it_was_read(case: str, tmp_path: Path) -> None:
    film = film_of(UNREADABLE_MAPPINGS[case])
    seen, shown = read(film).gray * 255, stored_picture(film)

    assert np.abs(picture_of(film) - seen).max() <= 0.51
    assert np.abs(shown.shown(shown.window).astype(float) - seen).max() <= 1.01
    assert np.abs(by_state(film, tmp_path).astype(float) - seen).max() <= 1.01


@pytest.mark.parametrize("photometric", ["MONOCHROME1", "MONOCHROME2"])
def test_a_stretch_keeps_what_the_header_shows_bright(photometric: str) -> None:
    falling = table(RAMP[::-1] // 2048, bits=1)
    polarity = {"PhotometricInterpretation": photometric}
    good = read(film_of({**polarity, "WindowCenter": 2048, "WindowWidth": 4096})).gray

    assert likeness(read(film_of({**polarity, "WindowWidth": 1})).gray, good) > 0.95
    assert likeness(read(film_of({**polarity, "VOILUTSequence": falling})).gray, good) < -0.95
    assert likeness(read(film_of({**polarity, "ModalityLUTSequence": falling})).gray, good) < -0.95
    assert likeness(read(film_of({**polarity, "RescaleSlope": -1, "RescaleIntercept": 1e9})).gray, good) < -0.95


def by_state(film: Dataset, folder: Path) -> npt.NDArray[np.uint8]:
    """What a viewer shows of a film with the presentation state that the node writes (PS3.4 N.2), 0 to 255."""
    state, values = state_of(film, folder), film_of({}).pixel_array.astype(float)
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


def state_of(film: Dataset, folder: Path) -> Dataset:
    objects = {kind: dataset for kind, dataset in written(film, folder, kinds=("gsps",))[1]}
    return objects["gsps"]


def written(film: Dataset, folder: Path, *, kinds: tuple[str, ...]) -> tuple[Report, list[tuple[str, Dataset]]]:
    """The report on a film, and its objects."""
    path = saved(folder, film)
    answered = answer_film(path, ScriptedReader(), PROMPTS)
    assert answered.film is not None
    report = make_report(
        film.StudyInstanceUID,
        [answered.film],
        model=ScriptedReader().identity,
        prompts=PROMPTS,
        created_at=datetime(2026, 11, 20, tzinfo=UTC),
    )
    uid = str(film.SOPInstanceUID)
    sources = from_files({uid: answered.dataset}, {uid: path})
    return report, list(write_objects(report, sources, zone=ZONE, kinds=kinds))


def texts(dataset: Dataset) -> list[str]:
    """Everything that an object says, with blanks for line breaks."""
    return [" ".join(str(element.value).split()) for element in dataset.iterall() if element.VR != "SQ"]


def saved(folder: Path, film: Dataset) -> Path:
    path = folder / "film.dcm"
    path.write_bytes(films.file_bytes(film))
    return path


def test_a_table_that_declares_too_many_bits_is_scaled(tmp_path: Path) -> None:
    dark, good = (film_of({"VOILUTSequence": table(RAMP, bits=bits)}) for bits in (16, 12))

    assert read(dark).notes == (Note.TABLE_SCALED,)
    assert read(good).notes == ()
    assert np.array_equal(read(dark).gray, read(good).gray)
    assert np.abs(by_state(dark, tmp_path).astype(float) - picture_of(dark)).max() <= 1


@pytest.mark.parametrize(
    ("highest", "bits", "is_scaled"),
    [(4095, 13, True), (4096, 13, False), (32767, 16, True), (32768, 16, False), (65535, 12, False), (200, 300, True)],
)
def test_a_table_is_scaled_below_half_of_its_range(highest: int, bits: int, is_scaled: bool, tmp_path: Path) -> None:
    film = film_of({"VOILUTSequence": table(RAMP * highest // 4095, bits=bits)})

    assert read(film).notes == ((Note.TABLE_SCALED,) if is_scaled else ())
    assert picture_of(film).max() > 120
    assert np.abs(by_state(film, tmp_path).astype(float) - picture_of(film)).max() <= 1


def collimated(outside: npt.NDArray[np.integer] | int) -> npt.NDArray[np.int64]:
    """RG1, positive, in the middle third of a film whose rest stores other values: a ninth of it is exposed."""
    small = 4095 - stored()[::2, ::2]
    rows, columns = small.shape
    pixels = np.full((2 * rows, 2 * columns), 0, dtype=np.int64) + outside
    pixels[rows // 2 : rows // 2 + rows, columns // 2 : columns // 2 + columns] = small
    return pixels


def noise(highest: int) -> npt.NDArray[np.int64]:
    rows, columns = stored()[::2, ::2].shape
    return np.random.default_rng(37).integers(0, highest, (2 * rows, 2 * columns))


WHOLE = {"WindowCenter": 2048, "WindowWidth": 4096}
READABLE: dict[str, Callable[[], Dataset]] = {
    "a film as it is": lambda: film_of({}),
    "a film without a window": lambda: film_of({"WindowCenter": None, "WindowWidth": None}),
    "a window that is empty": lambda: film_of({"WindowCenter": "", "WindowWidth": ""}),
    "a window of half the values": lambda: film_of({"WindowCenter": 1900, "WindowWidth": 2400}),
    "a window of twice the values": lambda: film_of({"WindowCenter": 2048, "WindowWidth": 8192}),
    "a table that falls": lambda: film_of({"VOILUTSequence": table(RAMP[::-1], bits=12)}),
    "much black background": lambda: with_values(collimated(0), changes=WHOLE),
    "much black background, no window": lambda: with_values(collimated(0)),
    "a background of noise": lambda: with_values(collimated(noise(150)), changes=WHOLE),
    "much white background": lambda: with_values(collimated(4095), changes=WHOLE),
    "a background of padding": lambda: with_values(collimated(0), changes={**WHOLE, "PixelPaddingValue": 0}),
    "values of 8 bits in 16": lambda: with_values(
        (4095 - stored()) // 16, bits=16, changes={"WindowCenter": 128, "WindowWidth": 256}
    ),
}


@pytest.mark.parametrize("gray", ["voi", "mimic_jpg"])
@pytest.mark.parametrize("case", READABLE)
def test_a_film_that_can_be_read_keeps_its_gray_values(case: str, gray: str) -> None:
    assert read(READABLE[case](), gray).notes == ()


def two_grays() -> npt.NDArray[np.int64]:
    return np.where(stored() > 2000, 4095, 0)


REFUSED: dict[str, tuple[Callable[[], Dataset], Reason]] = {
    "two grays": (lambda: with_values(two_grays()), Reason.UNREADABLE),
    "two grays and a window": (lambda: with_values(two_grays(), changes=WHOLE), Reason.UNREADABLE),
    "two neighboring values": (lambda: with_values(two_grays() // 4095), Reason.UNREADABLE),
    "twelve grays": (lambda: with_values(stored() // 342), Reason.UNREADABLE),
    "nearly all white": (
        lambda: with_values(np.where(stored() > 300, 4095, stored()), changes=WHOLE),
        Reason.UNREADABLE,
    ),
    "one value in the square": (lambda: with_values(np.pad(np.full((90, 90), 7), ((20, 20), (0, 0)))), Reason.BLANK),
    "one value": (films.constant, Reason.BLANK),
}


@pytest.mark.parametrize("gray", ["voi", "mimic_jpg"])
@pytest.mark.parametrize("case", REFUSED)
def test_a_film_that_no_stretch_helps_is_not_read(case: str, gray: str) -> None:
    make, reason = REFUSED[case]

    with pytest.raises(Undecodable) as refused:
        read(make(), gray)
    assert refused.value.reason == reason


def test_one_bright_pixel_leaves_the_published_picture_its_grays() -> None:
    good, spoiled = 4095 - stored(), 4095 - stored()
    spoiled[3, 3] = 65535
    film = with_values(spoiled, bits=16, changes=WHOLE)

    assert read(film).notes == ()
    assert read(film, "mimic_jpg").notes == (Note.STRETCHED,)
    assert len(np.unique(read(film, "mimic_jpg").gray)) > 100
    assert likeness(read(film, "mimic_jpg").gray, read(with_values(good), "mimic_jpg").gray) > 0.95


def test_every_output_says_that_a_film_was_stretched(tmp_path: Path) -> None:
    film = film_of({"WindowWidth": 1})
    caution = wording.CAUTIONS[Note.STRETCHED]

    report, objects = written(film, tmp_path, kinds=OUTPUT_KINDS)
    message = oru.write(report, {film.SOPInstanceUID: objects[0][1]}, ZONE, order=None, documents=[])[1]

    assert Counter(kind for kind, _ in objects) == {"sr": 1, "sr3d": 1, "text": 1, "gsps": 1, "sc": 2}
    for kind, dataset in objects:
        assert kind == "sc" or caution in " ".join(texts(dataset))
    assert caution in message.decode()
    assert caution in report_txt.render(report)
    entry = report_json.film_for_programs(report.films[0])
    assert (entry["notes"], entry["status"]) == (["stretched"], "read")
    assert caution in impression.of_film(report.films[0])


PICTURES: dict[str, tuple[Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.integer]], tuple[Note, ...]]] = {
    "as it is": (lambda picture: picture, ()),
    "half as bright": (lambda picture: picture // 2, ()),
    "a quarter as bright": (lambda picture: picture // 4, (Note.STRETCHED,)),
    "nearly black": (lambda picture: picture // 8, (Note.STRETCHED,)),
    "nearly white": (lambda picture: 255 - picture // 8, (Note.STRETCHED,)),
    "black with one white pixel": (lambda picture: np.where(RAMP[:1] > 0, 0, picture // 8), (Note.STRETCHED,)),
}


def picture_file(folder: Path, pixels: npt.NDArray[np.integer], *, suffix: str = "png") -> Path:
    path = folder / f"film.{suffix}"
    Image.fromarray(pixels.astype(np.uint8)).save(path)
    return path


@pytest.mark.parametrize("case", PICTURES)
def test_a_picture_nobody_could_read_is_stretched_with_a_note(case: str, tmp_path: Path) -> None:
    change, notes = PICTURES[case]
    good = picture_of(film_of({}))
    path = picture_file(tmp_path, change(good))

    image = open_film.load(path, ScriptedReader())

    assert image.notes == notes
    assert abs(likeness(image.gray, good)) > 0.95
    assert image.gray.max() > 0.95 or not notes
    assert np.array_equal(open_film.show_picture(path), np.rint(image.gray * 255))
    assert answer_picture(image, ScriptedReader(), PROMPTS, source="1.2").notes == (Note.VIEW_UNKNOWN, *notes)
    (answer,) = open_film.ask(path, [FilmQuestion(prompt="Edema")], reader=ScriptedReader(), prompts=PROMPTS)
    assert answer_to_json(answer)["notes"] == list(notes)


@pytest.mark.parametrize("suffix", ["png", "jpg"])
@pytest.mark.parametrize("change", [lambda picture: (picture > 128) * 255, lambda picture: picture // 20])
def test_a_picture_of_a_few_grays_is_refused(
    suffix: str, change: Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.integer]], tmp_path: Path
) -> None:
    path = picture_file(tmp_path, change(picture_of(film_of({}))), suffix=suffix)

    with pytest.raises(InputError, match="name a film"):
        open_film.load(path, ScriptedReader())


def test_a_question_about_a_stretched_film_says_so(tmp_path: Path) -> None:
    path = saved(tmp_path, film_of({"WindowWidth": 1}))

    (answer,) = open_film.ask(path, [FilmQuestion(prompt="Edema")], reader=ScriptedReader(), prompts=PROMPTS)

    assert answer_to_json(answer)["notes"] == ["stretched"]


@pytest.mark.parametrize(
    ("photometric", "shape", "is_disputed"),
    [
        ("MONOCHROME2", "INVERSE", True),
        ("MONOCHROME2", "inverse", True),
        ("MONOCHROME1", "IDENTITY", True),
        ("MONOCHROME1", "INVERSE", False),
        ("MONOCHROME2", "IDENTITY", False),
        ("MONOCHROME1", None, False),
        ("MONOCHROME2", "", False),
        ("MONOCHROME2", "LIN OD", False),
    ],
)
def test_a_film_that_viewers_show_either_way_says_so(
    photometric: str, shape: str | None, is_disputed: bool, tmp_path: Path
) -> None:
    film = film_of({"PhotometricInterpretation": photometric, "PresentationLUTShape": shape})
    is_inverse = photometric == "MONOCHROME1" or (shape or "").upper() == "INVERSE"

    assert read(film).notes == ((Note.POLARITY_UNCLEAR,) if is_disputed else ())
    assert likeness(read(film).gray, stored() * (-1 if is_inverse else 1)) > 0.95
    report, _ = written(film, tmp_path, kinds=())
    cautions = impression.of_film(report.films[0])
    assert (wording.CAUTIONS[Note.POLARITY_UNCLEAR] in cautions) == is_disputed


@pytest.mark.parametrize("bits", [8, 12, 16])
@pytest.mark.parametrize("is_signed", [False, True])
def test_the_sign_of_a_jpeg_2000_codestream_counts(bits: int, is_signed: bool) -> None:
    film = films.compressed(films.at_depth(bits, signed=is_signed), JPEG2000Lossless)

    wrong = read(films.changed(film, {"PixelRepresentation": int(not is_signed)}))

    assert wrong.notes == (Note.SIGN_DISAGREES,)
    assert np.array_equal(wrong.gray, read(films.at_depth(bits, signed=is_signed)).gray)


@pytest.mark.parametrize("syntax", [JPEGLSLossless, RLELossless])
def test_the_header_has_the_sign_where_no_codestream_has_one(syntax: UID) -> None:
    film = films.compressed(films.at_depth(12, signed=True), syntax)

    assert read(film).notes == ()
    assert np.array_equal(read(film).gray, read(films.at_depth(12, signed=True)).gray)
