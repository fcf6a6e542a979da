"""Boxes are found in pictures of a viewer, and a box that is off, broken or gone is told from one at its place."""

from __future__ import annotations

import base64
import hashlib
import tarfile
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from models.contract import Box
from tests.drills.conformance import packages, pictures
from tests.drills.conformance.packages import Package
from tests.drills.conformance.pictures import Mask, Picture
from tests.support import films

pytestmark = pytest.mark.drill(part="conformance")

WHERE = Box(left=100, top=80, right=220, bottom=190)
WIDTH = 400.0


def lines(box: Box = WHERE, *, clutter: bool = False) -> Mask:
    """The lines of a box; clutter: with a label and another box that crosses it."""
    image = Image.new("1", (500, 400))
    draw = ImageDraw.Draw(image)
    draw.rectangle(box.edges, outline=1)
    if clutter:
        draw.text((112, 84), "Right pleural effusion 83 %", fill=1)
        draw.rectangle((130, 90, 300, 300), outline=1)
    return np.asarray(image, dtype=bool)


@pytest.mark.parametrize("clutter", [False, True])
def test_a_box_is_found_where_it_belongs(clutter: bool) -> None:
    outline = pictures.find(lines(clutter=clutter), WHERE, width=WIDTH)

    assert outline.deviation is not None
    assert outline.deviation < 0.004
    assert outline.covered > 0.98


@pytest.mark.parametrize("off", [-12, 12])
def test_a_box_off_its_place_is_measured(off: int) -> None:
    moved = Box(left=WHERE.left + off, top=WHERE.top, right=WHERE.right + off, bottom=WHERE.bottom)

    outline = pictures.find(lines(moved), WHERE, width=WIDTH)

    assert outline.deviation == pytest.approx(12 / WIDTH, abs=0.004)


def test_a_box_that_is_not_there_is_not_found() -> None:
    elsewhere = Box(left=WHERE.left + 60, top=WHERE.top + 60, right=WHERE.right + 60, bottom=WHERE.bottom + 60)

    assert pictures.find(lines(elsewhere), WHERE, width=WIDTH).deviation is None
    assert pictures.find(np.zeros((400, 500), dtype=bool), WHERE, width=WIDTH).deviation is None


def test_dashes_are_told_from_a_solid_line() -> None:
    image = Image.new("1", (500, 400))
    draw = ImageDraw.Draw(image)
    left, top, right, bottom = map(int, WHERE.edges)
    for x in range(left, right, 12):
        draw.line((x, top, x + 7, top), fill=1)
        draw.line((x, bottom, x + 7, bottom), fill=1)
    for y in range(top, bottom, 12):
        draw.line((left, y, left, y + 7), fill=1)
        draw.line((right, y, right, y + 7), fill=1)

    outline = pictures.find(np.asarray(image, dtype=bool), WHERE, width=WIDTH)

    assert outline.deviation is not None
    assert 0.5 < outline.covered < 0.8


def shown(pixels: Picture, *, size: tuple[int, int], corner: tuple[int, int]) -> Picture:
    """A viewer with a film in it, scaled and shifted, with letters of its own beside it."""
    screen = Image.new("L", (600, 500))
    screen.paste(Image.fromarray(pixels).resize(size), corner)
    ImageDraw.Draw(screen).text((5, 5), "W: 4095 L: 2047", fill=255)
    return np.asarray(screen.convert("RGB"))


def test_the_calibration_film_tells_where_a_film_lies() -> None:
    film = films.thumbnail()
    pixels = (pictures.calibration(film).pixel_array // 16).astype(np.uint8)

    placing = pictures.locate(shown(pixels, size=(462, 490), corner=(60, 4)), film)

    assert placing.to_screen(Box(left=0, top=0, right=film.Columns, bottom=film.Rows)).edges == pytest.approx(
        (60, 4, 522, 494), abs=2.5
    )
    assert placing.width == pytest.approx(462, abs=3)


def test_a_viewer_that_turns_films_is_noticed() -> None:
    film = films.thumbnail()
    pixels = (pictures.calibration(film).pixel_array // 16).astype(np.uint8)

    with pytest.raises(AssertionError, match="turns or mirrors"):
        pictures.locate(shown(pixels[:, ::-1], size=(462, 490), corner=(60, 4)), film)


@pytest.mark.parametrize(("ground", "least", "most"), [(30, 12, 21), (236, 1.0, 1.3)])
def test_white_letters_stand_out_on_dark_ground_alone(ground: int, least: float, most: float) -> None:
    bare = Image.new("RGB", (300, 100), (ground,) * 3)
    labeled = bare.copy()
    draw = ImageDraw.Draw(labeled)
    draw.text((20, 40), "Right pleural effusion 83 %", fill=(255,) * 3)
    draw.line((0, 45, 300, 45), fill=(90,) * 3)  # a box that crosses the label

    where = Box(left=15, top=35, right=200, bottom=60)
    contrast = pictures.contrast(np.asarray(labeled), np.asarray(bare), where)

    assert least < contrast < most
    assert pictures.contrast(np.asarray(bare), np.asarray(bare), where) == 1.0


def test_a_package_with_another_hash_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "FOLDER", tmp_path / "npm")
    archive = tmp_path / "viewer.tgz"
    with tarfile.open(archive, "w:gz") as content:
        content.addfile(tarfile.TarInfo("package/viewer.js"), BytesIO())
    right = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    (tmp_path / "npm").mkdir()

    with pytest.raises(ValueError, match="not the one that was expected"):
        packages.unpack(archive, Package(name="@a/viewer", version="1", sha512="A" * 88))
    packages.unpack(archive, Package(name="@a/viewer", version="1", sha512=right))

    assert [path.name for path in (tmp_path / "npm").rglob("*.js")] == ["viewer.js"]
    assert (tmp_path / "npm" / "a-viewer-1" / "viewer.js").exists()
