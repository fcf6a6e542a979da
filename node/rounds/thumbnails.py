"""Keeps the thumbnails of films from their reading until their study is written, in memory.

They save a second decoding: what is lost, as with the process, is decoded again, and the outputs are the same.
"""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from threading import Lock
from typing import Final

from node.read.thumbnail import Thumbnail

_MOST: Final = 256
"""One has some 100,000 pixels, that of a long strip at most two million."""


class Thumbnails:
    """Those of films that were read by this process; thread-safe."""

    def __init__(self) -> None:
        self._kept, self._changing = OrderedDict[Path, Thumbnail](), Lock()

    def keep(self, path: Path, thumbnail: Thumbnail) -> None:
        """Keep the thumbnail of a received film; of many, the oldest is dropped."""
        with self._changing:
            self._kept[path] = thumbnail
            if len(self._kept) > _MOST:
                self._kept.popitem(last=False)

    def take(self, path: Path) -> Thumbnail | None:
        """Return what is kept of a film, and keep it no longer."""
        with self._changing:
            return self._kept.pop(path, None)
