"""The presentation state of a film: draws the boxes over the untouched image (PS3.3 A.33.1, Grayscale Softcopy).

The state replaces the image's own grayscale pipeline (PS3.3 C.11). So it copies the film's modality LUT and window, and
inverts MONOCHROME1 films, which would otherwise be shown as negatives. Boxes, research label and analyzed square each
have a layer, so that a viewer can hide the boxes, and the square is dimmer than the rest.

Labels stand beside their boxes on the darkest free ground, because dcmtk, and so DICOMscope, draws plain text. It is
white; where the ground is bright nevertheless, it is black, in a layer of its own.

A state depends on its film alone: other films of the study and their order change neither its UID nor its bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final
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
BOXES, LABEL, SQUARE, DARK = "AI BOXES", "AI LABEL", "AI SQUARE", "AI DARK"
LAYERS: Final[Mapping[str, tuple[int, str]]] = {
    SQUARE: (0xB000, "Analyzed square"),
    LABEL: (0xFFFF, "Research label"),
    BOXES: (0xFFFF, "Boxes of reported findings"),
    DARK: (0, "Texts on bright ground"),
}
"""Gray value, of 65535, and description of each layer, from back to front."""
_BRIGHT: Final = 0.25
"""Brightness of the ground above which a text is black: that of gray 180 of 255, on which white has a contrast of 2."""
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
    drawn = _drawn(film, received.picture())
    dataset.GraphicLayerSequence = [_layer(name, order=order) for order, name in enumerate(drawn, 1)]
    dataset.GraphicAnnotationSequence = [layer.annotation(name) for name, layer in drawn.items()]
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


def _layer(name: str, *, order: int) -> Dataset:
    """Describe a layer (PS3.3 C.10.7)."""
    layer = Dataset()
    layer.GraphicLayer = name
    layer.GraphicLayerOrder = order
    layer.GraphicLayerRecommendedDisplayGrayscaleValue, layer.GraphicLayerDescription = LAYERS[name]
    return layer


def _drawn(film: Film, picture: Picture | None) -> dict[str, DrawnLayer]:
    """Draw square and research label, and boxes with their labels if there are any; by layer, from back to front."""
    line = max(wording.size(film)[1] / 40, 1.0)
    pen, ground = Pen(line=line), None if picture is None else Ground(picture)
    heading = _heading(film, line, ground)
    layers = {SQUARE: DrawnLayer(graphics=[pen.rectangle(wording.analyzed(film))])}
    texts = [(LABEL, heading)]
    if wording.reported(film):
        layers[BOXES], labels = _boxes(film, pen, line, picture, heading=[where for _, where in heading])
        texts.append((BOXES, labels))
    for layer, lines in texts:
        for value, where in lines:
            is_dark = ground is not None and ground.brightness(np.array([where.edges]))[0] > _BRIGHT
            layers.setdefault(DARK if is_dark else layer, DrawnLayer()).texts.append(pen.text(value, where))
    return {name: layers[name] for name in LAYERS if name in layers}


def _heading(film: Film, line: float, ground: Ground | None) -> list[tuple[str, Box]]:
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
    if ground is not None:
        blocks = np.array([(x, y, x + width, y + len(lines) * line) for x, y in corners])
        corners = [corners[int(np.argmin(ground.brightness(blocks)))]]
    left, first = corners[0]
    tops = [min(first + number * line, rows - line) for number in range(len(lines))]
    places = [Box(left=left, top=y, right=left + width, bottom=y + line) for y in tops]
    return list(zip(lines, places, strict=True))


def _boxes(
    film: Film, pen: Pen, line: float, picture: Picture | None, *, heading: Sequence[Box]
) -> tuple[DrawnLayer, list[tuple[str, Box]]]:
    """Draw the boxes of a film; return their labels with places above or below the lines of the research label."""
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
    return drawing, list(zip(texts, places, strict=True))


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
