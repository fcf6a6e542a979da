"""Films as PNG pictures, at full resolution in stored orientation, in any window.

Decoded films are kept for a moment: a reader who moves the window asks for the same film again and again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import cv2
import numpy as np

from node.errors import Undecodable
from node.read import decoding
from node.read.decoding import BytePicture, StoredPicture
from node.read.grayscale import Window
from node.store.received import Instance

SMALLEST, LARGEST = 32, 4096
"""Limits of the longer side of a picture that is shrunk, in pixels."""

_KEPT_BYTES: Final = 192 * 2**20
"""Decoded films that are kept; the newest one is kept however large it is."""
_COMPRESSION: Final = 1  # a third of the time of zlib's default, and 5 % more bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownPicture:
    """A film as PNG; window: the window of the picture; values: the lowest and highest exposed value, for sliders.

    is_dark_high: whether higher values are darker, as in a film of MONOCHROME1 that is not inverted
    """

    png: bytes
    window: Window
    values: tuple[float, float]
    is_dark_high: bool


class Pictures:
    """Draws the films of received objects. May be called from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[Path, StoredPicture] = OrderedDict()

    def draw(
        self, film: Instance, *, window: Window | None = None, is_inverted: bool = False, longest: int | None = None
    ) -> ShownPicture:
        """Draw a film; longest: its longest side in pixels, if it is to be shrunk.

        Raises Undecodable if it has no picture, and OSError for an error of the disk.
        """
        picture = self._decoded(film)
        exposed = picture.levels.values[picture.levels.exposed]
        return ShownPicture(
            png=to_png(picture.shown(window, is_inverted=is_inverted), longest=longest),
            window=window or picture.window,
            values=(float(exposed[0]), float(exposed[-1])),
            is_dark_high=picture.header.is_inverted != is_inverted,
        )

    def _decoded(self, film: Instance) -> StoredPicture:
        with self._lock:  # one at a time: a film may take half a gigabyte while it is decoded
            picture = self._kept.pop(film.path, None)
            if picture is None:
                picture = decoding.stored_picture(film.path)
            self._kept[film.path] = picture
            while len(self._kept) > 1 and sum(kept.nbytes for kept in self._kept.values()) > _KEPT_BYTES:
                self._kept.popitem(last=False)
            return picture


def to_png(shown: BytePicture, *, longest: int | None = None) -> bytes:
    """Return a picture as PNG; longest: its longest side in pixels, if it is to be shrunk. Raises Undecodable."""
    if longest is not None and max(shown.shape) > longest:
        ratio = longest / max(shown.shape)
        columns, rows = (max(1, round(side * ratio)) for side in (shown.shape[1], shown.shape[0]))
        shown = cv2.resize(shown, (columns, rows), interpolation=cv2.INTER_AREA).astype(np.uint8)
    is_made, png = cv2.imencode(".png", shown, [cv2.IMWRITE_PNG_COMPRESSION, _COMPRESSION])
    if not is_made:
        raise Undecodable("undecodable", "no PNG could be made of the film")
    return png.tobytes()
