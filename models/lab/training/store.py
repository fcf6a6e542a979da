"""The films of a run, rendered once: pixels in `.npy` files, labels in `.jsonl` files.

A shard is a pair of such files with up to 200 films. Its labels are written last, so a shard with labels is complete,
and a run that was stopped or killed makes only the missing shards. The name of a shard identifies its contents and the
version of the program that makes it. No process holds more than one film in memory.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from models.errors import ModelError
from models.files import replacing
from models.lab import phantoms
from models.lab.phantoms.picture import phantom
from models.lab.training.catalog import Catalog
from models.lab.training.films import Places, TrainingFilm, digest_of, find_films, read_films
from models.lab.training.labels import FilmLabels, Line, labels_of, line_of
from models.lab.training.runfile import Data, FilmSource
from models.lab.training.workers import Job, Stopped, do_all
from models.progress import ProgressReport

_SHELF = 200
_VERSION = 5
"""The version of the code that makes shards of real films. A new version makes new shards under other names."""
_LOCK = "lock"
_Maker = tuple[Path, Job]
"""The path of a shard's files, without their suffixes, and the job that makes the shard."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shard:
    """Some films on disk.

    path: path of both files without suffixes
    starts: [film + 1], the offset in bytes of each film's line, and of the end; repeat: how often an epoch uses it
    """

    path: Path
    starts: NDArray[np.int64]
    repeat: int

    def __len__(self) -> int:
        return len(self.starts) - 1

    def pixels(self, place: int) -> NDArray[np.uint8]:
        """Read the pixels [side, side] of a film."""
        return np.array(np.load(self.path.with_suffix(".npy"), mmap_mode="r")[place])

    def line(self, place: int) -> Line:
        """Read the labels of a film."""
        begin, end = self.starts[place : place + 2].tolist()
        with self.path.with_suffix(".jsonl").open("rb") as file:
            file.seek(begin)
            return cast("Line", json.loads(file.read(end - begin)))


class FilmStore:
    """All films of a run, by number."""

    def __init__(self, shards: Sequence[Shard], catalog: Catalog) -> None:
        self._shards = tuple(shards)
        self._order = tuple(shard for shard in shards for _ in range(shard.repeat))
        self._ends = np.cumsum([len(shard) for shard in self._order])
        self._catalog = catalog

    def __len__(self) -> int:
        return int(self._ends[-1])

    def film(self, number: int) -> tuple[NDArray[np.uint8], FilmLabels]:
        """Return the pixels [side, side] of a film and its labels."""
        which = int(np.searchsorted(self._ends, number, side="right"))
        shard = self._order[which]
        place = number - (int(self._ends[which]) - len(shard))
        return shard.pixels(place), labels_of(shard.line(place), self._catalog)

    def texts(self) -> set[str]:
        """Collect all sentences of all reports."""
        return {sentence["text"] for line in self.lines() for sentence in line.get("said", [])}

    def lines(self) -> Iterator[Line]:
        """Read the labels of all films."""
        return (shard.line(place) for shard in self._shards for place in range(len(shard)))


def stock(
    data: Data, folder: Path, *, renderers: int, report: ProgressReport, stopped: Stopped = lambda: False
) -> bool:
    """Make the missing films in this many processes. Returns False if the run was stopped before the end.

    Raises ModelError if a file of real films has mistakes or another run makes films in the folder, OSError if a file
    cannot be written or a process ends unexpectedly.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK).open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ModelError(f"another run makes films in {folder}; run the command again when it has them") from error
        makers = [maker for films in data.films for maker in _film_makers(films, folder, data=data, report=report)]
        makers += _phantom_makers(data, folder)
        jobs = [make for path, make in makers if not path.with_suffix(".jsonl").exists()]
        return do_all(
            jobs, workers=renderers, stopped=stopped, finished=lambda done: report("make films", done, len(jobs))
        )


def open_film_store(data: Data, folder: Path, catalog: Catalog) -> FilmStore:
    """Open a store that `stock` made. Raises ModelError if a shard is damaged."""
    shards = [_open(path, side=data.side, repeat=1) for path, _ in _phantom_makers(data, folder)]
    indices = [_index(films, folder) for films in data.films]
    sources = [np.load(index) for index in indices]
    most = max([data.phantoms, *map(len, sources)])
    for films, index, places in zip(data.films, indices, sources, strict=True):
        repeat = round(films.repeat * most / len(places)) if films.balanced else films.repeat
        shards += [_open(path, side=data.side, repeat=repeat) for path, _ in _cut(index, places, data=data)]
    return FilmStore(shards, catalog)


def _film_makers(films: FilmSource, folder: Path, *, data: Data, report: ProgressReport) -> Iterator[_Maker]:
    """Yield the shards of real films and the jobs that make them; their file is checked once."""
    index = _index(films, folder)
    if not index.exists():
        report(f"checking the lines of {films.file}")
        places = find_films(films)
        with replacing(index) as file:
            np.save(file, places)
    for path, places in _cut(index, np.load(index), data=data):
        read = partial(read_films, Path(films.file), places, side=data.side, jpeg=data.jpeg)
        yield path, partial(_write, path, read, count=len(places), side=data.side)


def _index(films: FilmSource, folder: Path) -> Path:
    """Return the path of the file with the positions of the lines in a file of films."""
    return folder / f"films-{digest_of(films, version=_VERSION)}.places"


def _cut(index: Path, places: Places, *, data: Data) -> Iterator[tuple[Path, Places]]:
    """Divide the films of a file into shards."""
    for start in range(0, len(places), _SHELF):
        own = places[start : start + _SHELF]
        exact = "" if data.jpeg else "-exact"
        yield index.with_name(f"{index.stem}-{data.side}{exact}-{start:07}-{len(own)}"), own


def _phantom_makers(data: Data, folder: Path) -> Iterator[_Maker]:
    """Yield the shards of phantoms; they begin at the same seeds in every run, so that runs can share them."""
    program = _program()
    end = data.first_seed + data.phantoms
    for start in range(data.first_seed - data.first_seed % _SHELF, end, _SHELF):
        seeds = range(max(start, data.first_seed), min(start + _SHELF, end))
        path = folder / f"phantoms-{program}-{data.side}-{seeds.start:07}-{len(seeds)}"
        yield path, partial(_write, path, partial(_phantoms, seeds, data.side), count=len(seeds), side=data.side)


def _phantoms(seeds: range, side: int) -> Iterator[TrainingFilm]:
    for film in (phantom(seed, side=side) for seed in seeds):
        yield TrainingFilm(pixels=film.pixels, line=line_of(film))


def _write(path: Path, films: Callable[[], Iterator[TrainingFilm]], *, count: int, side: int) -> None:
    """Write a shard film by film; its labels get their final name last."""
    with replacing(path.with_suffix(".jsonl")) as lines, replacing(path.with_suffix(".npy")) as pixels:
        header = {"descr": "|u1", "fortran_order": False, "shape": (count, side, side)}
        np.lib.format.write_array_header_1_0(pixels, header)
        for film in films():
            pixels.write(film.pixels.tobytes())
            lines.write(f"{json.dumps(film.line)}\n".encode())


def _open(path: Path, *, side: int, repeat: int) -> Shard:
    """Open a shard. Raises ModelError if it is incomplete or damaged."""
    lines, pixels = path.with_suffix(".jsonl"), path.with_suffix(".npy")
    try:
        with lines.open("rb") as file:
            starts = np.cumsum([0, *map(len, file)])
        stored = np.load(pixels, mmap_mode="r")
    except (OSError, ValueError, EOFError) as error:
        raise ModelError(
            f"{pixels} cannot be read ({error}); delete {lines} and run the command again to make it again"
        ) from error
    if stored.shape != (len(starts) - 1, side, side):
        raise ModelError(
            f"{pixels} and {lines} do not belong together; delete both and run the command again to make them again"
        )
    return Shard(path=path, starts=starts, repeat=repeat)


def _program() -> str:
    """Hash the source of the program that draws phantoms."""
    sources = sorted(Path(phantoms.__path__[0]).rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]
