"""The short form of `make encodings`: one film of each encoder, as it is written and in one other wrapping."""

from __future__ import annotations

from itertools import groupby

import pytest
from pydicom.dataset import Dataset
from pydicom.uid import RLELossless

from tests.drills import encodings
from tests.drills.encodings import Case, Encoder
from tests.support import films

MAKERS = {maker: list(group) for maker, group in groupby(encodings.encoders(), lambda encoder: encoder.name.split()[0])}


@pytest.mark.parametrize("maker", MAKERS)
def test_good_films_of_every_encoder_are_read(maker: str) -> None:
    chosen: list[Encoder] = MAKERS[maker]
    made = [encodings.source(bits, *size) for bits in (8, 12, 16) for size in encodings.SIZES[1:]]
    possible = ([film for film in made if film.BitsStored in encoder.bits] for encoder in chosen)

    tally = encodings.run(
        [
            Case(encoder, some[turn % len(some)], turn)
            for turn, (encoder, some) in enumerate(zip(chosen, possible, strict=True))
        ]
    )

    assert tally.faults == {}
    outcomes = {name for name in tally.counts if name.startswith(("read: ", "not made: "))}
    assert outcomes == {f"read: {encoder.name}" for encoder in chosen}


def test_a_film_that_is_read_with_other_pixels_is_a_fault() -> None:
    tally = encodings.run([Case(Encoder(name="upside down", bits=range(12, 13), encode=upside_down), films.ramp(), 0)])

    assert not tally.passed
    assert list(tally.faults.values()) == ["other pixels, by up to 4032"] * 2


def upside_down(film: Dataset) -> Dataset:
    return films.compressed(films.with_pixels(film, film.pixel_array[::-1], bits=12), RLELossless)
