"""The presentation state of a film: draws the boxes over the untouched image (PS3.3 A.33.1, Grayscale Softcopy).

The state replaces the image's own grayscale pipeline (PS3.3 C.11). So it copies the film's modality LUT and window, and
inverts MONOCHROME1 films, which would otherwise be shown as negatives. Boxes, research label and analyzed square each
have a layer, so that a viewer can hide the boxes, and the square is dimmer than the rest.

Labels stand beside their boxes on the darkest free ground, because dcmtk, and so DICOMscope, draws plain white text.

A state depends on its film alone: other films of the study and their order change neither its UID nor its bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from zoneinfo import ZoneInfo

import numpy as np
from pydicom.dataset import Dataset
from pydicom.uid import GrayscaleSoftcopyPresentationStateStorage

from node.dicom import attributes, identity
from node.domain import Box, Film, Report
from node.outputs import document, gsps_grayscale, impression, wording
from node.outputs.gsps_graphics import DrawnLayer, Pen
from node.outputs.label_placement import Ground, place
from node.outputs.source import Picture, Source

SERIES_NUMBER = 9002
SOP_CLASS = GrayscaleSoftcopyPresentationStateStorage
BOXES, LABEL, SQUARE = "AI BOXES", "AI LABEL", "AI SQUARE"
_WHITE, _GRAY = 0xFFFF, 0xB000
_SQUARE_LINE = "Square: analyzed part"
_LETTER = 0.5
"""Mean width of a letter divided by the height of a line. DICOMscope 3.6 draws letters of 0.37 lines."""


def write(report: Report, sources: Mapping[str, Source], zone: ZoneInfo) -> list[Dataset]:
    """Write one presentation state for each film that was read.

    sources: all films by SOP Instance UID
    Raises ValueError for a box outside its film.
    """
    wording.check(report)
    return [_state(report, film, sources[film.source], zone) for film in report.read_films]


def _state(report: Report, film: Film, received: Source, zone: ZoneInfo) -> Dataset:
    source = received.header
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
    dataset.GraphicAnnotationSequence = list(_annotations(film, received.picture()))
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


def _annotations(film: Film, picture: Picture | None) -> Iterator[Dataset]:
    """Yield the annotations of square and label, and of the boxes if there are any (PS3.3 C.10.5)."""
    line = max(wording.size(film)[1] / 40, 1.0)
    pen = Pen(line=line)
    yield DrawnLayer(graphics=[pen.rectangle(wording.analyzed(film))]).annotation(SQUARE)
    heading = _heading(film, line, picture)
    yield DrawnLayer(texts=[pen.text(value, where) for value, where in heading]).annotation(LABEL)
    if wording.reported(film):
        yield _boxes(film, pen, line, picture, heading=[where for _, where in heading]).annotation(BOXES)


def _heading(film: Film, line: float, picture: Picture | None) -> list[tuple[str, Box]]:
    """Return the lines of the research label with their places, one line from the edges of the film.

    line: height of a line in pixels
    They stand in the darkest corner, or in the lower left one if the picture is unknown.
    """
    columns, rows = wording.size(film)
    nothing = () if wording.reported(film) else wording.NOTHING_NEAR_LINES
    lines = (identity.RESEARCH_LABEL, _SQUARE_LINE, *wording.cautions(film), *nothing)
    inset = min(line, columns / 4)
    width = min(_LETTER * line * max(map(len, lines)), columns - 2 * inset)
    bottom = max(rows - (len(lines) + 1) * line, 0.0)
    top = min(line, bottom)
    corners = [(x, y) for y in (bottom, top) for x in (inset, columns - inset - width)]
    if picture is not None:
        blocks = np.array([(x, y, x + width, y + len(lines) * line) for x, y in corners])
        corners = [corners[int(np.argmin(Ground(picture).brightness(blocks)))]]
    left, first = corners[0]
    tops = [min(first + number * line, rows - line) for number in range(len(lines))]
    places = [Box(left=left, top=y, right=left + width, bottom=y + line) for y in tops]
    return list(zip(lines, places, strict=True))


def _boxes(film: Film, pen: Pen, line: float, picture: Picture | None, *, heading: Sequence[Box]) -> DrawnLayer:
    """Draw the boxes of a film and their labels, the labels above or below the lines of the research label."""
    findings = impression.by_urgency(wording.reported(film))
    drawn = [(finding, name, box) for finding in findings for name, box in wording.named_boxes(finding)]
    drawing = DrawnLayer()
    for number, (finding, name, box) in enumerate(drawn, 1):
        tracking = (name, box.tracking_uid)
        if finding.state in wording.MARKS:
            compound, segments = pen.dashed(box.box, tracking, number=number)
            drawing.compounds.append(compound)
            drawing.graphics.extend(segments)
        else:
            drawing.graphics.append(pen.rectangle(box.box, tracking))
    texts = [wording.label(finding, box) for finding, _, box in drawn]
    places = _places(film, [box.box for _, _, box in drawn], texts, line, picture, heading=heading)
    drawing.texts.extend(pen.text(text, where) for text, where in zip(texts, places, strict=True))
    return drawing


def _places(
    film: Film,
    boxes: Sequence[Box],
    texts: Sequence[str],
    line: float,
    picture: Picture | None,
    *,
    heading: Sequence[Box],
) -> list[Box]:
    """Return the places of the labels, in the part of the film above or below the research label.

    They keep off the edges, because DICOMscope 3.6 begins a line up to 5 pixels left of its place.
    """
    columns, rows = wording.size(film)
    margin = int(min(line / 2, columns / 4))
    first, last = heading[0].top, heading[-1].bottom
    low, high = (0, math.floor(first)) if first > rows - last else (math.ceil(last), rows)
    low = min(low, rows - math.ceil(line))
    part = None if picture is None else picture[low:high, margin : columns - margin]
    places = place(
        [_moved(box, -margin, -low) for box in boxes],
        [(_LETTER * line * len(text), line) for text in texts],
        columns=columns - 2 * margin,
        rows=max(high - low, line),
        ground=Ground(part) if part is not None and part.size else None,
    )
    return [_moved(where, margin, low) for where in places]


def _moved(box: Box, x: float, y: float) -> Box:
    return Box(left=box.left + x, top=box.top + y, right=box.right + x, bottom=box.bottom + y)
