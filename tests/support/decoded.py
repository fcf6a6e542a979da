"""Decode a film of a test as the node does: from a file, in a process of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pydicom.dataset import Dataset

from node.errors import Undecodable
from node.read import decoding
from node.read.decoding import BytePicture, Radiograph, Square, StoredPicture
from tests.support import films


def central(columns: int, rows: int) -> tuple[float, float, float, float]:
    """The largest square in the middle of a film."""
    side = min(columns, rows)
    left, top = (columns - side) / 2, (rows - side) / 2
    return (left, top, left + side, top + side)


def load(film: Dataset | Path, gray: str = "voi", *, square: Square = central) -> Radiograph:
    """Decode a film as a model needs it."""
    with _file(film) as path:
        return decoding.load(path, gray=gray, square=square)


def refusal(film: Dataset | Path, gray: str = "voi") -> str:
    """Why a film is not decoded."""
    with pytest.raises(Undecodable) as refused:
        load(film, gray)
    return refused.value.reason


def stored_picture(film: Dataset | Path) -> StoredPicture:
    """Decode a film for display."""
    with _file(film) as path:
        return decoding.stored_picture(path)


def picture_of(film: Dataset | Path) -> BytePicture:
    """Decode a film as displayed."""
    return stored_picture(film).shown()


@contextmanager
def _file(film: Dataset | Path) -> Iterator[Path]:
    if isinstance(film, Path):
        yield film
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "film.dcm"
        path.write_bytes(films.file_bytes(film))
        yield path
