"""What is shown of a film, and what is no film in gray.

A presentation state and the node's pictures keep side marker and shutter; a picture with colors is never read.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Final

import cv2
import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from pydicom import dcmread
from pydicom.dataset import Dataset
from pydicom.uid import JPEG2000Lossless, RLELossless

from models.contract import Box, Question
from node.dicom import attributes, header_reading
from node.domain import Film
from node.errors import InputError
from node.outputs import answers, gsps, overlay, secondary_capture, wording
from node.outputs.document import save_bytes
from node.outputs.source import Source, from_files
from node.read import decoder_child, decoding, open_film, prompts
from node.read.model import FilmAnswer
from node.store.spool import Spool
from node.web.pictures import Pictures
from tests.node.outputs.test_answer_objects import asked
from tests.support import decoded, films, samples, validators
from tests.support.fakes import ScriptedReader
from tests.support.peers import require
from tests.support.samples import BERLIN, finding, report

ROWS, COLUMNS = 90, 70
AI_LAYERS: Final = {gsps.SQUARE, gsps.LABEL, gsps.BOXES, gsps.DARK, gsps.ASKED}
MARK: Final = np.zeros((ROWS, COLUMNS), dtype=bool)
MARK[8:20, 50:58] = True  # the upright of a side marker
MARK[18:20, 50:66] = True

Mask = npt.NDArray[np.bool_]
Change = Callable[[Dataset], None]


def dark(*changes: Change) -> Dataset:
    """Make a film of 12 bits in 16 that is dark everywhere, and change it."""
    film = films.thumbnail({"PhotometricInterpretation": "MONOCHROME2", "WindowCenter": 2048, "WindowWidth": 4096})
    films.with_pixels(film, np.arange(ROWS * COLUMNS).reshape(ROWS, COLUMNS) % 1000, bits=12)
    films.changed(
        film, {"PixelSpacing": [0.4, 0.4], "StudyInstanceUID": samples.STUDY, "ReferringPhysicianName": "A^B"}
    )
    for change in changes:
        change(film)
    return film


def plane(
    bits: Mask = MARK,
    *,
    group: int = 0x6000,
    origin: tuple[int, int] | None = (1, 1),
    kind: str | None = "G",
    allocated: int = 1,
    more: Mapping[int, tuple[str, object]] | None = None,
) -> Change:
    """Give a film an overlay plane; more: elements of its group by number; with the value None an element goes."""
    rows, columns = bits.shape[-2:]
    packed = np.packbits(bits.ravel(), bitorder="little").tobytes()
    elements: dict[int, tuple[str, object]] = {
        0x0010: ("US", rows),
        0x0011: ("US", columns),
        0x0040: ("CS", kind),
        0x0050: ("SS", None if origin is None else list(origin)),
        0x0100: ("US", allocated),
        0x0102: ("US", 0),
        0x3000: ("OW", packed + b"\0" * (len(packed) % 2)),
        **(more or {}),
    }

    def change(film: Dataset) -> None:
        for element, (vr, value) in elements.items():
            if value is not None:
                film.add_new((group, element), vr, value)

    return change


def both(*changes: Change) -> Change:
    """Apply several changes to one film."""

    def change(film: Dataset) -> None:
        for each in changes:
            each(film)

    return change


def embedded(position: int = 12) -> Change:
    """Put an overlay plane into the unused bits of the pixel cells, as PS3.3 had it until 2004."""

    def change(film: Dataset) -> None:
        plane(allocated=16, more={0x0102: ("US", position), 0x3000: ("OW", None)})(film)
        film.PixelData = (film.pixel_array | (MARK.astype(np.uint16) << position)).astype("<u2").tobytes()

    return change


def shutter(*shapes: str, value: object = 0, **more: object) -> Change:
    """Give a film a display shutter."""

    def change(film: Dataset) -> None:
        film.ShutterShape = list(shapes)
        films.changed(film, {"ShutterPresentationValue": value, **more})

    return change


def sources(path: Path) -> dict[str, Source]:
    """Return a film as the writers get it."""
    header = header_reading.read_header(path)
    return from_files({str(header.SOPInstanceUID): header}, {str(header.SOPInstanceUID): path})


def answer_of(source: Source) -> Film:
    """Return what was read on a film: one box at its bottom."""
    header = source.header
    return Film(
        source=header.SOPInstanceUID,
        columns=header.Columns,
        rows=header.Rows,
        analyzed=Box(left=0, top=0, right=header.Columns, bottom=header.Rows),
        findings=(finding(boxes=(Box(left=20, top=60, right=50, bottom=80),), sentence=None),),
    )


def state_of(film: Dataset, folder: Path) -> Dataset:
    """Write the presentation state of a film, and read it back from its bytes."""
    known = sources(films.saved(folder, film))
    [written] = samples.datasets(gsps.write, report(*map(answer_of, known.values())), known, BERLIN)
    return dcmread(BytesIO(save_bytes(written)))


def activated(state: Dataset) -> dict[int, str]:
    """Return the layer of each overlay plane that a state speaks of; "" for one that is not displayed."""
    return {element.tag.group: str(element.value or "") for element in state if element.tag.elem == 0x1001}


def shown(film: Dataset, folder: Path) -> npt.NDArray[np.uint8]:
    return decoded.picture_of(films.saved(folder, film))


def placed(bits: Mask, row: int, column: int) -> Mask:
    """Return where a plane lies on the film; row, column: of its first bit, from 0."""
    whole = np.zeros((3 * ROWS, 3 * COLUMNS), dtype=bool)
    whole[ROWS + row : ROWS + row + bits.shape[0], COLUMNS + column : COLUMNS + column + bits.shape[1]] = bits
    return whole[ROWS : 2 * ROWS, COLUMNS : 2 * COLUMNS]


BLOCK: Final = np.ones((10, 7), dtype=bool)
LARGE: Final = np.zeros((ROWS + 30, COLUMNS + 30), dtype=bool)
LARGE[5:9, 3:40], LARGE[ROWS:], LARGE[:, COLUMNS:] = True, True, True
OUTLINE: Final = np.ones((10, 7), dtype=bool)
OUTLINE[1:-1, 1:-1] = False
TWO: Final = np.stack([MARK, ~MARK])

PACKED: Final = np.packbits(MARK, bitorder="little").tobytes()

PLANES: dict[str, tuple[Change, Mask]] = {
    "a side marker": (plane(), MARK),
    "of two groups": (both(plane(), plane(BLOCK, group=0x6002)), MARK | placed(BLOCK, 0, 0)),
    "small, with an origin": (plane(BLOCK, origin=(31, 21)), placed(BLOCK, 30, 20)),
    "begins before the film": (plane(BLOCK, origin=(-3, -2)), placed(BLOCK, -4, -3)),
    "origin zero": (plane(BLOCK, origin=(0, 0)), placed(BLOCK, -1, -1)),
    "ends behind the film": (plane(BLOCK, origin=(ROWS - 3, COLUMNS - 2)), placed(BLOCK, ROWS - 4, COLUMNS - 3)),
    "beside the film": (plane(BLOCK, origin=(500, 500)), np.zeros_like(MARK)),
    "larger than the film": (plane(LARGE), LARGE[:ROWS, :COLUMNS]),
    "no origin, but the film's size": (plane(origin=None), MARK),
    "several frames": (plane(TWO, more={0x0015: ("IS", 2), 0x0051: ("US", 1)}), MARK),
    "unused bit 12": (embedded(), MARK),
    "a region of interest": (plane(BLOCK, origin=(31, 21), kind="R"), placed(OUTLINE, 30, 20)),
}

BROKEN: dict[str, Change] = {
    "data too short": plane(more={0x3000: ("OW", bytes(100))}),
    "eight bits allocated": plane(allocated=8, more={0x3000: ("OW", bytes(ROWS * COLUMNS))}),
    "no origin and another size": plane(BLOCK, origin=None),
    "begins on frame 2": plane(more={0x0051: ("US", 2)}),
    "in a bit of the gray value": plane(allocated=16, more={0x0102: ("US", 11), 0x3000: ("OW", None)}),
    "in a bit that no cell has": plane(allocated=16, more={0x0102: ("US", 16), 0x3000: ("OW", None)}),
    "embedded, of another size": plane(BLOCK, allocated=16, more={0x0102: ("US", 12), 0x3000: ("OW", None)}),
    "a layer and nothing else": lambda film: film.add_new((0x6000, 0x1001), "CS", "MARKER"),
}


OWN_WAY: Final = ("a region of interest", "no origin, but the film's size")
"""What dcmtk 3.6.7 draws otherwise: it darkens what surrounds a region, and leaves a plane without an origin out."""


@pytest.mark.parametrize("name", PLANES)
def test_state_and_pictures_show_the_overlays_of_a_film(name: str, tmp_path: Path) -> None:
    change, expected = PLANES[name]
    film = dark(change)

    state, picture = state_of(film, tmp_path), shown(film, tmp_path)

    orders = {str(layer.GraphicLayer): int(layer.GraphicLayerOrder) for layer in state.GraphicLayerSequence}
    found = activated(state)
    assert found.keys() == {element.tag.group for element in film if 0x6000 <= element.tag.group < 0x7000}
    for layer in found.values():
        assert layer not in AI_LAYERS
        assert orders[layer] < min(orders[name] for name in AI_LAYERS & orders.keys())
    assert validators.dciodvfy(state) == []
    assert validators.dcmpschk(state) == []
    assert np.array_equal(picture == 255, expected)
    assert np.array_equal(picture[~expected], shown(dark(), tmp_path)[~expected])
    if name not in OWN_WAY:
        path, drawn = films.saved(tmp_path, film), tmp_path / "film.pgm"
        subprocess.run([require("dcm2pnm"), "--quiet", "+Wi", "1", path, drawn], check=True, timeout=60)
        assert np.array_equal(np.asarray(Image.open(drawn)) == 255, picture == 255)


@pytest.mark.parametrize("group", [None, 0x6001, 0x5000, 0x6020])
def test_a_film_without_overlay_or_shutter_has_neither(group: int | None, tmp_path: Path) -> None:
    film = dark() if group is None else dark(plane(group=group))

    state = state_of(film, tmp_path)

    assert [element.tag for element in state if 0x5000 <= element.tag.group < 0x7000] == []
    assert {str(layer.GraphicLayer) for layer in state.GraphicLayerSequence} <= AI_LAYERS
    assert [element.keyword for element in state if element.keyword.startswith("Shutter")] == []
    assert np.array_equal(shown(film, tmp_path), shown(dark(), tmp_path))


RECTANGLE: Final = {
    "ShutterLeftVerticalEdge": 11,
    "ShutterRightVerticalEdge": 60,
    "ShutterUpperHorizontalEdge": 21,
    "ShutterLowerHorizontalEdge": 80,
}
CIRCLE: Final = {"CenterOfCircularShutter": [40, 30], "RadiusOfCircularShutter": 20}
POLYGON: Final = {"VerticesOfThePolygonalShutter": [20, 10, 20, 60, 80, 60, 80, 10]}
FRAME: Final = np.ones((ROWS, COLUMNS), dtype=bool)
FRAME[20:80, 10:60] = False
DOWN, ACROSS = np.ogrid[1 : ROWS + 1, 1 : COLUMNS + 1]
DISK: Final = (DOWN - 40) ** 2 + (ACROSS - 30) ** 2 > 20**2
SQUARE_OF_POLYGON: Final = np.ones((ROWS, COLUMNS), dtype=bool)
SQUARE_OF_POLYGON[19:80, 9:60] = False


def rectangle(**changes: object) -> Change:
    return shutter("RECTANGULAR", **{**RECTANGLE, **changes})


def circle(**changes: object) -> Change:
    return shutter("CIRCULAR", **{**CIRCLE, **changes})


def left_edge(*values: str) -> Change:
    return lambda film: film.add_new("ShutterLeftVerticalEdge", "LO", list(values))


SHUTTERS: dict[str, tuple[Change, Mapping[str, object], Mask]] = {
    "rectangular": (rectangle(), RECTANGLE, FRAME),
    "circular": (circle(), CIRCLE, DISK),
    "polygonal": (shutter("POLYGONAL", **POLYGON), POLYGON, SQUARE_OF_POLYGON),
    "all shapes": (
        shutter("RECTANGULAR", "CIRCULAR", "POLYGONAL", **RECTANGLE, **CIRCLE, **POLYGON),
        {**RECTANGLE, **CIRCLE, **POLYGON},
        FRAME | DISK | SQUARE_OF_POLYGON,
    ),
    "gray": (rectangle(value=0x8080), RECTANGLE, FRAME),
    "wider than the film": (
        rectangle(ShutterRightVerticalEdge=5000),
        {**RECTANGLE, "ShutterRightVerticalEdge": 5000},
        FRAME & ~placed(np.ones((60, COLUMNS), bool), 20, 10),
    ),
    "one of two broken": (
        shutter("RECTANGULAR", "CIRCULAR", **RECTANGLE, **{**CIRCLE, "RadiusOfCircularShutter": 0}),
        RECTANGLE,
        FRAME,
    ),
    "attributes of a shape that it does not have": (rectangle(**CIRCLE), RECTANGLE, FRAME),
}

BROKEN_SHUTTERS: dict[str, Change] = {
    "edges in the wrong order": rectangle(ShutterLeftVerticalEdge=61),
    "an edge that is missing": rectangle(ShutterLeftVerticalEdge=None),
    "an edge of a letter": both(rectangle(), left_edge("x")),
    "an edge of a fraction": both(rectangle(), left_edge("1.5")),
    "an edge of two numbers": both(rectangle(), left_edge("11", "12")),
    "beside the film": rectangle(ShutterLeftVerticalEdge=500, ShutterRightVerticalEdge=600),
    "a center of three numbers": circle(CenterOfCircularShutter=[40, 30, 20]),
    "an odd number of coordinates": shutter("POLYGONAL", VerticesOfThePolygonalShutter=[1, 1, 50, 50, 1, 50, 3]),
    "another shape": shutter("HEXAGONAL", **RECTANGLE),
    "no shape": shutter(**RECTANGLE),
    "two shapes that leave nothing": shutter(
        "RECTANGULAR", "CIRCULAR", **RECTANGLE, CenterOfCircularShutter=[5, 5], RadiusOfCircularShutter=3
    ),
    "a bitmap, which only presentation states have": shutter("BITMAP", ShutterOverlayGroup=0x6004),
}


@pytest.mark.parametrize("name", SHUTTERS)
def test_state_and_pictures_have_the_shutter_of_a_film(name: str, tmp_path: Path) -> None:
    change, kept, hidden = SHUTTERS[name]
    film = dark(change)

    state, picture = state_of(film, tmp_path), shown(film, tmp_path)

    found = {element.keyword: element.value for element in state if "Shutter" in element.keyword}
    shape, value = found.pop("ShutterShape"), found.pop("ShutterPresentationValue")
    assert found == kept
    assert set([shape] if isinstance(shape, str) else shape) <= set(attributes.values(film, "ShutterShape"))
    assert value == film.get("ShutterPresentationValue", 0)
    assert validators.dciodvfy(state) == []
    assert validators.dcmpschk(state) == []
    edge = np.zeros_like(hidden)
    if "CIRCULAR" in film.ShutterShape:  # a circle of pixels is a matter of rounding at its edge
        edge = np.abs(np.hypot(DOWN - 40, ACROSS - 30) - 20) < 1
    gray = round(film.get("ShutterPresentationValue", 0) / 257)
    assert (picture[hidden & ~edge] == gray).all()
    assert np.array_equal(picture[~hidden & ~edge], shown(dark(), tmp_path)[~hidden & ~edge])


def test_overlays_are_shown_of_compressed_films_and_in_every_byte_order(tmp_path: Path) -> None:
    rle, beside = films.compressed(dark(embedded()), RLELossless), films.compressed(dark(plane()), JPEG2000Lossless)
    lost = films.compressed(dark(embedded()), JPEG2000Lossless)

    assert np.array_equal(shown(rle, tmp_path) == 255, MARK)
    assert np.array_equal(shown(beside, tmp_path) == 255, MARK)
    assert activated(state_of(lost, tmp_path)) == {0x6000: ""}

    path, converted = films.saved(tmp_path, dark(plane(), rectangle())), tmp_path / "converted.dcm"
    expected = decoded.picture_of(path)
    assert np.array_equal(expected == 255, MARK)
    for option in ("+ti", "+tb"):  # implicit, big endian
        subprocess.run([require("dcmconv"), option, path, converted], check=True, timeout=60)
        assert np.array_equal(decoded.picture_of(converted), expected)


@pytest.mark.parametrize("name", [*BROKEN, *BROKEN_SHUTTERS])
def test_a_broken_overlay_or_shutter_is_left_out_and_costs_nothing(name: str, tmp_path: Path) -> None:
    film = dark({**BROKEN, **BROKEN_SHUTTERS}[name])

    state, picture = state_of(film, tmp_path), shown(film, tmp_path)

    assert activated(state) == ({0x6000: ""} if name in BROKEN else {})
    assert {str(layer.GraphicLayer) for layer in state.GraphicLayerSequence} <= AI_LAYERS
    assert [element.keyword for element in state if "Shutter" in element.keyword] == []
    assert np.array_equal(picture, shown(dark(), tmp_path))
    assert validators.dciodvfy(state) == []


MARKED: Final = (plane(), rectangle(ShutterUpperHorizontalEdge=15))


def test_every_picture_of_the_node_shows_both(tmp_path: Path) -> None:
    path = films.saved(tmp_path, dark(*MARKED))
    known = sources(path)
    [source], of = known.values(), report(*map(answer_of, known.values()))
    film = of.films[0]

    picture = source.picture()
    assert picture is not None
    [capture] = samples.datasets(secondary_capture.write, of, known, BERLIN)
    page = Pictures().draw(films.keep(Spool(tmp_path / "node"), dark(*MARKED)).instance)

    assert np.array_equal(capture.pixel_array, np.asarray(overlay.draw(picture, film, made=wording.made_by(of))))
    assert np.array_equal(np.asarray(Image.open(BytesIO(page.png))), picture)
    in_another_window = decoding.stored_picture(path).shown(is_inverted=True)
    for each in (picture, in_another_window):
        assert (each[MARK] == 255).all()
        assert (each[:14][~MARK[:14]] == 0).all()
    assert picture[30:70, 20:50].max() > 0
    assert in_another_window[30:70, 20:50].min() > 100


def test_the_network_sees_the_film_alone(tmp_path: Path) -> None:
    inputs = []
    for orientation in (["R", "F"], ["F", "R"]):
        turned = films.changed(dark(*MARKED), {"PatientOrientation": orientation})
        assert np.array_equal(shown(turned, tmp_path), shown(dark(*MARKED), tmp_path)), "overlays keep to stored pixels"
    for film in (dark(*MARKED), dark(), dark(embedded())):
        dataset = films.saved(tmp_path, film)
        inputs.append(decoding.load(dataset, gray="voi", square=lambda columns, rows: (0, 0, columns, rows)).gray)
        inputs.append(decoding.stored_picture(dataset).film().astype(np.float32))

    assert np.array_equal(inputs[0], inputs[2])
    assert np.array_equal(inputs[0], inputs[4])
    assert np.array_equal(inputs[1], inputs[3])  # what `node corrections` exports for training


def test_states_of_an_answer_and_of_a_film_that_cannot_be_decoded_show_both(tmp_path: Path) -> None:
    [(uid, source)] = sources(films.saved(tmp_path, dark(*MARKED))).items()
    question, of = replace(asked(boxes=()), film=uid), report(answer_of(source))

    [answer] = answers.write_objects(question, of, source, zone=BERLIN, kinds=["gsps"])
    [undecoded] = samples.datasets(gsps.write, of, {uid: Source(header=source.header)}, BERLIN)

    for state in (answer.dataset, undecoded):
        assert list(activated(state).values()) == [gsps.OVERLAYS]
        assert state.ShutterShape == "RECTANGULAR"
    states = [state_of(film, tmp_path) for film in (dark(), dark(plane()), dark(*MARKED))]
    assert len({str(state.SOPInstanceUID) for state in states}) == 3, "another overlay makes another state"


# A picture without a header: what has colors, or cannot be told from a film in gray, is refused in words.

GRAY: Final = np.round(np.hypot(*np.mgrid[-1:1:120j, -1:1:100j]) * 150 + 20).astype(np.uint8)


def as_picture(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    content = BytesIO()
    image.save(content, kind, **options)
    return content.getvalue()


def gray(mode: str = "L") -> Image.Image:
    return Image.fromarray(GRAY).convert(mode)


def false_colors(name: int) -> Image.Image:
    return Image.fromarray(cv2.applyColorMap(GRAY, name)[..., ::-1])


def with_red_mark() -> Image.Image:
    marked = gray("RGB")
    marked.paste((255, 0, 0), (12, 12, 15, 15))
    return marked


def screenshot() -> Image.Image:
    """Return a film in the window of a program: a bluish bar above it, everything else gray."""
    window = Image.new("RGB", (160, 160), (40, 40, 40))
    window.paste((44, 62, 88), (0, 0, 160, 10))
    window.paste(gray("RGB"), (30, 25))
    return window


def noisy(sigma: float) -> Image.Image:
    noise = np.random.default_rng(1).normal(0, sigma, (*GRAY.shape, 3))
    return Image.fromarray(np.clip(GRAY[..., np.newaxis] + noise, 0, 255).astype(np.uint8))


def gray_palette() -> Image.Image:
    """Return a gray picture as places in a palette, whose order is not that of the gray values."""
    image = Image.fromarray(255 - GRAY).convert("P")
    image.putpalette([255 - place // 3 for place in range(768)])
    return image


def partly_transparent() -> Image.Image:
    image = gray()
    image.putalpha(Image.fromarray(np.where(GRAY > 30, 255, 0).astype(np.uint8)))
    return image


COLORS, TRANSPARENT, UNREADABLE = "the picture has colors", "transparent", "not a readable picture"
REFUSED: dict[str, tuple[bytes, str]] = {
    "false colors": (as_picture(false_colors(cv2.COLORMAP_JET)), COLORS),
    "the palest false colors as JPEG": (as_picture(false_colors(cv2.COLORMAP_BONE), "JPEG", quality=30), COLORS),
    "colors below an opaque alpha channel": (as_picture(false_colors(cv2.COLORMAP_HOT).convert("RGBA")), COLORS),
    "a small red mark": (as_picture(with_red_mark()), COLORS),
    "a screenshot as JPEG": (as_picture(screenshot(), "JPEG", quality=50), COLORS),
    "transparent gray": (as_picture(partly_transparent()), TRANSPARENT),
    "a palette with a transparent place": (as_picture(gray_palette(), transparency=40), TRANSPARENT),
    "an animated PNG": (as_picture(gray(), save_all=True, append_images=[Image.new("L", (100, 120))]), "several"),
    "12 bits in 16": (as_picture(Image.fromarray(GRAY.astype(np.uint16) * 16)), "16 bits"),
}
TURNED: Final = Image.Exif()
TURNED[0x0112] = 6
READ: dict[str, tuple[bytes, int]] = {
    "gray": (as_picture(gray()), 0),
    "equal channels as JPEG": (as_picture(gray("RGB"), "JPEG", quality=95), 4),
    "a gray palette": (as_picture(gray_palette()), 0),
    "an opaque alpha channel": (as_picture(gray("LA")), 0),
    "turned by a camera": (as_picture(gray().transpose(Image.Transpose.ROTATE_90), "JPEG", exif=TURNED, quality=95), 4),
    "noise as JPEG of full chroma": (as_picture(noisy(3), "JPEG", quality=95, subsampling=0), 20),
    "noise as JPEG": (as_picture(noisy(4), "JPEG", quality=75), 24),
    "a faint tint": (as_picture(Image.merge("RGB", (gray().point(lambda v: v + 8), gray(), gray()))), 4),
    "16 bits": (as_picture(Image.fromarray(GRAY.astype(np.uint16) * 257)), 0),
}
"""Bytes of a picture, and how far its gray values may lie from `GRAY`."""


def named(folder: Path, content: bytes) -> Path:
    path = folder / "film.png"
    path.write_bytes(content)
    return path


def ask_about(path: Path) -> list[FilmAnswer]:
    return open_film.ask(path, [Question(prompt="Edema")], reader=ScriptedReader(), prompts=prompts.load("chexpert14"))


@pytest.mark.parametrize(("content", "reason"), REFUSED.values(), ids=REFUSED)
def test_a_picture_that_is_no_film_in_gray_is_refused_in_words(content: bytes, reason: str, tmp_path: Path) -> None:
    path = named(tmp_path, content)

    for refuse in (ask_about, open_film.check, lambda path: open_film.load(path, ScriptedReader())):
        with pytest.raises(InputError, match=reason) as refused:
            refuse(path)
        assert "header" not in str(refused.value)


@pytest.mark.parametrize(("content", "tolerance"), READ.values(), ids=READ)
def test_a_gray_picture_is_read_upright_however_it_is_stored(content: bytes, tolerance: int, tmp_path: Path) -> None:
    path = named(tmp_path, content)

    found = decoder_child.read_picture(path).astype(int)

    assert np.abs(found - GRAY).max() <= tolerance
    assert ask_about(path)
