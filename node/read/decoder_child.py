"""The main loop of a decoder process: it serves one request after another, until its parent closes the connection.

It limits its own memory and processor time for each film before foreign code meets the film's bytes. Its answers are
JSON, and pixels go back through memory that it shares with the process that asked (`decoder_processes`).

A PNG or JPEG has no header that says what it shows. A film in false colors and a screenshot would get an answer as any
film does, so a picture with colors is refused, while a gray one is read however it is stored.
"""

from __future__ import annotations

import errno
import gc
import json
import math
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import reduction
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final, NotRequired, TypedDict

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError
from pydicom.uid import UID

from node.dicom.film_header import PixelFormat
from node.domain import Reason
from node.errors import InputError, Undecodable, is_of_disk
from node.read import pixel_format, pixels
from node.read.pixels import Cells

FILM: Final = "film"
PICTURE: Final = "picture"

_KEPT_BYTES: Final = 64 * 2**20
"""Of shared memory, which stays for the next film: new pages cost more time than copying the pixels."""
_FORMATS: Final = ("PNG", "JPEG")
_GRAY_MODES: Final = frozenset(("1", "L", "LA"))
_PRINTED: Final = "CMYK"
_BOMBS: Final = (Image.DecompressionBombError, Image.DecompressionBombWarning)
_CELL: Final = 4
"""Side of the cells, in pixels, over which colors are averaged: noise of single pixels is no color."""
_MOST_TINT: Final = 16
"""The most by which the channels of a cell may differ in a gray picture, of 255.

Noise of 6 in each channel, kept by JPEG, reaches 15; the palest false colors (MATLAB's "bone") have 32. A gray picture
without noise has 0 at any quality of JPEG.
"""


class Request(TypedDict):
    """A request to a child; syntax and pixels: of a film's header, with the names of `PixelFormat`."""

    task: str
    path: str
    syntax: NotRequired[str]
    pixels: NotRequired[dict[str, object]]


class Answer(TypedDict, total=False):
    """A child's reply: why there are no pixels, or the layout of those in shared memory, see `StoredPixels`.

    input: the message of an InputError; number: errno of a disk error
    """

    reason: str
    message: str
    input: str
    number: int
    shape: tuple[int, ...]
    dtype: str
    is_longer: bool
    depth: tuple[int, bool] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Resource limits for one film; memory_bytes: in addition to the process's use before."""

    processor_seconds: float
    memory_bytes: int

    @staticmethod
    def of(count: int) -> Limits:
        """Return the limits for a film of so many pixels."""
        return Limits(processor_seconds=2 + count / 1_000_000, memory_bytes=256 * 2**20 + 48 * count)

    @property
    def seconds(self) -> float:
        """How long it may take, on a machine that has other work too."""
        return 10 * self.processor_seconds


def serve(connection: Connection) -> None:
    """Serve requests until the other side closes the connection."""
    be_silent()
    gc.freeze()
    shared = os.memfd_create("pixels")
    reduction.send_handle(connection, shared, os.getppid())
    while True:
        try:
            request = json.loads(connection.recv_bytes())
        except EOFError:
            return
        connection.send_bytes(json.dumps(_answer(request, shared)).encode())


def be_silent() -> None:
    """Leave signals to the parent process, and let nothing of a film or a patient out of this one."""
    for number in (signal.SIGINT, signal.SIGTERM):  # meant for the process that asks: it still needs its films
        signal.signal(number, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a dump would hold a film
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for output in (1, 2):  # libraries may print anything, and quote patient data
        os.dup2(nowhere, output)


def _answer(request: Request, shared: int) -> Answer:
    """Decode one film or picture, and return the reply."""
    try:
        return _TASKS[request["task"]](request, shared)
    except Undecodable as error:
        return {"reason": error.reason, "message": str(error)}
    except InputError as error:
        return {"input": str(error)}
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the boundary to the decoders: a panic of one in Rust is a BaseException
        if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
            return {"reason": Reason.UNDECODABLE, "message": "decoding takes more memory than a film of this size may"}
        if isinstance(error, OSError) and is_of_disk(error):
            return {"number": error.errno or 0, "message": os.strerror(error.errno or 0)}
        return {"reason": Reason.UNDECODABLE, "message": f"the pixels cannot be decoded ({type(error).__name__})"}


def _film(request: Request, shared: int) -> Answer:
    form = PixelFormat(**request["pixels"])  # type: ignore[arg-type]  # made by `asdict` of such a value
    _limit((form.rows or 0) * (form.columns or 0))
    stored = pixels.decode(Path(request["path"]), UID(request["syntax"]), form)
    return _shared(stored.cells, shared) | {"is_longer": stored.is_longer, "depth": stored.depth}


def _picture(request: Request, shared: int) -> Answer:
    path = Path(request["path"])
    _limit(0)
    _limit(min(count_picture_pixels(path), pixel_format.MAX_PIXELS))
    return _shared(read_picture(path), shared)


_TASKS: Final = {FILM: _film, PICTURE: _picture}


def _limit(count: int) -> None:
    """Limit memory and processor time for a film of so many pixels, from now on (setrlimit(2)).

    The kernel compares the limits with all that the process has ever used, so each film moves them.
    """
    limits, used = Limits.of(count), resource.getrusage(resource.RUSAGE_SELF)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    seconds = math.ceil(used.ru_utime + used.ru_stime + limits.processor_seconds)
    _move(resource.RLIMIT_CPU, seconds)
    _move(resource.RLIMIT_AS, size + limits.memory_bytes)


def _move(which: int, limit: int) -> None:
    most = resource.getrlimit(which)[1]
    resource.setrlimit(which, (limit if most == resource.RLIM_INFINITY else min(limit, most), most))


def _shared(cells: Cells, shared: int) -> Answer:
    """Put pixels into the shared memory, and describe them."""
    content = np.ascontiguousarray(cells, dtype=cells.dtype.newbyteorder("<")).view(np.uint8).data
    if os.fstat(shared).st_size > max(content.nbytes, _KEPT_BYTES):
        os.ftruncate(shared, _KEPT_BYTES)
    if os.pwrite(shared, content, 0) != content.nbytes:
        raise MemoryError
    return {"shape": cells.shape, "dtype": cells.dtype.newbyteorder("<").str}


def count_picture_pixels(path: Path) -> int:
    """Return the number of pixels in the header of a picture. Raises InputError."""
    with _opened(path) as image:
        return image.width * image.height


def read_picture(path: Path) -> npt.NDArray[np.uint8]:
    """Return the gray values of a PNG or JPEG picture (spec §1.1): [row, column]. Raises InputError.

    Call it only in a decoder process (`decoder_processes`).
    """
    with _opened(path) as image:
        if image.width * image.height > pixel_format.MAX_PIXELS:
            raise InputError(f"{path}: has more than {pixel_format.MAX_PIXELS} pixels; name a smaller picture")
        if getattr(image, "n_frames", 1) > 1:
            raise InputError(f"{path}: holds several pictures; name a file with one film")
        return _gray(path, ImageOps.exif_transpose(image))


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    """Open a picture; an error of Pillow, also while it decodes, becomes InputError."""
    try:
        with Image.open(path, formats=_FORMATS) as image:
            yield image
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, *_BOMBS) as error:
        raise InputError(f"{path}: is not a readable picture of usual size; name a DICOM, PNG or JPEG file") from error


def _gray(path: Path, picture: Image.Image) -> npt.NDArray[np.uint8]:
    if picture.mode == _PRINTED:
        raise InputError(
            f"{path}: is stored for printing (CMYK), which has no certain gray; save the film itself in gray"
        )
    if picture.has_transparency_data and not _is_opaque(picture):
        raise InputError(f"{path}: has transparent parts, whose gray is unknown; save the film without transparency")
    if picture.mode.startswith("I;16"):
        return _from_16_bits(path, np.asarray(picture))
    if _has_colors(picture):
        raise InputError(f"{path}: the picture has colors, and only films in gray are read; take the film itself")
    return np.asarray(picture.convert("L"))


def _is_opaque(picture: Image.Image) -> bool:
    return not picture.mode.startswith("I;16") and picture.convert("RGBA").getchannel("A").getextrema() == (255, 255)


def _has_colors(picture: Image.Image) -> bool:
    if picture.mode in _GRAY_MODES:
        return False
    cells = np.asarray(picture.convert("RGB").reduce(_CELL))
    return bool(np.ptp(cells, axis=2).max() > _MOST_TINT)


def _from_16_bits(path: Path, values: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint8]:
    """Return 16-bit gray values in 8 bits (Pillow 13 would clip them). Raises InputError for 12 bits in 16.

    The file does not give the number of bits of such values, and unscaled they are nearly black.
    """
    if values.max() < 2**15:
        raise InputError(f"{path}: uses less than half of its 16 bits and so is nearly black; save the film in 8 bits")
    return np.rint(values / np.float32(257)).astype(np.uint8)
