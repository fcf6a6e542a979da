"""Open one file to look at or to ask about: a DICOM film, or a PNG or JPEG, which has no header."""

from __future__ import annotations

from collections.abc import Container, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from models.contract import Box, Question
from node.dicom import header_reading
from node.dicom.film_header import FilmHeader, parse_header
from node.errors import InputError, Undecodable
from node.prompt_set import PromptSet
from node.read import decoder_processes, decoding, pixel_format, routing
from node.read.decoding import Radiograph
from node.read.framing import Framing
from node.read.manifest import FilmRule
from node.read.model import FilmAnswer, RadiographReader, check_questions
from node.read.view_check import ask_film, see_film

_PICTURE_SUFFIXES: Final = frozenset((".png", ".jpg", ".jpeg"))


def is_picture(path: Path) -> bool:
    """Return whether a file's name is that of a PNG or JPEG."""
    return path.suffix.lower() in _PICTURE_SUFFIXES


def check(path: Path, ages: Container[int] | None = None) -> FilmHeader | None:
    """Check that a file accepts questions; ages: see `routing.rules_for`. Raises InputError if not.

    Returns its header, None of a PNG or JPEG.
    """
    if not path.is_file():
        raise InputError(f"{path}: does not exist; name a DICOM, PNG or JPEG file")
    if is_picture(path):
        decoder_processes.of_this_process().decode_picture(path)
        return None
    try:
        header = parse_header(header_reading.read_header(path))
        decision = routing.choose(header, routing.rules_for(ages))
    except Undecodable as error:
        raise InputError(f"{path}: {error}; name a DICOM, PNG or JPEG file") from error
    if decision.action is not routing.Action.READ:
        raise InputError(f"{path}: is not a film that is read ({decision.reason}); name another file")
    return header


def load(path: Path, reader: RadiographReader | FilmRule) -> Radiograph:
    """Decode a file as a model needs it. Raises InputError if it is not a film."""
    if is_picture(path):
        return _load_picture(path, reader)
    try:
        return decoding.load(path, gray=reader.gray, square=reader.square)
    except Undecodable as error:
        raise InputError(f"{path}: {error}; name a DICOM, PNG or JPEG file") from error


def ask(path: Path, questions: Sequence[Question], *, reader: RadiographReader, prompts: PromptSet) -> list[FilmAnswer]:
    """Ask about one film.

    Raises InputError when the file is not a film that is read, a box leaves the film or lies outside the square, or
    words are not asked.
    """
    header = check(path, reader.ages)
    image = load(path, reader)
    check_questions(questions, image.framing, prompts)
    try:
        return ask_film(see_film(image, header, reader), questions, prompts, reader)
    except ValueError as error:
        raise InputError(str(error)) from error


def show_picture(path: Path) -> npt.NDArray[np.uint8]:
    """Return the gray values of a PNG or JPEG picture as they are read: [row, column].

    Raises InputError, and Undecodable if no person could read it.
    """
    return decoding.picture_without_header(decoder_processes.of_this_process().decode_picture(path)).shown()


def _load_picture(path: Path, reader: RadiographReader | FilmRule) -> Radiograph:
    picture = decoder_processes.of_this_process().decode_picture(path)
    rows, columns = picture.shape
    if min(rows, columns) < pixel_format.MIN_SIDE:
        raise InputError(f"{path}: has a side under {pixel_format.MIN_SIDE} pixels; name a film")
    left, top, right, bottom = reader.square(columns, rows)
    framing = Framing(columns=columns, rows=rows, square=Box(left=left, top=top, right=right, bottom=bottom))
    try:
        stored = decoding.picture_without_header(picture)
    except Undecodable as error:
        raise InputError(f"{path}: {error}; name a film") from error
    return Radiograph(gray=stored.displayed(), framing=framing, notes=stored.notes)
