"""A received film as input of the writers of outputs: its header, and its picture for those that need it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydicom.dataset import Dataset

from node.errors import Undecodable, is_of_file
from node.read import decoding
from node.read.decoding import StoredPicture, Thumbnail

Picture = npt.NDArray[np.uint8]
"""[row, column] of the stored film, as displayed, 0..255."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Source:
    """One received object.

    header: the object without its pixels
    picture: decodes the film; returns None if that is not possible (any more)
    thumbnail: the one from its reading, or else decodes the film as `picture` does
    """

    header: Dataset
    picture: Callable[[], Picture | None] = lambda: None
    thumbnail: Callable[[], Thumbnail | None] = lambda: None


def from_files(
    headers: Mapping[str, Dataset], files: Mapping[str, Path], thumbnails: Mapping[str, Thumbnail] | None = None
) -> dict[str, Source]:
    """Return the films of a study with pictures that are decoded when a writer asks; all by SOP Instance UID.

    thumbnails: those of films that were read just now
    Only the last decoded film stays in memory, because it may have 67 million pixels. A film that cannot be decoded
    again has no picture, so that its study still gets its report. Errors of the disk are raised.
    """
    kept = thumbnails or {}

    @lru_cache(maxsize=1)
    def decoded(uid: str) -> StoredPicture | None:
        try:
            return decoding.stored_picture(files[uid])
        except Undecodable:
            return None
        except OSError as error:
            if is_of_file(error):
                return None
            raise

    @lru_cache(maxsize=1)
    def picture(uid: str) -> Picture | None:
        stored = decoded(uid)
        return None if stored is None else stored.shown()

    def thumbnail(uid: str) -> Thumbnail | None:
        if uid in kept:
            return kept[uid]
        stored = decoded(uid)
        return None if stored is None else stored.thumbnail()

    return {
        uid: Source(header=header, picture=partial(picture, uid), thumbnail=partial(thumbnail, uid))
        for uid, header in headers.items()
    }
