"""The films of a run, made once and mapped into memory: bytes in `.npy` files, what is true of them in `.jsonl` files.

A shelf of films is written aside and renamed, its lines last, so a shelf with lines is whole and a run that was stopped
goes on with the next one. The name of a shelf says what is in it, the program that draws phantoms included.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import cv2
import numpy as np
from numpy.typing import NDArray

from models import phantoms
from models.phantoms.picture import phantom
from models.progress import Report
from models.training.catalog import Catalog
from models.training.films import Film, read_films
from models.training.runfile import Data, Films
from models.training.truths import Line, Truth, line_of, truth_of

_SHELF = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Shelf:
    """Some films. pixels: [film, side, side], on disk; lines: one to a film; repeat: how often an epoch has them."""

    pixels: NDArray[np.uint8]
    lines: tuple[str, ...]
    repeat: int


class Library:
    """All films of a run, by number."""

    def __init__(self, shelves: Sequence[Shelf], catalog: Catalog) -> None:
        self._shelves = tuple(shelves)
        self._catalog = catalog
        self._index = [
            (shelf, place) for shelf in self._shelves for _ in range(shelf.repeat) for place in range(len(shelf.lines))
        ]

    def __len__(self) -> int:
        return len(self._index)

    def film(self, number: int) -> tuple[NDArray[np.uint8], Truth]:
        """Give the pixels [side, side] of a film, not to be written to, and what is true of it."""
        shelf, place = self._index[number]
        return shelf.pixels[place], truth_of(cast("Line", json.loads(shelf.lines[place])), self._catalog)

    def texts(self) -> set[str]:
        """Collect every sentence that any film's report has."""
        return {one["text"] for shelf in self._shelves for line in shelf.lines for one in _line(line).get("said", [])}


def stock(data: Data, folder: Path, *, renderers: int, report: Report) -> None:
    """Make what is not there yet. Raises ModelError where real films are not as expected."""
    folder.mkdir(parents=True, exist_ok=True)
    for films in data.films:
        path = folder / _films_name(films, data.side)
        if not path.with_suffix(".jsonl").exists():
            _write(path, read_films(films, side=data.side))
    program = _program()
    shelves = [(folder / _phantoms_name(program, seeds, data.side), seeds) for seeds in _shelves(data)]
    wanted = [(path, seeds) for path, seeds in shelves if not path.with_suffix(".jsonl").exists()]
    if not wanted:
        return
    if renderers == 1:
        for done, (path, seeds) in enumerate(wanted, 1):
            _render(path, seeds, data.side)
            report("render", done, len(wanted))
        return
    with ProcessPoolExecutor(max_workers=renderers, mp_context=multiprocessing.get_context("spawn")) as pool:
        makings = [pool.submit(_render, path, seeds, data.side) for path, seeds in wanted]
        for done, making in enumerate(as_completed(makings), 1):
            making.result()
            report("render", done, len(makings))


def open_library(data: Data, folder: Path, catalog: Catalog) -> Library:
    """Open what `stock` made."""
    program = _program()
    shelves = [(_phantoms_name(program, seeds, data.side), 1) for seeds in _shelves(data)]
    shelves += [(_films_name(films, data.side), films.repeat) for films in data.films]
    return Library([_open(folder / name, repeat=repeat) for name, repeat in shelves], catalog)


def _open(path: Path, *, repeat: int) -> Shelf:
    lines = tuple(path.with_suffix(".jsonl").read_text(encoding="utf-8").splitlines())
    return Shelf(pixels=np.load(path.with_suffix(".npy"), mmap_mode="r"), lines=lines, repeat=repeat)


def _shelves(data: Data) -> list[range]:
    """Cut the seeds into shelves that begin at the same seeds in every run, so that runs may share them."""
    end = data.first_seed + data.phantoms
    starts = range(data.first_seed - data.first_seed % _SHELF, end, _SHELF)
    return [range(max(start, data.first_seed), min(start + _SHELF, end)) for start in starts]


def _render(path: Path, seeds: range, side: int) -> None:
    cv2.setNumThreads(1)
    films = (phantom(seed, side=side) for seed in seeds)
    _write(path, (Film(pixels=film.pixels, line=line_of(film)) for film in films))


def _write(path: Path, films: Iterable[Film]) -> None:
    """Write a shelf, its lines last."""
    kept = list(films)
    aside = path.with_suffix(".part")
    with aside.open("wb") as file:
        np.save(file, np.stack([film.pixels for film in kept]))
    aside.replace(path.with_suffix(".npy"))
    aside.write_text("".join(json.dumps(film.line) + "\n" for film in kept), encoding="utf-8")
    aside.replace(path.with_suffix(".jsonl"))


def _phantoms_name(program: str, seeds: range, side: int) -> Path:
    return Path(f"phantoms-{program}-{side}-{seeds.start:07}-{len(seeds)}")


def _films_name(films: Films, side: int) -> Path:
    told = hashlib.sha256(f"{films.file} {films.held_out}".encode() + Path(films.file).read_bytes())
    return Path(f"films-{told.hexdigest()[:12]}-{side}")


def _program() -> str:
    """Tell one version of the program that draws phantoms from another."""
    sources = sorted(Path(phantoms.__path__[0]).rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]


def _line(text: str) -> Line:
    return cast("Line", json.loads(text))
