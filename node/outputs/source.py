"""A received film as the writers of outputs get it: its header, and its picture for those that need it."""

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
from node.read.grayscale import Stretch

Picture = npt.NDArray[np.uint8]
"""[row, column] of the stored film, as displayed, 0..255."""


def _no_picture() -> Picture | None:
    return None


def _no_stretch() -> Stretch | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Source:
    """One received object.

    header: the object without its pixels
    picture: decodes the film; returns None if that is not possible (any more)
    stretch: how the picture is shown if its header does not say it, or nobody could read it so
    """

    header: Dataset
    picture: Callable[[], Picture | None] = _no_picture
    stretch: Callable[[], Stretch | None] = _no_stretch


def from_files(headers: Mapping[str, Dataset], files: Mapping[str, Path]) -> dict[str, Source]:
    """Return the films of a study with pictures that are decoded when a writer asks; both by SOP Instance UID.

    Only the picture that was asked for last stays in memory, because a film may have 67 million pixels. A film that
    cannot be decoded again must not cost the study its report, so it has no picture. Errors of the disk are raised.
    """

    @lru_cache(maxsize=1)
    def decoded(uid: str) -> tuple[Picture | None, Stretch | None]:
        try:
            stored = decoding.stored_picture(files[uid])
            return stored.shown(), stored.stretch
        except Undecodable:
            return None, None
        except OSError as error:
            if is_of_file(error):
                return None, None
            raise

    def picture(uid: str) -> Picture | None:
        return decoded(uid)[0]

    def stretch(uid: str) -> Stretch | None:
        return decoded(uid)[1]

    return {
        uid: Source(header=header, picture=partial(picture, uid), stretch=partial(stretch, uid))
        for uid, header in headers.items()
    }
