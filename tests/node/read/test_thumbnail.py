"""The thumbnail that a reading makes is that of the film as displayed, whoever asks for it later."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from pydicom.dataset import Dataset

from node.read.thumbnail import Thumbnail, of_picture
from node.rounds.films import Thumbnails
from tests.support import films
from tests.support.decoded import load, stored_picture

SMALL = Thumbnail(gray=np.zeros((2, 2), np.uint8), step=1)


def without_window() -> Dataset:
    film = films.rg1()
    for keyword in ("WindowCenter", "WindowWidth", "VOILUTSequence"):
        if keyword in film:
            delattr(film, keyword)
    return film


def with_graphics() -> Dataset:
    film = films.thumbnail()
    rows, columns = film.Rows, film.Columns
    film.ShutterShape, film.ShutterPresentationValue = "RECTANGULAR", 0
    film.ShutterLeftVerticalEdge, film.ShutterRightVerticalEdge = 5, columns - 5
    film.ShutterUpperHorizontalEdge, film.ShutterLowerHorizontalEdge = 5, rows - 5
    bits = np.zeros((rows, columns), np.uint8)
    bits[rows // 2 :] = 1
    packed = np.packbits(bits, bitorder="little").tobytes()
    for element, vr, value in (
        *((0x10, "US", rows), (0x11, "US", columns), (0x40, "CS", "G"), (0x50, "SS", [1, 1])),
        *((0x100, "US", 1), (0x102, "US", 0), (0x3000, "OW", packed + b"\0" * (len(packed) % 2))),
    ):
        film.add_new((0x6000, element), vr, value)
    return film


@pytest.mark.parametrize(
    "film", [films.rg1, films.thumbnail, without_window, with_graphics], ids=lambda film: film.__name__
)
def test_a_reading_makes_the_thumbnail_of_the_film_as_displayed(film: Callable[[], Dataset]) -> None:
    stored = stored_picture(film())

    read = load(film(), gray="voi", square=lambda columns, rows: (0.0, 0.0, columns, rows)).thumbnail

    again, shown = stored.thumbnail(), of_picture(stored.shown())
    assert read is not None
    assert (read.step, read.stretch) == (again.step, again.stretch) == (shown.step, stored.stretch)
    assert np.array_equal(read.gray, again.gray)
    assert np.array_equal(read.gray, shown.gray)


def test_the_thumbnail_of_a_long_strip_is_small() -> None:
    strip = np.zeros((511, 65_535), np.uint8)

    assert of_picture(strip).gray.size < 2**21


def test_a_kept_thumbnail_is_taken_once() -> None:
    kept = Thumbnails()
    kept.keep(Path("a"), SMALL)

    assert kept.take(Path("a")) is SMALL
    assert kept.take(Path("a")) is None


def test_of_many_thumbnails_the_oldest_are_dropped() -> None:
    kept = Thumbnails()

    for number in range(1000):
        kept.keep(Path(str(number)), SMALL)

    assert kept.take(Path("0")) is None
    assert kept.take(Path("999")) is SMALL
