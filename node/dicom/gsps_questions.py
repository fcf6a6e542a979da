"""The questions of a presentation state: each graphic with the texts beside it (PS3.3 C.10.5).

A text belongs to the nearest graphic on its film, whatever their layers, because workstations put all texts of a film
into one annotation. A text on a film without graphics is a question of its own. Graphics with one tracking UID, or of
one compound graphic, are one: a dashed box is drawn as its segments.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from pydicom.dataset import Dataset

from node.dicom import attributes, identity
from node.dicom.marked_question import LeftOut, MarkedQuestion, Point, edges, pairs, surround, words

_MOST_LOOKED_AT: Final = 1000
"""Graphics and texts of one state; each text is compared with each graphic."""
_COMPOUND: Final = frozenset(("RECTANGLE", "ELLIPSE", "MULTILINE", "POLYLINE"))


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnText:
    """A text of an annotation; anchor: where it points at or stands, None if that is not known."""

    text: str
    anchor: Point | None


@dataclass(slots=True)
class Annotated:
    """The graphics and texts on one film.

    corners: of a rectangle around each graphic, by its tracking UID or another key of its own
    trackings: tracking ID and UID of each of them
    """

    corners: dict[str, list[Point]] = field(default_factory=dict)
    trackings: dict[str, tuple[str, str]] = field(default_factory=dict)
    texts: list[DrawnText] = field(default_factory=list)


def questions(state: Dataset) -> Iterator[MarkedQuestion | LeftOut]:
    """Yield the questions of a presentation state in their order, and its parts that are none."""
    films = _films(state)
    found = {film: Annotated() for film in films}
    items = _annotations(state, films)
    for film, frame, item in itertools.islice(items, _MOST_LOOKED_AT):
        yield from _add(item, frame, found.setdefault(film, Annotated()))
    if next(items, None) is not None:
        yield LeftOut(reason=f"only the first {_MOST_LOOKED_AT} graphics and texts are looked at")
    for film, annotated in found.items():
        yield from _of_film(film, annotated)


def distance(point: Point, around: tuple[float, float, float, float]) -> float:
    """Return how far a point lies outside a rectangle, by its edges, in pixels; 0 within it."""
    x, y = point
    left, top, right, bottom = around
    return math.hypot(max(left - x, 0.0, x - right), max(top - y, 0.0, y - bottom))


def _annotations(state: Dataset, films: list[str]) -> Iterator[tuple[str, _Frame, Dataset]]:
    """Yield each graphic and text with its film; an annotation that names no film is on all of them (PS3.3 C.10.5)."""
    for annotation in attributes.items(state, "GraphicAnnotationSequence"):
        if attributes.text(annotation, "GraphicLayer") == identity.ANALYZED_LAYER:
            continue  # the node's own square, in a state of the node that was changed and saved again
        for film in _images(annotation) or films:
            frame = _Frame(state, film)
            yield from ((film, frame, item) for item in _drawn_items(annotation))


def _films(state: Dataset) -> list[str]:
    return [film for series in attributes.items(state, "ReferencedSeriesSequence") for film in _images(series)]


def _images(item: Dataset) -> list[str]:
    return attributes.references(item, "ReferencedImageSequence")


def _drawn_items(annotation: Dataset) -> Iterator[Dataset]:
    """Yield graphics, then texts. A compound graphic is left out if the same is drawn as simple graphics."""
    graphics = attributes.items(annotation, "GraphicObjectSequence")
    simple = {attributes.text(graphic, "CompoundGraphicInstanceID") for graphic in graphics}
    yield from graphics
    for compound in attributes.items(annotation, "CompoundGraphicSequence"):
        if attributes.text(compound, "CompoundGraphicInstanceID") not in simple:
            yield compound
    yield from attributes.items(annotation, "TextObjectSequence")


def _add(item: Dataset, frame: _Frame, annotated: Annotated) -> Iterator[LeftOut]:
    """Add a graphic or a text to its film's drawings, or yield why it cannot be used."""
    if "UnformattedTextValue" in item:
        text = attributes.text(item, "UnformattedTextValue")
        annotated.texts.append(DrawnText(text=text, anchor=_anchor(item, frame)))
        return
    is_compound = "CompoundGraphicType" in item
    kind = attributes.text(item, "CompoundGraphicType" if is_compound else "GraphicType")
    if is_compound and (kind not in _COMPOUND or attributes.number(item, "RotationAngle")):
        yield LeftOut(reason="a compound graphic is of a kind that is not read; draw a rectangle")
        return
    units = attributes.text(item, "CompoundGraphicUnits" if is_compound else "GraphicAnnotationUnits")
    points = frame.pixels(pairs(item, "GraphicData"), units)
    if isinstance(points, LeftOut):
        yield points
        return
    box = surround("POLYLINE" if is_compound else kind, points)
    if isinstance(box, LeftOut) and not _is_part(item):
        yield box
        return
    tracking = (attributes.text(item, "TrackingID"), attributes.text(item, "TrackingUID"))
    compound = attributes.text(item, "CompoundGraphicInstanceID")
    key = tracking[1] or (f"compound {compound}" if compound else f"alone {len(annotated.corners)}")
    if isinstance(box, LeftOut):
        corners = points if all(math.isfinite(number) for point in points for number in point) else []
    else:
        corners = [(box.left, box.top), (box.right, box.bottom)]
    if corners:
        annotated.corners.setdefault(key, []).extend(corners)
        annotated.trackings.setdefault(key, tracking)


def _is_part(item: Dataset) -> bool:
    """Whether a graphic may be a segment of a larger one, so that it needs no area."""
    return bool(attributes.text(item, "TrackingUID") or attributes.text(item, "CompoundGraphicInstanceID"))


def _of_film(film: str, annotated: Annotated) -> Iterator[MarkedQuestion | LeftOut]:
    places = {key: edges("POLYLINE", corners) for key, corners in annotated.corners.items()}
    said: dict[str, list[str]] = {key: [] for key in places}
    for written in annotated.texts:
        if not places:
            if (prompt := words(written.text)) is not None:
                yield MarkedQuestion(film=film, box=None, prompt=prompt)
            continue
        place = written.anchor
        nearest = next(iter(places)) if place is None else min(places, key=lambda key: distance(place, places[key]))
        said[nearest].append(written.text)
    for key, corners in annotated.corners.items():
        box = surround("POLYLINE", corners)
        if isinstance(box, LeftOut):
            yield box
        else:
            yield MarkedQuestion(film=film, box=box, prompt=words(*said[key]), tracking=annotated.trackings[key])


def _anchor(text: Dataset, frame: _Frame) -> Point | None:
    """Return where a text points at, or where it stands; None if that is not known."""
    anchor = frame.pixels(pairs(text, "AnchorPoint"), attributes.text(text, "AnchorPointAnnotationUnits"))
    if isinstance(anchor, list) and anchor:
        return anchor[0]
    corners = [
        *pairs(text, "BoundingBoxTopLeftHandCorner"),
        *pairs(text, "BoundingBoxBottomRightHandCorner"),
    ]
    placed = frame.pixels(corners, attributes.text(text, "BoundingBoxAnnotationUnits"))
    if not isinstance(placed, list) or len(placed) != 2:
        return None
    (left, top), (right, bottom) = placed
    return (left + right) / 2, (top + bottom) / 2


class _Frame:
    """Turns the coordinates of annotations on one film into pixels of the stored film."""

    def __init__(self, state: Dataset, film: str) -> None:
        rotation = attributes.number(state, "ImageRotation") or 0.0
        self._is_turned = bool(rotation) or attributes.text(state, "ImageHorizontalFlip") == "Y"
        areas = attributes.items(state, "DisplayedAreaSelectionSequence")
        own = [area for area in areas if not (named := _images(area)) or film in named]
        self._area = own[0] if own else Dataset()

    def pixels(self, points: list[Point], units: str) -> list[Point] | LeftOut:
        """Return points in pixels, 0 at the outer edge of the first pixel (PS3.3 C.10.5.1.1, C.10.4)."""
        if units == "PIXEL":
            return points
        if units != "DISPLAY":
            return LeftOut(reason="a graphic has units that are neither PIXEL nor DISPLAY")
        first = pairs(self._area, "DisplayedAreaTopLeftHandCorner")
        last = pairs(self._area, "DisplayedAreaBottomRightHandCorner")
        if self._is_turned or len(first) != 1 or len(last) != 1:
            return LeftOut(reason="a graphic is placed on a display that is turned or not described")
        (left, top), (right, bottom) = first[0], last[0]
        return [(left - 1 + x * (right - left + 1), top - 1 + y * (bottom - top + 1)) for x, y in points]
