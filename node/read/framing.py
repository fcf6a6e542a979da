"""Map boxes between the square that the network sees and the stored film, exactly; pure functions."""

from __future__ import annotations

from dataclasses import dataclass, replace

from models.contract import Box
from node.cardiothoracic_ratio import MeasuredLine


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The steps that turn a stored picture upright: transpose first, then mirror."""

    transpose: bool = False
    mirror_columns: bool = False
    mirror_rows: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Framing:
    """Where the square that the network sees lies on the stored film; maps boxes exactly in both directions.

    columns, rows: size of the stored film
    square: the analyzed square, in pixels of the *upright* film (its sides may differ by the rounding of a resize)
    turn: how the stored film was turned upright
    middle: where the patient's spine lies, by which boxes have sides; 0..1 of the square's width
    """

    columns: int
    rows: int
    square: Box
    turn: Turn = Turn()
    middle: float = 0.5

    def about(self, middle: float | None) -> Framing:
        """Return the framing with another middle; None: that of the square."""
        return self if middle is None else replace(self, middle=middle)

    @property
    def analyzed(self) -> Box:
        """The analyzed square on the stored film."""
        return self.to_image((0.5, 0.5, 1.0, 1.0))

    def to_image(self, unit: tuple[float, float, float, float]) -> Box:
        """Map a box by its center x, center y, width and height; otherwise as `place`."""
        x, y, width, height = unit
        return self._place(x - width / 2, y - height / 2, x + width / 2, y + height / 2)

    def place(self, box: Box) -> Box:
        """Map a network's box, in 0..1 of the square, to the stored film.

        Scales and shifts without a half-pixel offset (coordinates are box edges, not pixel centers). Clips the box to
        the film, and widens a box thinner than one pixel to one pixel, so that it stays visible and valid.
        """
        return self._place(*box.edges)

    def _place(self, left: float, top: float, right: float, bottom: float) -> Box:
        square = self.square
        side_x, side_y = square.right - square.left, square.bottom - square.top
        left, right = square.left + left * side_x, square.left + right * side_x
        top, bottom = square.top + top * side_y, square.top + bottom * side_y
        upright_columns, upright_rows = (self.rows, self.columns) if self.turn.transpose else (self.columns, self.rows)
        if self.turn.mirror_columns:
            left, right = upright_columns - right, upright_columns - left
        if self.turn.mirror_rows:
            top, bottom = upright_rows - bottom, upright_rows - top
        if self.turn.transpose:
            left, top, right, bottom = top, left, bottom, right
        left, right = _visible(left, right, size=self.columns)
        top, bottom = _visible(top, bottom, size=self.rows)
        return Box(left=left, top=top, right=right, bottom=bottom)

    def line_to_image(self, *, left: float, right: float, height: float) -> MeasuredLine:
        """Map a horizontal line of the upright square, 0..1, to the stored film, where it may be vertical."""
        box = self.to_image(((left + right) / 2, height, right - left, 0.0))
        column, row = (box.left + box.right) / 2, (box.top + box.bottom) / 2
        if self.turn.transpose:
            return MeasuredLine(start=(column, box.top), end=(column, box.bottom))
        return MeasuredLine(start=(box.left, row), end=(box.right, row))

    def to_unit(self, box: Box) -> tuple[float, float, float, float]:
        """Map a box on the stored film to 0..1 of the square; parts outside the square stay outside 0..1."""
        left, top, right, bottom = box.edges
        if self.turn.transpose:
            left, top, right, bottom = top, left, bottom, right
        upright_columns, upright_rows = (self.rows, self.columns) if self.turn.transpose else (self.columns, self.rows)
        if self.turn.mirror_rows:
            top, bottom = upright_rows - bottom, upright_rows - top
        if self.turn.mirror_columns:
            left, right = upright_columns - right, upright_columns - left
        square = self.square
        side_x, side_y = square.right - square.left, square.bottom - square.top
        return (
            ((left + right) / 2 - square.left) / side_x,
            ((top + bottom) / 2 - square.top) / side_y,
            (right - left) / side_x,
            (bottom - top) / side_y,
        )

    def to_square(self, box: Box) -> Box:
        """Map a box on the stored film to 0..1 of the square, as a network gets it."""
        x, y, width, height = self.to_unit(box)
        return Box(left=x - width / 2, top=y - height / 2, right=x + width / 2, bottom=y + height / 2)


def leaving(box: Box, *, columns: int, rows: int) -> str | None:
    """Return an objection if a box exceeds an image of these columns and rows; else None."""
    if box.left >= 0 and box.top >= 0 and box.right <= columns and box.bottom <= rows:
        return None
    return f"the box leaves the film, which has {columns} x {rows} pixels"


def _visible(low: float, high: float, *, size: int) -> tuple[float, float]:
    """Clip an interval to 0..size and keep it at least one pixel wide."""
    low, high = min(max(low, 0.0), size), min(max(high, 0.0), size)
    if high - low >= 1.0:
        return low, high
    low = min(max((low + high) / 2 - 0.5, 0.0), size - 1.0)
    return low, low + 1.0
