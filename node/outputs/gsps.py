"""The presentation state of a film: draws the boxes over the untouched image (PS3.3 A.33.1, Grayscale Softcopy).

The state replaces the image's own display (PS3.3 C.11). So it copies the film's modality LUT, window and shutter,
inverts MONOCHROME1 films, which would otherwise be shown as negatives, and activates the film's overlay planes below
everything else. Boxes, research label and analyzed square each have a layer, so that a viewer can hide the boxes, and
the square is dimmer than the rest.

dcmtk, and so DICOMscope, draws plain text: white, or black in a layer of its own where the ground is bright.

A state depends on its film alone: other films of the study and their order change neither its UID nor its bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from zoneinfo import ZoneInfo

import numpy as np
from highdicom.pr import GraphicLayer, GrayscaleSoftcopyPresentationState
from pydicom.dataset import Dataset

from models.contract import Box
from node.dicom import attributes, identity
from node.dicom.film_header import pixel_shape
from node.domain import About, Film, Report, Subject
from node.output_kinds import Written
from node.outputs import document, gsps_grayscale, highdicom_gaps, vocabulary, wording
from node.outputs.gsps_graphics import DrawnLayer, GraphicObjects, Tracking
from node.outputs.label_placement import place
from node.outputs.source import Source
from node.read.decoding import Thumbnail

SERIES_NUMBER = 9002
KIND: Final = "gsps"
BOXES, LABEL, SQUARE, DARK, ASKED = "AI BOXES", "AI LABEL", identity.ANALYZED_LAYER, "AI DARK", "AI ASKED"
OVERLAYS = "FILM OVERLAYS"
LAYERS: Final[Mapping[str, tuple[int, str]]] = {
    OVERLAYS: (0xFFFF, "Overlay planes of the film"),
    SQUARE: (0xB000, "Analyzed square"),
    LABEL: (0xFFFF, "Research label"),
    ASKED: (0xD000, "Box that was asked about"),
    BOXES: (0xFFFF, "Boxes of reported findings"),
    DARK: (0, "Texts on bright ground"),
}
"""Gray value, of 65535, and description of each layer, from back to front."""
_BRIGHT: Final = 0.25
"""Brightness of the ground above which a text is black: that of gray 180 of 255, on which white has a contrast of 2."""
_POWER: Final = 4
"""Exponent of the gray values: a letter on a bright spot is unreadable even beside a dark spot."""
SQUARE_LINE: Final = "Square: analyzed part"
ROOMLESS: Final = "Box without room for its label"
_MOST_ROOMLESS: Final = 8
"""Lines of the heading for them."""
_LETTER = 0.5
"""Mean width of a letter divided by the height of a line. DICOMscope 3.6 draws letters of 0.37 lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnBox:
    """A box of a presentation state; label: drawn near it unless it is empty."""

    box: Box
    tracking: Tracking
    label: str
    is_dashed: bool
    layer: str = BOXES


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Content of one presentation state, beside the film and its analyzed square.

    series: Series Description
    about: see `identity.series_uid`
    label: Content Label (CS); description: Content Description, after the research label
    heading: lines of the research label
    after: a smaller Instance Number than the state's own
    """

    series_number: int
    series: str
    about: str
    label: str
    description: str
    heading: Sequence[str]
    boxes: Sequence[DrawnBox]
    after: int = 0


def write(report: Report, sources: Mapping[str, Source], zone: ZoneInfo) -> Iterator[Written]:
    """Write one presentation state for each film that was read.

    sources: all films by SOP Instance UID
    Raises ValueError for a box outside its film.
    """
    wording.check(report)
    for film in report.read_films:
        state = draw(report, film, sources[film.source], zone, state=_reported(film))
        yield Written(kind=KIND, dataset=state, subject=Subject(about=About.FILM, film=film.source))


def draw(report: Report, film: Film, received: Source, zone: ZoneInfo, *, state: State) -> Dataset:
    """Write one presentation state for a film that was read."""
    source, thumbnail = received.header, received.thumbnail()
    stretch = None if thumbnail is None else thumbnail.stretch
    shown, drawn = _shown(report, film, source), _drawn(film, state, thumbnail)
    kept = Dataset()
    overlays = (OVERLAYS,) if highdicom_gaps.keep_film(source, kept, layer=OVERLAYS) else ()
    layers = {name: _layer(name, order=order) for order, name in enumerate((*overlays, *drawn), 1)}
    dataset = GrayscaleSoftcopyPresentationState(
        referenced_images=[shown],
        content_label=state.label,
        content_description=f"{identity.RESEARCH_LABEL}: {state.description}",
        graphic_layers=list(layers.values()),
        graphic_annotations=[layer.annotation(layers[name], shown) for name, layer in drawn.items()],
        **gsps_grayscale.transformations(source, stretch),
        **document.begin(
            report,
            modality="PR",
            series_number=state.series_number,
            series_description=state.series,
            instance_number=max(_instance_number(source), state.after + 1),
            about=state.about,
        ),
    )
    document.complete(dataset, report, source)
    dataset.update(kept)
    highdicom_gaps.show_whole(dataset, pixel_shape(source))
    dataset.BodyPartExamined = "CHEST"
    dataset.PresentationCreationDate, dataset.PresentationCreationTime = document.local_time(dataset, report, zone)
    document.seal(dataset, report, sources=[film.source], zone=zone)
    subject = Subject(about=About.FILM, film=film.source)
    if (version := report.version(str(dataset.SOPInstanceUID), subject, kinds=(KIND,))) > 1:
        dataset.ContentDescription += f", version {version}"
    return dataset


def _reported(film: Film) -> State:
    """Return the state that shows the reported findings of a film."""
    findings = vocabulary.by_urgency(wording.reported(film))
    undrawn = tuple(wording.unplaced(film)) if findings else wording.nothing_in_short(film)
    return State(
        series_number=SERIES_NUMBER,
        series=document.series_description("AI boxes"),
        about="",
        label="AI RESEARCH",
        description="boxes" if any(finding.boxes for finding in findings) else "no finding drawn",
        heading=(identity.RESEARCH_LABEL, SQUARE_LINE, *wording.cautions(film), *undrawn),
        boxes=[
            DrawnBox(
                box=box.box,
                tracking=(name, box.tracking_uid),
                label=wording.label(finding, box),
                is_dashed=finding.state in vocabulary.MARKS,
            )
            for finding in findings
            for name, box in wording.named_boxes(finding)
        ],
    )


def _instance_number(source: Dataset) -> int:
    """Return the film's instance number, or 1 if it leaves no room for later versions (IS ends at 2^31 - 1).

    A position among the films would change when another film arrives.
    """
    number = attributes.whole(source, "InstanceNumber")
    return number if number is not None and 0 < number < 2**30 else 1


def _shown(report: Report, film: Film, source: Dataset) -> Dataset:
    """Return the film's attributes that highdicom needs for a state (PS3.3 C.11.11)."""
    shown = document.evidence(report, source)
    shown.Columns, shown.Rows = wording.size(film)
    shown.SamplesPerPixel = 1
    shown.SharedFunctionalGroupsSequence = [Dataset()]  # highdicom reads them for a multi-frame class
    return shown


def _layer(name: str, *, order: int) -> GraphicLayer:
    """Describe a layer (PS3.3 C.10.7)."""
    gray, description = LAYERS[name]
    return highdicom_gaps.recommend_gray(GraphicLayer(name, order, description), gray)


def _drawn(film: Film, state: State, thumbnail: Thumbnail | None) -> dict[str, DrawnLayer]:
    """Draw square and research label, and boxes with their labels if there are any; by layer, from back to front."""
    columns, rows = wording.size(film)
    line = max(rows / 40, 1.0)
    graphics = GraphicObjects(line=line, columns=columns, rows=rows)
    layers = {SQUARE: DrawnLayer(graphics=[graphics.rectangle(wording.analyzed(film))])}
    _draw_boxes(state.boxes, graphics, layers)
    texts = _texts(film, state, line, thumbnail)
    for layer, value, where in texts:
        is_dark = thumbnail is not None and _brightness(thumbnail, where) > _BRIGHT
        layers.setdefault(DARK if is_dark else layer, DrawnLayer()).texts.append(graphics.text(value, where))
    return {name: layers[name] for name in LAYERS if name in layers}


def _texts(film: Film, state: State, line: float, thumbnail: Thumbnail | None) -> list[tuple[str, str, Box]]:
    """Return layer, words and place of each text: a label that has no room near its box stands in the heading."""
    labeled, roomless = [drawn for drawn in state.boxes if drawn.label], list[DrawnBox]()
    while True:
        heading = _heading(film, [*state.heading, *_roomless(roomless)], line, thumbnail)
        places = _places(film, labeled, line, heading=[where for _, where in heading])
        pairs = list(zip(labeled, places, strict=True))
        without = [drawn for drawn, where in pairs if where is None]
        if not without:
            texts = [(LABEL, value, where) for value, where in heading]
            return [*texts, *((drawn.layer, drawn.label, where) for drawn, where in pairs if where is not None)]
        roomless += without
        labeled = [drawn for drawn, where in pairs if where is not None]


def _roomless(boxes: Sequence[DrawnBox]) -> list[str]:
    """Return the lines of the heading for labels without room near their box."""
    lines = [f"{ROOMLESS}: {drawn.label}" for drawn in boxes]
    more = len(lines) - _MOST_ROOMLESS
    return lines if more <= 0 else [*lines[:_MOST_ROOMLESS], f"{more} more boxes have no label: see the report"]


def _heading(film: Film, lines: Sequence[str], line: float, thumbnail: Thumbnail | None) -> list[tuple[str, Box]]:
    """Return the lines of the research label with their places, one line from the edges of the film.

    line: height of a line in pixels
    They are in the darkest corner, or in the lower left one if the picture is unknown.
    """
    columns, rows = wording.size(film)
    inset = min(line, columns / 4)
    width = min(_LETTER * line * max(map(len, lines)), columns - 2 * inset)
    bottom = max(rows - (len(lines) + 1) * line, 0.0)
    top = min(line, bottom)
    corners = [(x, y) for y in (bottom, top) for x in (inset, columns - inset - width)]
    blocks = [Box(left=x, top=y, right=x + width, bottom=y + len(lines) * line) for x, y in corners]
    block = blocks[0] if thumbnail is None else min(blocks, key=lambda block: _brightness(thumbnail, block))
    tops = [min(block.top + number * line, rows - line) for number in range(len(lines))]
    places = [Box(left=block.left, top=y, right=block.right, bottom=y + line) for y in tops]
    return list(zip(lines, places, strict=True))


def _brightness(thumbnail: Thumbnail, where: Box) -> float:
    """Return the mean power of the gray values below a place, 0..1."""
    rows, columns = thumbnail.gray.shape
    left, top = (min(int(edge / thumbnail.step), size - 1) for edge, size in ((where.left, columns), (where.top, rows)))
    right, bottom = (math.ceil(edge / thumbnail.step) for edge in (where.right, where.bottom))
    part = thumbnail.gray[top : max(bottom, top + 1), left : max(right, left + 1)]
    return float((part.astype(np.int64) ** _POWER).sum() / (255.0**_POWER * part.size))  # exact sums: ties are ties


def _draw_boxes(boxes: Sequence[DrawnBox], graphics: GraphicObjects, layers: dict[str, DrawnLayer]) -> None:
    """Draw boxes into their layers."""
    for drawn in boxes:
        layer = layers.setdefault(drawn.layer, DrawnLayer())
        if drawn.is_dashed:
            layer.graphics.extend(graphics.dashed(drawn.box, drawn.tracking))
        else:
            layer.graphics.append(graphics.rectangle(drawn.box, drawn.tracking))


def _places(film: Film, labeled: Sequence[DrawnBox], line: float, *, heading: Sequence[Box]) -> list[Box | None]:
    """Return the places of the labels, outside the research label; None for a label without room.

    They keep a distance from the edges, because DICOMscope 3.6 begins a line up to 5 pixels left of its place.
    """
    columns, rows = wording.size(film)
    margin = min(line / 2, columns / 4)
    return place(
        [drawn.box for drawn in labeled],
        [(_LETTER * line * len(drawn.label), line) for drawn in labeled],
        within=Box(left=margin, top=0, right=columns - margin, bottom=rows),
        taken=heading,
    )
