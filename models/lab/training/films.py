"""Real films for training: a file with one JSON object a line, one film each, beside the pictures that the lines name.

These keys of a line are used: `file`, a path relative to this file; `boxes`, a list of {label, xyxy} in pixels of that
picture; `nih_labels`, the labels of ChestX-ray14; `rsna`, a radiologist's reading (see `readings`); `patient`. A line
may hold `truth` instead, in the form that `labels` stores: it is used as it stands. A label, class or region that no
catalog knows is refused before the first picture is read.

At most one line and one picture are in memory at a time.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, NotRequired, TypedDict, cast

import cv2
import numpy as np
from numpy.typing import NDArray

from models import boxes as unit_boxes
from models.errors import ModelError
from models.lab.tasks.labels import UnknownLabel, class_of, region_of
from models.lab.training.labels import Line, check_line
from models.lab.training.readings import labels_of_line
from models.lab.training.runfile import FilmSource
from models.lab.training.split import HeldOut, read_held_out

Places = NDArray[np.int64]
"""The positions of films in a file: [film, 2], the number of the line, from 1, and the offset of its first byte."""

_BLOCK = 1 << 20
_QUALITY = 90


class _Box(TypedDict):
    label: str
    xyxy: list[float]


class _Film(TypedDict):
    file: str
    patient: NotRequired[str]
    view: NotRequired[str]
    boxes: NotRequired[list[_Box]]
    nih_labels: NotRequired[list[str]]
    rsna: NotRequired[str]
    truth: NotRequired[Line]


class TrainingFilm(NamedTuple):
    """A film: its central square, bytes [side, side], its labels, its patient, and its view, "" if unknown."""

    pixels: NDArray[np.uint8]
    line: Line
    patient: str = ""
    view: str = ""


def patient_of(film: Mapping[str, object]) -> str:
    """Return the patient of a line: its `patient`, else the beginning of the picture's name as in ChestX-ray14."""
    return str(film["patient"]) if "patient" in film else Path(str(film["file"])).stem.split("_")[0]


def digest_of(films: FilmSource, *, version: int) -> str:
    """Hash a set of films together with the version of the program that reads them. Raises ModelError."""
    held_out = _held_out(films)
    digest = hashlib.sha256(f"{version} {films.file} {films.most} {held_out.share} {sorted(held_out.named)}".encode())
    try:
        with Path(films.file).open("rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
    except OSError as error:
        raise ModelError(f"{films.file} cannot be read ({error.strerror}); correct data.films.file") from error
    return digest.hexdigest()[:12]


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
            if text.strip() and _patient(text, where=f"{path}, line {number}") not in held_out:
                places.extend((number, offset))
            offset += len(text)
    if not places:
        raise ModelError(f"{path} holds no film that training may use; correct data.films, or remove this file from it")
    found = np.frombuffer(places, dtype=np.int64).reshape(-1, 2)
    if not 0 < films.most < len(found):
        return found
    return found[np.linspace(0, len(found) - 1, films.most).round().astype(np.int64)]


def read_films(path: Path, places: Places, *, side: int) -> Iterator[TrainingFilm]:
    """Read the films of a checked file one after another. Raises ModelError if a picture cannot be read."""
    with path.open("rb") as file:
        for number, offset in places.tolist():
            file.seek(offset)
            film = cast("_Film", json.loads(file.readline()))
            picture = path.parent / film["file"]
            gray = cv2.imread(str(picture), cv2.IMREAD_GRAYSCALE)
            if gray is None:
                raise ModelError(
                    f"{path}, line {number}: {picture} cannot be read as a picture; restore it, or remove the line"
                )
            yield _cut(film, np.asarray(gray, dtype=np.uint8), side=side)


def _patient(text: bytes, *, where: str) -> str:
    """Check a line and return its patient."""
    try:
        film = cast("_Film", json.loads(text))
        if "truth" in film:
            check_line(film["truth"])
        for box in film.get("boxes", []):
            _meaning(box["label"])
            edges = np.array(box["xyxy"], dtype=np.float32)
            if edges.shape != (4,) or not np.isfinite(edges).all():
                raise ValueError("xyxy must be four numbers")
        labels_of_line(nih_labels=film.get("nih_labels"), reading=film.get("rsna"), boxes={}, regions={})
        if not isinstance(film["file"], str):
            raise TypeError("file must be a path")
        return patient_of(film)
    except UnknownLabel as error:
        raise ModelError(f"{where}: {error}") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{where}: not a film as expected ({error!r}); correct or remove it") from error


def _meaning(label: str) -> tuple[str | None, str | None]:
    """Return the region and the class that a box's label means; at least one of them is None."""
    region = region_of(label)
    return region, None if region else class_of(label)


def _cut(film: _Film, gray: NDArray[np.uint8], *, side: int) -> TrainingFilm:
    """Cut out the central square of a film."""
    rows, columns = gray.shape
    short = min(rows, columns)
    left, top = (columns - short) // 2, (rows - short) // 2
    square = gray[top : top + short, left : left + short]
    pixels = _stored(np.asarray(cv2.resize(square, (side, side), interpolation=cv2.INTER_AREA), dtype=np.uint8))
    offset = np.array([left, top, left, top], dtype=np.float32)
    line = film.get("truth") or _line(film, offset, short)
    return TrainingFilm(pixels=pixels, line=line, patient=patient_of(film), view=film.get("view", ""))


def _stored(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Store a film as JPEG and read it again, so that films of all sources have gone the same way."""
    _, encoded = cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, _QUALITY])
    return np.asarray(cv2.imdecode(encoded, cv2.IMREAD_GRAYSCALE), dtype=np.uint8)


def _line(film: _Film, offset: NDArray[np.float32], short: int) -> Line:
    """Convert labels and boxes to the stored form."""
    regions: dict[str, list[float]] = {}
    boxes: dict[str, list[list[float]]] = {}
    for box_line in film.get("boxes", []):
        corners = ((np.array(box_line["xyxy"], dtype=np.float32) - offset) / short).clip(0, 1)
        box = unit_boxes.to_center_size(corners).tolist()
        if min(box[2:]) <= 0:
            continue
        region, key = _meaning(box_line["label"])
        if region is not None:
            regions[region] = box
        elif key is not None:
            boxes.setdefault(key, []).append(box)
    return labels_of_line(nih_labels=film.get("nih_labels"), reading=film.get("rsna"), boxes=boxes, regions=regions)
