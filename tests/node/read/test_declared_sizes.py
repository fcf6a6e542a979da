"""Sizes that a header or a codestream declares are checked before anything is allocated for them."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pydicom import Dataset
from pydicom.encaps import encapsulate
from pydicom.uid import (
    UID,
    HTJ2KLossless,
    JPEG2000Lossless,
    JPEGBaseline8Bit,
    JPEGLosslessSV1,
    JPEGLSLossless,
    RLELossless,
)

from tests.paths import REPOSITORY
from tests.support import films

SIDE = 60_000
HUGE = {"Rows": SIDE, "Columns": SIDE}
MIB = 1024 * 1024
SPARE_MIB = 256
"""What a refusal may take; the smallest allocation for a declared size here would be 3.6 GB."""

# Reads files one by one with little memory to spare, as the node does, and prints the reason why each is not read.
_READ = f"""
import json, resource, sys
from pathlib import Path
from node.read import decoding
from node.errors import Undecodable
from tests.node.read.test_declared_sizes import taken

def reason(path):
    try:
        decoding.load(path, gray="voi", square=lambda columns, rows: (0, 0, columns, rows))
    except Undecodable as error:
        return f"{{error.reason}}: {{error}}"
    except MemoryError:
        return "out of memory"
    return "read"

good, *others = [Path(name) for name in sys.argv[1:]]
assert reason(good) == "read"
limit = taken() + {SPARE_MIB * MIB}
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
print(json.dumps([reason(path) for path in others]))
"""


def taken() -> int:
    """The address space of this process, in bytes."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    return pages * 4096


def with_codestream(codestream: bytes, syntax: UID, *, side: int | None = None) -> Dataset:
    """A film with a codestream that nothing made, and a header that declares another size or none of its own."""
    film = films.thumbnail()
    film.Rows, film.Columns = (side, side) if side is not None else (film.Rows, film.Columns)
    film.file_meta.TransferSyntaxUID = syntax
    film.PixelData = encapsulate([codestream + bytes(len(codestream) % 2)])
    film["PixelData"].VR = "OB"
    return film


def jpeg_2000(side: int, components: int = 1) -> bytes:
    """The main header of a codestream (ISO 15444-1 A.5.1)."""
    sizes = struct.pack(">8L", side, side, 0, 0, side, side, 0, 0)
    size = struct.pack(">H", 0) + sizes + struct.pack(">H", components) + b"\x0f\1\1" * components
    return b"\xff\x4f\xff\x51" + struct.pack(">H", len(size) + 2) + size + bytes(100)


def jpeg(marker: int, side: int, components: int = 1) -> bytes:
    """A frame header (ISO 10918-1 B.2.2, 14495-1 C.2.2)."""
    frame = struct.pack(">BHHB", 8, side, side, components) + b"\1\x11\0" * components
    return b"\xff\xd8\xff" + bytes([marker]) + struct.pack(">H", len(frame) + 2) + frame + bytes(100)


def in_a_box(codestream: bytes, decoy: bytes) -> bytes:
    """A JP2 file (ISO 15444-1 I), which has no place in DICOM, with a decoy before its codestream."""
    box = struct.pack(">L", len(decoy) + 8) + b"uuid" + decoy
    return b"\0\0\0\x0cjP  \r\n\x87\n" + box + b"\0\0\0\0jp2c" + codestream


HOSTILE: dict[str, Callable[[], Dataset]] = {
    "header": lambda: films.thumbnail(HUGE),
    "header of compressed pixels": lambda: films.changed(films.compressed(films.thumbnail(), JPEG2000Lossless), HUGE),
    "header of RLE": lambda: films.changed(films.compressed(films.thumbnail(), RLELossless), HUGE),
    "header and codestream": lambda: films.changed(with_codestream(jpeg_2000(SIDE), JPEG2000Lossless), HUGE),
    "JPEG 2000": lambda: with_codestream(jpeg_2000(SIDE), JPEG2000Lossless),
    "HTJ2K": lambda: with_codestream(jpeg_2000(SIDE), HTJ2KLossless),
    "JPEG 2000 in a box": lambda: with_codestream(
        in_a_box(jpeg_2000(SIDE), jpeg_2000(231)), JPEG2000Lossless, side=231
    ),
    "JPEG 2000 of many components": lambda: with_codestream(jpeg_2000(8000, 16384), JPEG2000Lossless, side=8000),
    "JPEG": lambda: with_codestream(jpeg(0xC0, SIDE), JPEGBaseline8Bit),
    "JPEG of many components": lambda: with_codestream(jpeg(0xC0, 8000, 200), JPEGBaseline8Bit, side=8000),
    "lossless JPEG": lambda: with_codestream(jpeg(0xC3, SIDE), JPEGLosslessSV1),
    "JPEG-LS": lambda: with_codestream(jpeg(0xF7, SIDE), JPEGLSLossless),
}


@pytest.fixture(scope="module")
def reasons(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Read every hostile file in one process whose memory is limited."""
    folder = tmp_path_factory.mktemp("hostile")
    made = {"good": films.thumbnail, **HOSTILE}
    paths = [folder / f"{number}.dcm" for number in range(len(made))]
    for path, make in zip(paths, made.values(), strict=True):
        path.write_bytes(films.file_bytes(make()))
    command = [sys.executable, "-c", _READ, *map(str, paths)]
    read = subprocess.run(command, cwd=REPOSITORY, check=False, capture_output=True, text=True, timeout=120)
    assert read.returncode == 0, read.stderr[-1000:]
    return dict(zip(HOSTILE, json.loads(read.stdout), strict=True))


@pytest.mark.parametrize("name", HOSTILE)
def test_an_impossible_size_is_refused_before_memory_is_taken(reasons: dict[str, str], name: str) -> None:
    reason, text = reasons[name].split(": ", 1)

    assert reason == "undecodable"
    assert "cannot be decoded" not in text, "a decoder was asked"
