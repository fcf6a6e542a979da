"""Makes the lines of a data set in parallel processes, and goes on where it was stopped.

The films are cut into parts. A part's file gets its name when it is complete, and its name changes with the films, the
options and the program, so a second run makes only what is missing. No process holds more than one picture.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Generic, Literal, NamedTuple, TypeVar

from PIL import Image, UnidentifiedImageError

from models import lab
from models.errors import ModelError
from models.files import replacing
from models.lab.film_lines import FilmLine, read_line
from models.lab.training.workers import Job, Stopped, do_all
from models.progress import ProgressReport

Source = Literal["paper", "data set"]
SUMMARY = "summary.json"
_PARTS = "parts"
_FILMS = 200
"""The films of a part."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A published count. what: the name of our own count; source: the paper on ChEX, or the data set's description."""

    what: str
    count: int
    source: Source


def table(counts: Mapping[str, int], published: Sequence[Published]) -> list[dict[str, object]]:
    """Return a row for each count; those that are published and were not met have 0."""
    known = {figure.what: figure for figure in published}
    rows: list[dict[str, object]] = []
    for what in dict.fromkeys([*known, *sorted(counts)]):
        row: dict[str, object] = {"what": what, "count": counts.get(what, 0)}
        if what in known:
            row |= {"published": known[what].count, "by": known[what].source}
        rows.append(row)
    return rows


def text(rows: Sequence[Mapping[str, object]]) -> str:
    """Write the rows for a terminal; a count that differs from the published one is marked."""
    return "\n".join(_line(row) for row in rows)


def _line(row: Mapping[str, object]) -> str:
    line = f"{row['count']:>9}  {row['what']}"
    if "published" not in row:
        return line
    mark = "" if row["published"] == row["count"] else "  (differs)"
    return f"{line}; published by the {row['by']}: {row['published']}{mark}"


class Made(NamedTuple):
    """The result for a film: its line, None if it is left out, and counts for the summary."""

    line: FilmLine | None
    counts: Counter[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing(Generic[_T]):
    """The films of a data set.

    films: [file of lines, film], in the order of the lines; make: makes the line of a film in a folder of lines
    counts: counts from the tables; published: the counts that it should have
    """

    films: Sequence[tuple[str, _T]]
    make: Callable[[_T, Path], Made]
    counts: Mapping[str, int] = field(default_factory=dict)
    published: Sequence[Published] = ()


def prepare(
    listing: Listing[_T], out: Path, *, processes: int, report: ProgressReport, stopped: Stopped
) -> list[dict[str, object]] | None:
    """Make the missing parts, join them to OUT/<file>.jsonl, and write OUT/summary.json.

    Returns the rows of the summary, or None if it was stopped; then the parts that are complete stay.
    Raises ModelError if a film is missing or damaged, OSError if a file cannot be written.
    """
    parts = out / _PARTS
    parts.mkdir(parents=True, exist_ok=True)
    jobs = dict(_jobs(listing, parts, out))
    missing = [job for path, job in jobs.items() if not path.exists()]
    if not do_all(
        missing,
        workers=processes,
        stopped=stopped,
        finished=lambda done: report("prepare films", done, len(missing)),
    ):
        return None
    counts = Counter(listing.counts)
    for name, paths in groupby(jobs, key=lambda path: path.name.partition("-")[0]):
        with replacing(out / f"{name}.jsonl") as file:
            for path in paths:
                counted, lines = path.read_text(encoding="utf-8").split("\n", 1)
                counts.update(json.loads(counted))
                file.write(lines.encode())
    rows = table(counts, listing.published)
    with replacing(out / SUMMARY) as file:
        file.write(f"{json.dumps(rows, indent=2)}\n".encode())
    _remove_others(parts, jobs)
    return rows


def picture_size(path: Path) -> list[int]:
    """Return columns and rows of a picture by its header. Raises ModelError if it is missing or no picture."""
    try:
        with Image.open(path) as picture:
            return list(picture.size)
    except UnidentifiedImageError as error:
        raise ModelError(f"{path} is no picture that can be read; download it again") from error
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror or error}); download it again") from error


def relative(path: Path, folder: Path) -> str:
    """Return the path of a picture as a line in this folder names it."""
    return os.path.relpath(path.resolve(), folder.resolve())


def _jobs(listing: Listing[_T], parts: Path, out: Path) -> Iterator[tuple[Path, Job]]:
    program = _program()
    for name, group in groupby(listing.films, key=lambda film: film[0]):
        films = [film for _, film in group]
        for start in range(0, len(films), _FILMS):
            own = films[start : start + _FILMS]
            digest = hashlib.sha256(f"{program} {listing.make.__module__} {own!r}".encode()).hexdigest()[:16]
            path = parts / f"{name}-{start:07}-{digest}.jsonl"
            yield path, partial(_write, path, own, listing.make, out)


def _write(path: Path, films: Sequence[_T], make: Callable[[_T, Path], Made], out: Path) -> None:
    """Write a part: its counts, then its lines."""
    counts, lines = Counter[str](), list[str]()
    for film in films:
        made = make(film, out)
        counts.update(made.counts)
        if made.line is not None:
            text = json.dumps(made.line)
            read_line(text, where=f"{made.line['file']}")  # what is written can be read
            own = f"in {path.name.partition('-')[0]}.jsonl"
            counts.update([f"films {own}", *([f"films with a report {own}"] if "report" in made.line else [])])
            lines.append(text)
    with replacing(path) as file:
        file.write("".join(f"{line}\n" for line in (json.dumps(counts), *lines)).encode())


def _remove_others(parts: Path, jobs: Mapping[Path, Job]) -> None:
    """Remove parts of earlier versions of the data set, the options or the program, and files that have no part now."""
    names = {path.name.partition("-")[0] for path in jobs}
    for path in parts.iterdir():
        if path in jobs:
            continue
        if (name := path.name.partition("-")[0]) not in names:
            (parts.parent / f"{name}.jsonl").unlink(missing_ok=True)
        path.unlink()


def _program() -> str:
    """Hash the source of the readers, their rules, and the form of lines."""
    folder = Path(lab.__path__[0])
    sources = [
        folder / "film_lines.py",
        *sorted((folder / "datasets").glob("*.py")),
        *(folder / "datasets").glob("*.toml"),
    ]
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
