"""The presentation state of a film: draws the boxes over the untouched image (PS3.3 A.33.1, Grayscale Softcopy).

The state replaces the image's own gray pipeline (PS3.3 C.11), so it carries the source's modality LUT and window, and
inverts MONOCHROME1 films: without that they would show as negatives. Boxes stand in one layer, the research label and
the analyzed square in another, so that a viewer can switch the boxes off.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from zoneinfo import ZoneInfo

from pydicom.dataset import Dataset
from pydicom.uid import GrayscaleSoftcopyPresentationStateStorage

from node import identity
from node.domain import Box, Film, Report
from node.outputs import document, words
from node.outputs.display import describe_grayscale, pixel_shape
from node.outputs.labels import place
from node.outputs.patient import long_text

SERIES_NUMBER = 9002
BOXES, SQUARE = "AI BOXES", "AI LABEL"
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
        instance_number=report.films.index(film) + 1,
    )
    dataset.BodyPartExamined = "CHEST"
    dataset.ContentLabel = "AI RESEARCH"
    dataset.ContentDescription = f"{identity.RESEARCH_LABEL}: boxes"
    dataset.ContentCreatorName = ""
    dataset.PresentationCreationDate, dataset.PresentationCreationTime = document.local_time(report, zone)
    dataset.ReferencedSeriesSequence = [_reference(source)]
    dataset.DisplayedAreaSelectionSequence = [_displayed_area(film, source)]
    describe_grayscale(source, dataset)
    dataset.GraphicLayerSequence = [
        _layer(SQUARE, order=1, gray=_GRAY, description="Research label and analyzed square"),
        _layer(BOXES, order=2, gray=_WHITE, description="Boxes of present and indeterminate findings"),
    ]
    dataset.GraphicAnnotationSequence = list(_annotations(report, film))
    document.seal(dataset, report, sources=[film.source], zone=zone)
    return dataset


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
    columns, rows = words.size(film)
    line = max(rows / 40, 1.0)
    square = _rectangle(words.analyzed(film))
    if words.nothing_near(report):
        # The same square stands in the report as a group, under the same tracking UID.
        square.TrackingID = words.ANALYZED_SQUARE
        square.TrackingUID = words.analyzed_tracking_uid(report, film)
    heading = Box(left=0.0, top=max(rows - line, 0.0), right=columns, bottom=rows)
    about = Dataset()
    about.GraphicLayer = SQUARE
    about.TextObjectSequence = [_text(f"{identity.RESEARCH_LABEL} - square: analyzed part", heading)]
    about.GraphicObjectSequence = [square]
    yield about

    drawn = [(finding, name, box) for finding in words.reported(film) for name, box in words.named_boxes(finding)]
    if not drawn:
        return
    texts = [words.label(finding) for finding, _, _ in drawn]
    places = place(
        [box.box for _, _, box in drawn],
        [(min(0.6 * line * len(text), columns), line) for text in texts],
        columns=columns,
        rows=rows,
    )
    boxes = Dataset()
    boxes.GraphicLayer = BOXES
    boxes.TextObjectSequence = [_text(text, where) for text, where in zip(texts, places, strict=True)]
    boxes.GraphicObjectSequence = []
    for _, name, box in drawn:
        rectangle = _rectangle(box.box)
        rectangle.TrackingID = name
        rectangle.TrackingUID = box.tracking_uid
        boxes.GraphicObjectSequence.append(rectangle)
    yield boxes


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
