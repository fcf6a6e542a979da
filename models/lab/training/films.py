"""Real films for training: a file with one JSON object a line, one film each, beside the pictures that the lines name.

`models.lab.film_lines` describes a line. It may hold `truth` instead of labels, in the form that `labels` stores: it is
used as it stands. A label, class or region that no catalog knows is refused before the first picture is read; what a
catalog knows and no training can use is counted in the stored film (`unused`).

At most one line and one picture are in memory at a time.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, cast

import cv2
import numpy as np
from numpy.typing import NDArray

from models.checkpoint.files import file_sha256
from models.errors import ModelError
from models.lab.film_lines import (
    FilmLine,
    SentenceLine,
    in_square,
    is_whole,
    labels_of_line,
    meaning_of,
    patient_of,
    read_line,
)
from models.lab.phantoms.truth import FINDINGS
from models.lab.training.labels import Line, SaidLine
from models.lab.training.runfile import FilmSource
from models.lab.training.split import HeldOut, read_held_out

Places = NDArray[np.int64]
"""The positions of films in a file: [film, 2], the number of the line, from 1, and the offset of its first byte."""

_QUALITY = 90


class TrainingFilm(NamedTuple):
    """A film: its central square, bytes [side, side], its labels, its patient, and its view, "" if unknown."""

    pixels: NDArray[np.uint8]
    line: Line
    patient: str = ""
    view: str = ""


def digest_of(films: FilmSource, *, version: int) -> str:
    """Hash a set of films together with the version of the program that reads them. Raises ModelError."""
    held_out = _held_out(films)
    try:
        content = file_sha256(Path(films.file))
    except OSError as error:
        raise ModelError(f"{films.file} cannot be read ({error.strerror}); correct data.films.file") from error
    meant = f"{version} {films.file} {films.most} {held_out.share} {sorted(held_out.named)} {content}"
    return hashlib.sha256(meant.encode()).hexdigest()[:12]


def _held_out(films: FilmSource) -> HeldOut:
    return read_held_out(films.held_out) if films.held_out else HeldOut()


def find_films(films: FilmSource) -> Places:
    """Check every line of a file. Returns the positions of the films that training may use.

    Raises ModelError that names the line if it describes no film, or has a label that no catalog knows.
    """
    path = Path(films.file)
    held_out = _held_out(films)
    places, offset = array("q"), 0
    with path.open("rb") as file:
        for number, text in enumerate(file, 1):
            if text.strip() and patient_of(read_line(text, where=f"{path}, line {number}")) not in held_out:
                places.extend((number, offset))
            offset += len(text)
    if not places:
        raise ModelError(f"{path} holds no film that training may use; correct data.films, or remove this file from it")
    found = np.frombuffer(places, dtype=np.int64).reshape(-1, 2)
    if not 0 < films.most < len(found):
        return found
    return found[np.linspace(0, len(found) - 1, films.most).round().astype(np.int64)]


def read_films(path: Path, places: Places, *, side: int, jpeg: bool = True) -> Iterator[TrainingFilm]:
    """Read the films of a checked file one after another. Raises ModelError if a picture cannot be read.

    jpeg: encode each film as JPEG once, so that films of all sources have its artifacts
    """
    with path.open("rb") as file:
        for number, offset in places.tolist():
            file.seek(offset)
            film = cast("FilmLine", json.loads(file.readline()))
            picture = path.parent / film["file"]
            gray = cv2.imread(str(picture), cv2.IMREAD_GRAYSCALE)
            if gray is None:
                raise ModelError(
                    f"{path}, line {number}: {picture} cannot be read as a picture; restore it, or remove the line"
                )
            yield _cut(film, np.asarray(gray, dtype=np.uint8), side=side, jpeg=jpeg)


def _cut(film: FilmLine, gray: NDArray[np.uint8], *, side: int, jpeg: bool) -> TrainingFilm:
    """Cut out the central square of a film."""
    rows, columns = gray.shape
    short = min(rows, columns)
    left, top = (columns - short) // 2, (rows - short) // 2
    square = gray[top : top + short, left : left + short]
    exact = np.asarray(cv2.resize(square, (side, side), interpolation=cv2.INTER_AREA), dtype=np.uint8)
    pixels = _stored(exact) if jpeg else exact
    line = film.get("truth") or _line(film, np.array([left, top, left + short, top + short], dtype=np.float64))
    return TrainingFilm(pixels=pixels, line=line, patient=patient_of(film), view=film.get("view", ""))


def _stored(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Store a film as JPEG and read it again, so that films of all sources have gone the same way."""
    _, encoded = cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, _QUALITY])
    return np.asarray(cv2.imdecode(encoded, cv2.IMREAD_GRAYSCALE), dtype=np.uint8)


def _line(film: FilmLine, square: NDArray[np.float64]) -> Line:
    """Convert labels and boxes to the stored form; square: its edges in pixels of the film."""
    regions: dict[str, list[float]] = {}
    boxes: dict[str, list[list[float]]] = {}
    unused = Counter[str]()
    for box_line in film.get("boxes", []):
        box, (region, key) = in_square(box_line["xyxy"], square), meaning_of(box_line)
        if box is None:
            unused["boxes outside the central square"] += 1
        elif region is not None:
            regions[region] = box.tolist()
        elif key is not None:
            boxes.setdefault(key, []).append(box.tolist())
        else:
            unused[f"boxes of {box_line['label']}"] += 1
    line = labels_of_line(film, boxes=boxes, regions=regions)
    _add_regions(line, film, regions, unused)
    texts = [*film.get("sentences", []), *film.get("phrases", [])]
    if texts:
        line["said"] = [_said(sentence, square) for sentence in texts]
        given, kept = sum(len(text.get("boxes", [])) for text in texts), sum(len(own["boxes"]) for own in line["said"])
        unused["boxes of sentences outside the central square"] += given - kept
    if +unused:
        line["unused"] = dict(+unused)
    return line


def _add_regions(line: Line, film: FilmLine, regions: dict[str, list[float]], unused: Counter[str]) -> None:
    """Add the findings of regions; those of a region without a box cannot be used."""
    if "region_findings" not in film:
        return
    line["region_known"] = list(FINDINGS) if is_whole(film) else film["region_known"]
    line["region_present"] = {name: found for name, found in film["region_findings"].items() if name in regions}
    unused["findings of regions without a box"] += sum(
        len(found) for name, found in film["region_findings"].items() if name not in regions
    )


def _said(sentence: SentenceLine, square: NDArray[np.float64]) -> SaidLine:
    placed = (in_square(box, square) for box in sentence.get("boxes", []))
    return {
        "text": sentence["text"],
        "positive": sentence.get("positive", False),
        "findings": sentence.get("findings", []),
        "regions": sentence.get("regions", []),
        "boxes": [box.tolist() for box in placed if box is not None],
    }
