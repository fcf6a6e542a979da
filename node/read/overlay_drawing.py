"""Draw the overlay planes of a film, as a viewer does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from node.dicom.overlay_planes import Mask, OverlayPlane


def drawn(planes: Sequence[OverlayPlane], shape: tuple[int, int], cells: npt.NDArray[np.integer] | None) -> Mask:
    """Return where planes cover a film. Of a region of interest its outline is drawn, for it would hide the film.

    shape: rows and columns of the film
    cells: its pixel cells with all their bits; None if no plane lies in them
    """
    covered = np.zeros(shape, dtype=bool)
    for plane in planes:
        bits = plane.bits() if cells is None or plane.packed is not None else (cells >> plane.position & 1).astype(bool)
        if plane.is_region:
            bits &= ~_inner(bits)
        down, across = (start - 1 for start in plane.origin)
        part = covered[max(down, 0) : max(down + plane.rows, 0), max(across, 0) : max(across + plane.columns, 0)]
        part |= bits[max(-down, 0) :, max(-across, 0) :][: part.shape[0], : part.shape[1]]
    return covered


def _inner(bits: Mask) -> Mask:
    """Return the bits whose eight neighbors are all set."""
    around = np.pad(bits, 1)
    inner = bits.copy()
    for down in range(3):
        for across in range(3):
            inner &= around[down : down + bits.shape[0], across : across + bits.shape[1]]
    return inner
