"""Place the labels of boxes so that they are readable: near their box, inside the picture, without overlap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from node.domain import Box


def place(boxes: Sequence[Box], sizes: Sequence[tuple[float, float]], *, columns: float, rows: float) -> list[Box]:
    """Return a place for each label; earlier labels choose first.

    sizes: width and height of each label, in the pixels of the boxes
    columns, rows: size of the picture
    If every candidate place is taken, the label gets its best place and overlaps others.
    """
    taken = np.empty((len(boxes), 4))
    for count, (box, size) in enumerate(zip(boxes, sizes, strict=True)):
        candidates = np.array(list(_candidates(box, size, columns=columns, rows=rows)))
        free = ~_overlaps(candidates, taken[:count]).any(axis=1)
        taken[count] = candidates[int(np.argmax(free))]
    return [Box(left=left, top=top, right=right, bottom=bottom) for left, top, right, bottom in taken.tolist()]


def _candidates(
    box: Box, size: tuple[float, float], *, columns: float, rows: float
) -> Iterator[tuple[float, float, float, float]]:
    """Yield places from best to worst: above the top edge, then line by line down from it, then up."""
    width, height = min(size[0], columns), min(size[1], rows)
    lines = int(rows // height)
    below = [box.top + line * height for line in range(lines)]
    above = [box.top - line * height for line in range(2, lines)]
    for left in (box.left, box.right - width, box.right, box.left - width):
        for top in (box.top - height, *below, *above):
            if 0 <= top <= rows - height or top == box.top - height:
                x, y = min(max(left, 0.0), columns - width), min(max(top, 0.0), rows - height)
                yield (x, y, x + width, y + height)


def _overlaps(candidates: np.ndarray, taken: np.ndarray) -> np.ndarray:
    """Return whether candidates overlap taken places: edges [candidate, 4] and [taken, 4] to [candidate, taken]."""
    new, old = candidates[:, None, :], taken[None, :, :]
    return np.asarray((new[..., :2] < old[..., 2:]).all(axis=-1) & (old[..., :2] < new[..., 2:]).all(axis=-1))
