"""Writes a safetensors file in pieces, so that the largest network needs little memory.

The format: eight bytes with the length of a JSON header, the header, then all numbers in the header's order.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]


def write_stream(
    path: Path, shapes: Mapping[str, tuple[int, ...]], numbers: Iterable[FloatArray], *, half: bool = False
) -> str:
    """Write weights and return the file's SHA-256.

    numbers: those of every weight in the order of `shapes`, cut anywhere
    half: two bytes a number instead of four
    Raises ValueError where there are more or fewer numbers than the shapes have.
    """
    dtype = np.dtype("<f2" if half else "<f4")
    start, size = _header(shapes, name="F16" if half else "F32", itemsize=dtype.itemsize)
    hashed = hashlib.sha256(start)
    with path.open("wb") as file:
        file.write(start)
        for values in numbers:
            piece = np.ascontiguousarray(values, dtype=dtype).data
            hashed.update(piece)
            file.write(piece)
        if file.tell() != len(start) + size:
            raise ValueError(f"{path}: {file.tell() - len(start)} bytes of weights for shapes of {size}")
    return hashed.hexdigest()


def _header(shapes: Mapping[str, tuple[int, ...]], *, name: str, itemsize: int) -> tuple[bytes, int]:
    """Return everything before the numbers, and the size of the numbers in bytes."""
    header: dict[str, object] = {}
    end = 0
    for key, shape in shapes.items():
        begin, end = end, end + math.prod(shape) * itemsize
        header[key] = {"dtype": name, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    # Tensors start at a multiple of eight bytes; the header is padded with blanks.
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, end
