"""The presentation state of a film: draws the boxes over the untouched image (PS3.3 A.33.1, Grayscale Softcopy).

The state replaces the image's own gray pipeline (PS3.3 C.11), so it carries the source's modality LUT and window, and
inverts MONOCHROME1 films: without that they would show as negatives. Boxes, research label and analyzed square stand in
a layer each, so that a viewer can switch the boxes off and the square is dimmer than the rest.

A state speaks of its film alone: which other films the study has, and in which order, changes neither its UID nor its
bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from zoneinfo import ZoneInfo

from pydicom.dataset import Dataset
from pydicom.uid import GrayscaleSoftcopyPresentationStateStorage

from node import attributes, identity
from node.domain import Box, Film, Report
from node.outputs import document, words
from node.outputs.display import describe_grayscale, pixel_shape
from node.outputs.labels import place
from node.outputs.patient import long_text

SERIES_NUMBER = 9002
BOXES, LABEL, SQUARE = "AI BOXES", "AI LABEL", "AI SQUARE"
_WHITE, _GRAY = 0xFFFF, 0xB000


def write(report: Report, sources: Mapping[str, Dataset], zone: ZoneInfo) -> list[Dataset]:
    """Write one presentation state per film that was read.

    sources: header of each film's object by SOP Instance UID
    Raises ValueError for a box outside its film.
    """
    words.check(report)
    return [_state(report, film, sources[film.source], zone) for film in report.read_films]


def _state(report: Report, film: Film, source: Dataset, zone: ZoneInfo) -> Dataset:
    dataset = document.begin(
        report,
        source,
        sop_class=GrayscaleSoftcopyPresentationStateStorage,
        modality="PR",
        series_number=SERIES_NUMBER,
        instance_number=_instance_number(source),
    )
    dataset.BodyPartExamined = "CHEST"
    dataset.ContentLabel = "AI RESEARCH"
    dataset.ContentDescription = f"{identity.RESEARCH_LABEL}: {'boxes' if words.reported(film) else 'no finding drawn'}"
    dataset.ContentCreatorName = ""
    dataset.PresentationCreationDate, dataset.PresentationCreationTime = document.local_time(report, zone)
    dataset.ReferencedSeriesSequence = [_reference(source)]
    dataset.DisplayedAreaSelectionSequence = [_displayed_area(film, source)]
    describe_grayscale(source, dataset)
    dataset.GraphicLayerSequence = [
        _layer(SQUARE, order=1, gray=_GRAY, description="Analyzed square"),
        _layer(LABEL, order=2, gray=_WHITE, description="Research label"),
    ]
    if words.reported(film):
        boxes = _layer(BOXES, order=3, gray=_WHITE, description="Boxes of present and indeterminate findings")
        dataset.GraphicLayerSequence.append(boxes)
    dataset.GraphicAnnotationSequence = list(_annotations(report, film))
    document.seal(dataset, report, sources=[film.source], zone=zone)
    return dataset


def _instance_number(source: Dataset) -> int:
    """Number a state as its film is numbered, or 1: a place among the films would change when another one arrives."""
    number = attributes.whole(source, "InstanceNumber")
    return number if number is not None and 0 < number < 2**31 else 1


def _reference(source: Dataset) -> Dataset:
    """Name the film that the state is for (PS3.3 C.11.11)."""
    instance, series = Dataset(), Dataset()
    instance.ReferencedSOPClassUID = source.SOPClassUID
    instance.ReferencedSOPInstanceUID = source.SOPInstanceUID
    series.SeriesInstanceUID = source.SeriesInstanceUID
    series.ReferencedImageSequence = [instance]
    return series


def _displayed_area(film: Film, source: Dataset) -> Dataset:
    """Show the whole film (PS3.3 C.10.4): corners are pixels counted from 1."""
    area = Dataset()
    area.DisplayedAreaTopLeftHandCorner = [1, 1]
    area.DisplayedAreaBottomRightHandCorner = list(words.size(film))
    area.PresentationSizeMode = "SCALE TO FIT"
    area.PresentationPixelAspectRatio = list(pixel_shape(source))
    return area


def _layer(name: str, *, order: int, gray: int, description: str) -> Dataset:
    layer = Dataset()
    layer.GraphicLayer = name
    layer.GraphicLayerOrder = order
    layer.GraphicLayerRecommendedDisplayGrayscaleValue = gray
    layer.GraphicLayerDescription = description
    return layer


def _annotations(report: Report, film: Film) -> Iterator[Dataset]:
    """Draw square and label, then the boxes if there are any (PS3.3 C.10.5)."""
    line = max(words.size(film)[1] / 40, 1.0)
    square = _rectangle(words.analyzed(film))
    if not words.reported(film):
        # Where no film has a finding, the same square stands in the report as a group, under the same tracking UID.
        square.TrackingID = words.ANALYZED_SQUARE
        square.TrackingUID = words.analyzed_tracking_uid(report, film)
    yield _annotation(SQUARE, graphics=[square])
    heading = dict(_heading(film, line))
    yield _annotation(LABEL, texts=[_text(value, where) for value, where in heading.items()])
    if words.reported(film):
        yield _boxes(film, line, bottom=min(where.top for where in heading.values()))


def _annotation(layer: str, *, texts: Sequence[Dataset] = (), graphics: Sequence[Dataset] = ()) -> Dataset:
    item = Dataset()
    item.GraphicLayer = layer
    if texts:
        item.TextObjectSequence = list(texts)
    if graphics:
        item.GraphicObjectSequence = list(graphics)
    return item


def _heading(film: Film, line: float) -> Iterator[tuple[str, Box]]:
    """Yield the lines of the research label, a line's height away from the film's edges; line: its height in pixels."""
    columns, rows = words.size(film)
    label = f"{identity.RESEARCH_LABEL} - square: analyzed part"
    lines = (label, *(() if words.reported(film) else words.NOTHING_NEAR_LINES))
    inset = min(line, columns / 4)
    for number, value in enumerate(lines):
        top = max(rows - (len(lines) - number + 1) * line, 0.0)
        yield value, Box(left=inset, top=top, right=columns - inset, bottom=top + line)


def _boxes(film: Film, line: float, *, bottom: float) -> Dataset:
    """Draw the boxes of a film and their labels, none below the row `bottom` where the research label begins."""
    columns, _ = words.size(film)
    drawn = [(finding, name, box) for finding in words.reported(film) for name, box in words.named_boxes(finding)]
    texts = [words.label(finding) for finding, _, _ in drawn]
    places = place(
        [box.box for _, _, box in drawn],
        [(min(0.6 * line * len(text), columns), line) for text in texts],
        columns=columns,
        rows=max(bottom, line),
    )
    rectangles = []
    for _, name, box in drawn:
        rectangle = _rectangle(box.box)
        rectangle.TrackingID = name
        rectangle.TrackingUID = box.tracking_uid
        rectangles.append(rectangle)
    labels = [_text(text, where) for text, where in zip(texts, places, strict=True)]
    return _annotation(BOXES, texts=labels, graphics=rectangles)


def _rectangle(box: Box) -> Dataset:
    """Draw a box as a closed line in pixels, clockwise from top left."""
    left, top, right, bottom = box.edges
    item = Dataset()
    item.GraphicAnnotationUnits = "PIXEL"
    item.GraphicDimensions = 2
    item.NumberOfGraphicPoints = 5
    item.GraphicData = [left, top, right, top, right, bottom, left, bottom, left, top]
    item.GraphicType = "POLYLINE"
    item.GraphicFilled = "N"
    return item


def _text(value: str, where: Box) -> Dataset:
    item = Dataset()
    item.BoundingBoxAnnotationUnits = "PIXEL"
    item.UnformattedTextValue = long_text(value, 1024)
    item.BoundingBoxTopLeftHandCorner = [where.left, where.top]
    item.BoundingBoxBottomRightHandCorner = [where.right, where.bottom]
    item.BoundingBoxTextHorizontalJustification = "LEFT"
    return item
