"""The presentation state of a film: draws the boxes over the untouched image (PS3.3 A.33.1, Grayscale Softcopy).

The state replaces the image's own grayscale pipeline (PS3.3 C.11). So it copies the film's modality LUT and window, and
inverts MONOCHROME1 films, which would otherwise be shown as negatives. Boxes, research label and analyzed square each
have a layer, so that a viewer can hide the boxes, and the square is dimmer than the rest.

A state depends on its film alone: other films of the study and their order change neither its UID nor its bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from zoneinfo import ZoneInfo

from pydicom.dataset import Dataset
from pydicom.uid import GrayscaleSoftcopyPresentationStateStorage

from node.dicom import attributes, identity
from node.domain import Box, Film, Report
from node.outputs import document, gsps_grayscale, wording
from node.outputs.label_placement import place
from node.outputs.patient import long_text
from node.outputs.source import Source

SERIES_NUMBER = 9002
SOP_CLASS = GrayscaleSoftcopyPresentationStateStorage
BOXES, LABEL, SQUARE = "AI BOXES", "AI LABEL", "AI SQUARE"
_WHITE, _GRAY = 0xFFFF, 0xB000


def write(report: Report, sources: Mapping[str, Source], zone: ZoneInfo) -> list[Dataset]:
    """Write one presentation state for each film that was read.

    sources: all films by SOP Instance UID
    Raises ValueError for a box outside its film.
    """
    wording.check(report)
    return [_state(report, film, sources[film.source].header, zone) for film in report.read_films]


def _state(report: Report, film: Film, source: Dataset, zone: ZoneInfo) -> Dataset:
    dataset = document.begin(
        report,
        source,
        sop_class=SOP_CLASS,
        modality="PR",
        series_number=SERIES_NUMBER,
        instance_number=_instance_number(source),
    )
    dataset.BodyPartExamined = "CHEST"
    dataset.ContentLabel = "AI RESEARCH"
    dataset.ContentDescription = (
        f"{identity.RESEARCH_LABEL}: {'boxes' if wording.reported(film) else 'no finding drawn'}"
    )
    dataset.ContentCreatorName = ""
    dataset.PresentationCreationDate, dataset.PresentationCreationTime = document.local_time(report, zone)
    dataset.ReferencedSeriesSequence = [_reference(source)]
    dataset.DisplayedAreaSelectionSequence = [_displayed_area(film, source)]
    gsps_grayscale.describe(source, dataset)
    dataset.GraphicLayerSequence = [
        _layer(SQUARE, order=1, gray=_GRAY, description="Analyzed square"),
        _layer(LABEL, order=2, gray=_WHITE, description="Research label"),
    ]
    if wording.reported(film):
        boxes = _layer(BOXES, order=3, gray=_WHITE, description="Boxes of reported findings")
        dataset.GraphicLayerSequence.append(boxes)
    dataset.GraphicAnnotationSequence = list(_annotations(film))
    document.seal(dataset, report, sources=[film.source], zone=zone)
    return dataset


def _instance_number(source: Dataset) -> int:
    """Return the film's instance number, or 1: a position among the films would change when another film arrives."""
    number = attributes.whole(source, "InstanceNumber")
    return number if number is not None and 0 < number < 2**31 else 1


def _reference(source: Dataset) -> Dataset:
    """Reference the film that the state is for (PS3.3 C.11.11)."""
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
    area.DisplayedAreaBottomRightHandCorner = list(wording.size(film))
    area.PresentationSizeMode = "SCALE TO FIT"
    area.PresentationPixelAspectRatio = list(gsps_grayscale.pixel_shape(source))
    return area


def _layer(name: str, *, order: int, gray: int, description: str) -> Dataset:
    layer = Dataset()
    layer.GraphicLayer = name
    layer.GraphicLayerOrder = order
    layer.GraphicLayerRecommendedDisplayGrayscaleValue = gray
    layer.GraphicLayerDescription = description
    return layer


def _annotations(film: Film) -> Iterator[Dataset]:
    """Yield the annotations of square and label, and of the boxes if there are any (PS3.3 C.10.5)."""
    line = max(wording.size(film)[1] / 40, 1.0)
    yield _annotation(SQUARE, graphics=[_rectangle(wording.analyzed(film))])
    heading = dict(_heading(film, line))
    yield _annotation(LABEL, texts=[_text(value, where) for value, where in heading.items()])
    if wording.reported(film):
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
    """Yield the lines of the research label with their places, one line from the edges; line: its height in pixels."""
    columns, rows = wording.size(film)
    label = f"{identity.RESEARCH_LABEL} - square: analyzed part"
    lines = (label, *(() if wording.reported(film) else wording.NOTHING_NEAR_LINES))
    inset = min(line, columns / 4)
    for number, value in enumerate(lines):
        top = max(rows - (len(lines) - number + 1) * line, 0.0)
        yield value, Box(left=inset, top=top, right=columns - inset, bottom=top + line)


def _boxes(film: Film, line: float, *, bottom: float) -> Dataset:
    """Draw the boxes of a film and their labels, the labels above the row `bottom` where the research label begins."""
    columns, _ = wording.size(film)
    drawn = [(finding, name, box) for finding in wording.reported(film) for name, box in wording.named_boxes(finding)]
    texts = [wording.label(finding, box) for finding, _, box in drawn]
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
    """Encode a box as a closed line in pixels, clockwise from top left."""
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
