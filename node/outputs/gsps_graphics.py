"""The graphic and text objects of a presentation state, with their styles (PS3.3 C.10.5).

The box of a present finding is one closed line of five points. A box to be reviewed is drawn as its dashes, lines of
two points, because dcmtk, and so DICOMscope, drops compound graphics and styles. Closed line and dashes have the
tracking UID of their box, so the box is the bounding box of all points with one tracking UID, whatever the state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from highdicom.pr import GraphicAnnotation, GraphicLayer, GraphicObject, TextObject
from pydicom.dataelem import DataElement
from pydicom.dataset import Dataset

from models.contract import Box
from node.outputs import highdicom_gaps
from node.outputs.patient import long_text

_WHITE, _BLACK = [0xFFFF, 0x8080, 0x8080], [0, 0x8080, 0x8080]
"""PCS-Values (PS3.3 C.10.7.1.1)."""

_THICKNESS = 2.0
_FEWEST_DASHES, _MOST_DASHES = 2, 5

Points = Sequence[tuple[float, float]]
Tracking = tuple[str, str]
"""Tracking ID and UID of a box."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnLayer:
    """The texts and graphics of one layer."""

    texts: list[TextObject] = field(default_factory=list)
    graphics: list[GraphicObject] = field(default_factory=list)

    def annotation(self, layer: GraphicLayer, film: Dataset) -> GraphicAnnotation:
        """Return the item of the Graphic Annotation Sequence; film: `document.evidence` with its size."""
        return GraphicAnnotation([film], layer, graphic_objects=self.graphics, text_objects=self.texts)


class GraphicObjects:
    """Makes the objects of one presentation state; their styles are made once."""

    def __init__(self, *, line: float, columns: int, rows: int) -> None:
        """line: height of a line of text, in pixels of the film; columns, rows: the film's size."""
        self._line = line
        self._columns, self._rows = columns, rows
        self._text_style = _sequence("TextStyleSequence", _text_style(line))
        self._line_style = _sequence("LineStyleSequence", _line_style(line))

    def text(self, value: str, where: Box) -> TextObject:
        """Write a text at the left edge of its place, which is clipped at the film's edges."""
        left, top, right, bottom = where.edges
        place = (max(left, 0.0), max(top, 0.0), min(right, float(self._columns)), min(bottom, float(self._rows)))
        item = TextObject(long_text(value, 1024), "PIXEL", bounding_box=place, text_justification="LEFT")
        highdicom_gaps.style(item, self._text_style)
        return item

    def rectangle(self, box: Box, tracking: Tracking | None = None) -> GraphicObject:
        """Draw a box as a closed line, clockwise from top left."""
        left, top, right, bottom = box.edges
        return self._polyline(((left, top), (right, top), (right, bottom), (left, bottom), (left, top)), tracking)

    def dashed(self, box: Box, tracking: Tracking) -> list[GraphicObject]:
        """Draw a box as its dashes."""
        dashes = [self._polyline(points, tracking) for points in _segments(box, 2 * self._line)]
        for dash in dashes:
            highdicom_gaps.leave_open(dash)
        return dashes

    def _polyline(self, points: Points, tracking: Tracking | None) -> GraphicObject:
        name, uid = (None, None) if tracking is None else tracking
        item = GraphicObject("POLYLINE", np.array(points), "PIXEL", tracking_id=name, tracking_uid=uid)
        highdicom_gaps.style(item, self._line_style)
        return item


def _segments(box: Box, length: float) -> Iterator[Points]:
    """Yield the dashes of a box, with gaps of the same length; each side begins and ends with a dash.

    length: approximate length of a dash; a side has 2 to 5 dashes
    """
    left, top, right, bottom = box.edges
    for start, end in _dashes(left, right, length):
        yield (start, top), (end, top)
        yield (start, bottom), (end, bottom)
    for start, end in _dashes(top, bottom, length):
        yield (left, start), (left, end)
        yield (right, start), (right, end)


def _dashes(low: float, high: float, length: float) -> Iterator[tuple[float, float]]:
    count = min(max(round((high - low) / (2 * length)), _FEWEST_DASHES), _MOST_DASHES)
    part = (high - low) / (2 * count - 1)
    for number in range(count):
        yield low + 2 * number * part, high if number == count - 1 else low + (2 * number + 1) * part


def _sequence(keyword: str, item: Dataset) -> DataElement:
    holder = Dataset()
    setattr(holder, keyword, [item])
    return holder[keyword]


def _text_style(line: float) -> Dataset:
    """White letters with a black outline."""
    style = Dataset()
    style.CSSFontName = "sans-serif"
    style.TextColorCIELabValue = _WHITE
    style.HorizontalAlignment = "LEFT"
    style.VerticalAlignment = "TOP"
    style.Underlined = style.Bold = style.Italic = "N"
    _add_shadow(style, line)
    return style


def _line_style(line: float) -> Dataset:
    """Return the style of a white line with a black shadow."""
    style = Dataset()
    style.PatternOnColorCIELabValue = _WHITE
    style.PatternOnOpacity = 1.0
    style.LineThickness = _THICKNESS
    style.LineDashingStyle = "SOLID"
    _add_shadow(style, line)
    return style


def _add_shadow(style: Dataset, line: float) -> None:
    style.ShadowStyle = "OUTLINED"
    style.ShadowOffsetX = style.ShadowOffsetY = line / 20
    style.ShadowColorCIELabValue = _BLACK
    style.ShadowOpacity = 1.0
