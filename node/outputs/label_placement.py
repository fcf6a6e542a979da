"""Place the labels of boxes so that they are readable: near their box, inside the picture, without overlap.

Labels that a viewer draws without a background of their own are placed by the brightness of the picture too: white text
fades on a bright abdomen, and dcmtk, and so DICOMscope, drops the styles that would give it a shadow.

Labels are of one height, as lines of text are. Then there is room for all of them exactly if they can be written in
lines: of the rows at multiples of the height each label meets one, and the labels that a row meets fit side by side.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
import numpy.typing as npt

from node.domain import Box
from node.read.thumbnail import Thumbnail

_MOST_EXACT = 12
"""Labels up to which every division among lines is considered; the steps are 2 to the power of the labels."""

_AT_ONCE = 512
"""Places that are compared at once: a crowded picture has many, and the first ones are mostly enough."""

_POWER = 4
"""Power of the gray values: letters on a bright spot are lost, and a dark spot beside it does not make up for that."""

_PER_DISTANCE, _PER_BESIDE, _PER_COVERED, _PER_CROSSED = 4.0, 0.5, 0.1, 0.05
"""What a place costs, beside its brightness (0..1): for its distance from the box, in heights of the picture; if it
stands wholly left of the box (half of that if right of it, because texts begin left and may be shorter than their
place); if it stands wholly inside a box; and for each box whose outline it crosses."""

_TOUCHING = 0.02
"""Share of a label that may lie across the outline of a box."""

_Edges = tuple[float, float, float, float]


class Ground:
    """The brightness of a film, to compare places for labels."""

    def __init__(self, thumbnail: Thumbnail, *, left: float = 0, top: float = 0) -> None:
        """left, top: where places are counted from, in pixels of the film."""
        self._step, self._origin = thumbnail.step, (left, top, left, top)
        powers = thumbnail.gray.astype(np.int64) ** _POWER
        self._sums = np.pad(powers.cumsum(axis=0).cumsum(axis=1), ((1, 0), (1, 0)))

    def brightness(self, places: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the mean of powers of the gray values under each place, 0..1.

        places: [place, edge] left, top, right, bottom
        """
        rows, columns = (size - 1 for size in self._sums.shape)
        scaled = (places + self._origin) / self._step
        low = np.minimum(np.floor(scaled[:, :2]).astype(int), (columns - 1, rows - 1))
        high = np.clip(np.ceil(scaled[:, 2:]).astype(int), low + 1, (columns, rows))
        (left, top), (right, bottom), sums = low.T, high.T, self._sums
        total = sums[bottom, right] - sums[top, right] - sums[bottom, left] + sums[top, left]
        return np.asarray(total / (255.0**_POWER * (right - left) * (bottom - top)))


def place(
    boxes: Sequence[Box],
    sizes: Sequence[tuple[float, float]],
    *,
    columns: float,
    rows: float,
    ground: Ground | None = None,
) -> list[Box]:
    """Return a place for each label; earlier labels choose first.

    sizes: width and height of each label, in the pixels of the boxes; a label larger than the picture is made to fit it
    columns, rows: size of the picture
    ground: where the picture is bright, for labels without a background; a label then takes the darkest place beside
        its box
    No label covers another one if there is room for all. If those that chose first leave none for a later one, all are
    written in lines, near their boxes where that is possible. If the lines do not fit into the picture either, there is
    no room: then a label that finds no free place stands above its box and covers others. This is exact for up to 12
    labels of one height; more labels are divided among lines first fit, and the tallest sets the height of all lines.
    """
    fitting = [(min(width, columns), min(height, rows)) for width, height in sizes]
    if not boxes:
        return []
    picture = {"columns": columns, "rows": rows}
    if sum(width * height for width, height in fitting) <= columns * rows + 1e-6:
        places = _place_near(boxes, fitting, ground=ground, **picture) or _place_in_lines(boxes, fitting, **picture)
        if places is not None:
            return places
    return _place_anyhow(boxes, fitting, **picture)


def _place_near(
    boxes: Sequence[Box],
    sizes: Sequence[tuple[float, float]],
    *,
    columns: float,
    rows: float,
    ground: Ground | None,
) -> list[Box] | None:
    """Give each label in turn the best place that is free; None if the labels before one of them left none."""
    places: list[_Edges] = []
    for box, size in zip(boxes, sizes, strict=True):
        candidates = list(_candidates(box, size, columns=columns, rows=rows))
        if ground is not None:
            candidates = _by_cost(candidates, box, boxes, rows=rows, ground=ground)
        found = _first_free(candidates, places)
        if found is None:
            corners = _corners(candidates[0], size, places, columns=columns, rows=rows)
            found = _first_free(corners, places)
        if found is None:
            return None
        places.append(found)
    return [_box(edges) for edges in places]


def _place_anyhow(
    boxes: Sequence[Box], sizes: Sequence[tuple[float, float]], *, columns: float, rows: float
) -> list[Box]:
    """Give each label in turn the best place that is free, or else its best place."""
    places: list[_Edges] = []
    for box, size in zip(boxes, sizes, strict=True):
        candidates = list(_candidates(box, size, columns=columns, rows=rows))
        places.append(_first_free(candidates, places) or candidates[0])
    return [_box(edges) for edges in places]


def _candidates(box: Box, size: tuple[float, float], *, columns: float, rows: float) -> Iterator[_Edges]:
    """Yield places from best to worst: above the top edge, then line by line down from it, then up."""
    width, height = size
    lines = int(rows // height)
    below = [*(box.top + line * height for line in range(lines)), box.bottom]
    above = [box.top - line * height for line in range(2, lines)]
    for left in (box.left, box.right - width, box.right, box.left - width):
        for top in (box.top - height, *below, *above):
            if 0 <= top <= rows - height or top == box.top - height:
                x, y = min(max(left, 0.0), columns - width), min(max(top, 0.0), rows - height)
                yield (x, y, x + width, y + height)


def _by_cost(
    candidates: Sequence[_Edges], box: Box, boxes: Sequence[Box], *, rows: float, ground: Ground
) -> list[_Edges]:
    """Sort places: dark ones first, above, below or in the box rather than beside it, and clear of all boxes."""
    places, own, others = np.array(candidates), np.array(box.edges), np.array([other.edges for other in boxes])
    low, high = places[:, :2], places[:, 2:]
    widths, areas = high[:, 0] - low[:, 0], (high - low).prod(axis=1)
    gaps = np.maximum(own[:2] - high, low - own[2:]).clip(0).sum(axis=1)
    beside = ((own[0] - low[:, 0]).clip(0) + (high[:, 0] - own[2]).clip(0) / 2).clip(0, widths) / widths
    starts, ends = np.maximum(low[:, None], others[:, :2]), np.minimum(high[:, None], others[:, 2:])
    covered = (ends - starts).clip(0).prod(axis=2) / areas[:, None]
    crossed = ((covered > _TOUCHING) & (covered < 1 - _TOUCHING)).sum(axis=1)
    costs = ground.brightness(places) + _PER_DISTANCE * gaps / rows + _PER_BESIDE * beside
    costs += _PER_COVERED * covered.max(axis=1) + _PER_CROSSED * crossed
    return [candidates[index] for index in np.argsort(costs, kind="stable")]


def _corners(
    best: _Edges, size: tuple[float, float], taken: Sequence[_Edges], *, columns: float, rows: float
) -> list[_Edges]:
    """Return the places in the corners that taken labels and the picture make, the nearest to the best place first.

    If any place is free, one of these is: a label at a free place can be moved left and up until it touches something.
    """
    width, height = size
    lefts = {left for left in (0.0, *(edges[2] for edges in taken)) if left + width <= columns}
    tops = {top for top in (0.0, *(edges[3] for edges in taken)) if top + height <= rows}
    corners = sorted(product(lefts, tops), key=lambda at: (abs(at[0] - best[0]) + abs(at[1] - best[1]), at))
    return [(left, top, left + width, top + height) for left, top in corners]


def _first_free(candidates: Sequence[_Edges], taken: Sequence[_Edges]) -> _Edges | None:
    """Return the first candidate that overlaps no taken place."""
    if not taken:
        return candidates[0]
    old = np.array(taken)[None, :, :]
    for start in range(0, len(candidates), _AT_ONCE):
        new = np.array(candidates[start : start + _AT_ONCE])[:, None, :]
        apart = np.concatenate((new[..., :2] >= old[..., 2:], old[..., :2] >= new[..., 2:]), axis=-1)
        free = np.flatnonzero(np.all(np.any(apart, axis=-1), axis=-1))
        if len(free):
            return candidates[start + int(free[0])]
    return None


def _place_in_lines(
    boxes: Sequence[Box], sizes: Sequence[tuple[float, float]], *, columns: float, rows: float
) -> list[Box] | None:
    """Write all labels in lines of the height of the tallest one; None if they do not fit."""
    line_height = max(height for _, height in sizes)
    widths = [width for width, _ in sizes]
    divide = _divide_exactly if len(widths) <= _MOST_EXACT else _divide_first_fit
    lines = divide(widths, columns + 1e-6)
    if len(lines) * line_height > rows + 1e-6:
        return None
    lines.sort(key=lambda labels: (sum(boxes[label].top for label in labels) / len(labels), labels))
    wanted = [min(boxes[label].top for label in labels) - line_height for labels in lines]
    places = {}
    for labels, top in zip(lines, _spread(wanted, [line_height] * len(lines), rows), strict=True):
        labels.sort(key=lambda label: (boxes[label].left, label))
        lefts = _spread([boxes[label].left for label in labels], [widths[label] for label in labels], columns)
        for label, left in zip(labels, lefts, strict=True):
            places[label] = _box((left, top, left + widths[label], top + sizes[label][1]))
    return [places[label] for label in range(len(boxes))]


def _divide_exactly(widths: Sequence[float], columns: float) -> list[list[int]]:
    """Divide labels among as few lines as possible.

    For every set of labels, in the order of its bits: the fewest lines, the least width of the last of them, and the
    label that came last.
    """
    best: list[tuple[int, float, int]] = [(0, columns, -1)]
    for labels in range(1, 1 << len(widths)):
        options = []
        for label, width in enumerate(widths):
            if labels >> label & 1:
                lines, used, _ = best[labels ^ (1 << label)]
                options.append((lines, used + width, label) if used + width <= columns else (lines + 1, width, label))
        best.append(min(options))
    divided: list[list[int]] = []
    before, left = 0, (1 << len(widths)) - 1
    while left:
        line, _, label = best[left]
        if line != before:
            divided.append([])
        divided[-1].append(label)
        before, left = line, left ^ (1 << label)
    return divided


def _divide_first_fit(widths: Sequence[float], columns: float) -> list[list[int]]:
    """Divide labels among lines: the longest first, each into the first line that has room."""
    divided: list[list[int]] = []
    for label in sorted(range(len(widths)), key=lambda label: -widths[label]):
        free = (line for line in divided if sum(widths[other] for other in line) + widths[label] <= columns)
        line = next(free, None)
        if line is None:
            divided.append([label])
        else:
            line.append(label)
    return divided


def _spread(wanted: Sequence[float], lengths: Sequence[float], limit: float) -> list[float]:
    """Return starts of intervals, in order and apart, between 0 and the limit, near those that are wanted."""
    starts: list[float] = []
    end = 0.0
    for start, length in zip(wanted, lengths, strict=True):
        starts.append(max(start, end))
        end = starts[-1] + length
    end = limit
    for index in reversed(range(len(starts))):
        starts[index] = max(min(starts[index], end - lengths[index]), 0.0)
        end = starts[index]
    return starts


def _box(edges: _Edges) -> Box:
    left, top, right, bottom = edges
    return Box(left=left, top=top, right=right, bottom=bottom)
