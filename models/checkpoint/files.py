"""Checks the files of a model directory against the manifest's hashes before they are used (design §4).

Needs no torch, so that a command which only hashes, or prints its help, starts without it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath, PureWindowsPath

import numpy as np
from numpy.typing import NDArray

from models.errors import ModelError
from models.manifest import WEIGHTS, Manifest
from models.reading.tokenizers import PROMPT_VOCABULARY, SENTENCE_MERGES, SENTENCE_VOCABULARY

CARD = "MODEL_CARD.md"
REQUIRED = (WEIGHTS, CARD, *(f"vocab/{name}" for name in (PROMPT_VOCABULARY, SENTENCE_VOCABULARY, SENTENCE_MERGES)))
"""Files that every manifest must hash: those that answers depend on, and those that describe the model."""
FloatArray = NDArray[np.float32]
_NUMBER = np.dtype("<f4")


def verify(directory: Path, manifest: Manifest) -> None:
    """Compare every file with the manifest's hash. No file is opened before all names were checked.

    Raises what `require_plain_files` and `compare_hashes` raise.
    """
    require_plain_files(directory, manifest)
    compare_hashes(directory, manifest)


def compare_hashes(directory: Path, manifest: Manifest) -> None:
    """Raise ModelError that names the first file that is not the one of the manifest; names are checked before."""
    for name, expected in manifest.files.items():
        path = directory / name
        try:
            found = file_sha256(path)
        except OSError as error:
            raise ModelError(f"{path} cannot be read ({error.strerror}); restore the model directory") from error
        if found != expected:
            raise ModelError(
                f"{path} is not the file that the manifest names (sha256 {found[:12]}, expected {expected[:12]}); "
                "restore it, or build the model directory again"
            )


def require_plain_files(directory: Path, manifest: Manifest) -> None:
    """Check the names of the files, and open none.

    Raises ModelError for the first that lacks a required hash, is outside the directory, or is a link, a pipe or a
    device.
    """
    for name in REQUIRED:
        if name not in manifest.files:
            raise ModelError(f"{directory}: the manifest has no hash of {name}; restore the model directory")
    for name in manifest.files:
        # Parsed as a Windows path too: there both slashes separate names, and a name may start with a drive.
        place = PureWindowsPath(name)
        if place.anchor or ".." in place.parts:
            raise ModelError(f"{directory}: the manifest names {name}, outside the model directory; remove that line")
        _require_plain(directory, name)


def _require_plain(directory: Path, name: str) -> None:
    """Refuse anything but a regular file in the directory: a link leads out of it, and opening a pipe may block."""
    path = directory
    for part in PurePath(name).parts:
        path /= part
        if path.is_symlink():
            raise ModelError(f"{path} is a link; put the file itself into the model directory")
    if path.exists() and not path.is_file():
        raise ModelError(f"{path} is not a regular file; restore the model directory")


def file_sha256(path: Path) -> str:
    """Hash a file in blocks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_stream(path: Path, shapes: Mapping[str, tuple[int, ...]], numbers: Iterable[FloatArray]) -> str:
    """Write weights and return the file's SHA-256.

    numbers: those of every weight in the order of `shapes`, cut anywhere
    Raises ValueError where there are more or fewer numbers than the shapes have.
    """
    start, size = _header(shapes)
    hashed = hashlib.sha256(start)
    with path.open("wb") as file:
        file.write(start)
        for values in numbers:
            piece = np.ascontiguousarray(values, dtype=_NUMBER).data
            hashed.update(piece)
            file.write(piece)
        if file.tell() != len(start) + size:
            raise ValueError(f"{path}: {file.tell() - len(start)} bytes of weights for shapes of {size}")
    return hashed.hexdigest()


def _header(shapes: Mapping[str, tuple[int, ...]]) -> tuple[bytes, int]:
    """Return everything before the numbers, and the size of the numbers in bytes."""
    header: dict[str, object] = {}
    end = 0
    for key, shape in shapes.items():
        begin, end = end, end + math.prod(shape) * _NUMBER.itemsize
        header[key] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    # Tensors start at a multiple of eight bytes; the header is padded with blanks.
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, end
