"""The films that a view head learns from, one after another, each turned, mirrored and augmented at random."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from models.contract import View
from models.lab.phantoms import OTHER_KINDS, other_film, phantom
from models.lab.training.augment import vary
from models.lab.training.films import find_films, read_films
from models.lab.training.random_streams import stream
from models.lab.training.runfile import FilmSource
from models.lab.training.split import part_of
from models.lab.training.view_run import ViewRun

Pixels = NDArray[np.uint8]
FloatArray = NDArray[np.float32]

_PARTS: Final = 1000
_BOTH_WAYS: Final = (False, True)
"""A phantom's frontal film is shown as it is and mirrored: which of both it is, is what is hardest to tell."""
_MIRRORED, _ROTATED = 0.45, 0.2
_CORNER: Final = (0.3, 0.45)
"""The side of a corner that is shown alone, as a share of the film's: too little of a chest to be read."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ViewFilm:
    """A film with what is true of it; None is unknown, or means nothing for such a film.

    gray: [size, size] in 0..1; views: one of them is shown
    is_real: whether it is a whole film of a person; calibrates: whether it is for temperature and thresholds
    """

    gray: FloatArray
    views: tuple[View, ...]
    mirrored: bool | None
    rotated: bool | None
    is_real: bool
    calibrates: bool


def view_films(run: ViewRun, *, size: int) -> Iterator[ViewFilm]:
    """Yield all films of a run, size: of the network's input. Raises ModelError if a picture cannot be read."""
    for number, source in enumerate(run.data.films):
        yield from _real(run, source, number, size=size)
    others = [kind for kind in OTHER_KINDS if kind != "lateral"]
    for seed in range(run.data.first_seed, run.data.first_seed + run.data.phantoms):
        rng = stream(run.seed, "view phantom", seed)
        calibrates = _calibrates(run, f"phantom {seed}")
        film = phantom(seed, size)
        views: tuple[View, ...] = ("AP",) if film.view == "AP" else ("PA",)
        for mirrored in _BOTH_WAYS:
            yield _frontal(
                run, film.pixels, views, rng, mirrored=mirrored, size=size, is_real=False, calibrates=calibrates
            )
        side, other = other_film(seed, "lateral", size), other_film(seed, others[rng.integers(len(others))], size)
        yield _of_other(run, side.pixels, "lateral", rng, size=size, calibrates=calibrates)
        yield _of_other(run, other.pixels, "not_chest", rng, size=size, calibrates=calibrates)


def count_films(run: ViewRun) -> int:
    """Return how many films `view_films` yields."""
    real = sum(len(find_films(source)) * source.repeat for source in run.data.films)
    return real + (len(_BOTH_WAYS) + 2) * run.data.phantoms


def lie(pixels: Pixels, *, mirrored: bool, turns: int) -> Pixels:
    """Mirror a film left to right, then turn it by quarters."""
    return np.ascontiguousarray(np.rot90(pixels[:, ::-1] if mirrored else pixels, turns))


def _real(run: ViewRun, source: FilmSource, number: int, *, size: int) -> Iterator[ViewFilm]:
    path = Path(source.file)
    for place, film in enumerate(read_films(path, find_films(source), side=size)):
        calibrates = _calibrates(run, film.patient)
        views: tuple[View, ...] = ("AP",) if film.view == "AP" else ("PA",) if film.view == "PA" else ("AP", "PA")
        for again in range(source.repeat):
            rng = stream(run.seed, "view film", number, place, again)
            if rng.random() < run.data.corners:
                corner = _corner(film.pixels, rng)
                yield _of_other(run, corner, "not_chest", rng, size=size, calibrates=calibrates)
            else:
                mirrored = bool(rng.random() < _MIRRORED)
                yield _frontal(
                    run, film.pixels, views, rng, mirrored=mirrored, size=size, is_real=True, calibrates=calibrates
                )


def _frontal(
    run: ViewRun,
    pixels: Pixels,
    views: tuple[View, ...],
    rng: np.random.Generator,
    *,
    mirrored: bool,
    size: int,
    is_real: bool,
    calibrates: bool,
) -> ViewFilm:
    turns = _turns(rng)
    return ViewFilm(
        gray=vary(lie(pixels, mirrored=mirrored, turns=turns), run.augmentation, rng, size=size),
        views=views,
        # Sides are lost on a film that lies on its side or head; that it is rotated is said anyway.
        mirrored=None if turns else mirrored,
        rotated=turns > 0,
        is_real=is_real,
        calibrates=calibrates,
    )


def _of_other(
    run: ViewRun, pixels: Pixels, view: View, rng: np.random.Generator, *, size: int, calibrates: bool
) -> ViewFilm:
    """Turn a film that is no frontal view; which side is which only a frontal view tells."""
    turns = _turns(rng)
    turned = lie(pixels, mirrored=bool(rng.random() < 0.5), turns=turns)
    return ViewFilm(
        gray=vary(turned, run.augmentation, rng, size=size),
        views=(view,),
        mirrored=None,
        rotated=turns > 0 if view == "lateral" else None,
        is_real=False,
        calibrates=calibrates,
    )


def _corner(pixels: Pixels, rng: np.random.Generator) -> Pixels:
    side = round(pixels.shape[0] * rng.uniform(*_CORNER))
    rows, columns = (slice(None, side) if rng.random() < 0.5 else slice(-side, None) for _ in range(2))
    return np.ascontiguousarray(pixels[rows, columns])


def _turns(rng: np.random.Generator) -> int:
    return int(rng.integers(1, 4)) if rng.random() < _ROTATED else 0


def _calibrates(run: ViewRun, name: str) -> bool:
    return part_of(f"view {name}", parts=_PARTS) < run.data.calibration * _PARTS
