"""Draw `overlay.png`: the film with the analyzed square and the boxes burnt in, for people without a workstation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from node.dicom import identity
from node.domain import Box, Film, FindingState
from node.outputs import impression, wording
from node.outputs.label_placement import place
from node.outputs.patient import short_text

LONGEST_SIDE = 1400
SHORTEST_SIDE = 480
"""Limits of the longer side, in pixels. A smaller film is enlarged, because the labels would cover it."""

Color = tuple[int, int, int]
Font = ImageFont.FreeTypeFont | ImageFont.ImageFont

_COLORS: dict[FindingState, Color] = {
    FindingState.PRESENT: (255, 96, 64),
    FindingState.INDETERMINATE: (255, 208, 64),
    FindingState.UNCALIBRATED: (255, 208, 64),
}
_SQUARE: Color = (80, 200, 255)
_WHITE: Color = (255, 255, 255)
_BLACK: Color = (0, 0, 0)
_PADDING = 3


def draw(picture: npt.NDArray[np.uint8], film: Film) -> Image.Image:
    """Draw the findings onto a film that was read.

    picture: [row, column] in stored orientation, as displayed
    Large films are shrunk and very small films enlarged, together with the boxes.
    """
    image = Image.fromarray(picture).convert("RGB")
    longest = max(image.size)
    scale = min(max(longest, SHORTEST_SIDE), LONGEST_SIDE) / longest
    image = image.resize((max(1, round(image.width * scale)), max(1, round(image.height * scale))))
    # Each axis has its own ratio: rounding to whole pixels must not move a box outside the film.
    ratios = image.width / picture.shape[1], image.height / picture.shape[0]
    font = ImageFont.load_default(max(14, max(image.size) // 70))
    line = max(2, max(image.size) // 500)
    _outline(image, _scaled(wording.analyzed(film), ratios), color=_SQUARE, line=line, dashed=True)
    caption = _caption(film, image.size, font)
    bottom = image.height - len(caption) * _height(font)
    _draw_findings(image, film, ratios, font=font, line=line, bottom=bottom)
    _write(image, caption, Box(left=0, top=bottom, right=image.width, bottom=image.height), color=_WHITE, font=font)
    return image


def _draw_findings(
    image: Image.Image, film: Film, ratios: tuple[float, float], *, font: Font, line: int, bottom: int
) -> None:
    """Draw all boxes, then all labels over them; labels stay above the row `bottom` where the caption begins."""
    drawn = [(finding, found) for finding in impression.by_urgency(wording.reported(film)) for found in finding.boxes]
    boxes = [_scaled(found.box, ratios) for _, found in drawn]
    for (finding, _), box in zip(drawn, boxes, strict=True):
        is_review = finding.state in wording.MARKS
        _outline(image, box, color=_COLORS[finding.state], line=line, dashed=is_review)
    labels = [wording.label(finding, found) for finding, found in drawn]
    sizes = [(font.getlength(label) + 2 * _PADDING, float(_height(font))) for label in labels]
    places = place(boxes, sizes, columns=image.width, rows=max(bottom, _height(font)))
    for (finding, _), label, where in zip(drawn, labels, places, strict=True):
        _write(image, [label], where, color=_COLORS[finding.state], font=font)


def _write(image: Image.Image, lines: Sequence[str], where: Box, *, color: Color, font: Font) -> None:
    """Write lines of text on a black background."""
    canvas = ImageDraw.Draw(image)
    canvas.rectangle(where.edges, fill=_BLACK)
    for number, text in enumerate(lines):
        canvas.text((where.left + _PADDING, where.top + number * _height(font)), text, fill=color, font=font)


def _outline(image: Image.Image, box: Box, *, color: Color, line: int, dashed: bool) -> None:
    """Draw the outline of a box; the lines lie inside the box."""
    canvas = ImageDraw.Draw(image)
    left, top, right, bottom = box.edges
    step = 6 * line if dashed else max(image.size)
    for start, end in _dashes(left, right, step):
        canvas.rectangle((start, top, end, top + line - 1), fill=color)
        canvas.rectangle((start, max(bottom - line, top), end, max(bottom - 1, top)), fill=color)
    for start, end in _dashes(top, bottom, step):
        canvas.rectangle((left, start, left + line - 1, end), fill=color)
        canvas.rectangle((max(right - line, left), start, max(right - 1, left), end), fill=color)


def _dashes(low: float, high: float, step: float) -> Iterator[tuple[float, float]]:
    """Yield the drawn parts of a line; parts and gaps have the same length, `step`."""
    start = low
    while start < high:
        yield start, max(min(start + step, high) - 1, start)
        start += 2 * step


def _scaled(box: Box, ratios: tuple[float, float]) -> Box:
    x, y = ratios
    return Box(left=box.left * x, top=box.top * y, right=box.right * x, bottom=box.bottom * y)


def _caption(film: Film, size: tuple[int, int], font: Font) -> list[str]:
    """Return the lines below the picture: research label, impression, legend; the second if it fits."""
    width, height = size
    legend = _wrapped(_legend(film), width, font)
    label = [identity.RESEARCH_LABEL]
    whole = [*(line for text in impression.of_film(film) for line in _wrapped(text, width, font)), *legend]
    fits = font.getlength(label[0]) <= width and (len(whole) + 1) * _height(font) <= height / 4
    return label + whole if fits else _wrapped(f"{label[0]} | {_legend(film)}", width, font)


def _legend(film: Film) -> str:
    """Return what the lines of the picture mean."""
    parts = ["blue dashes: analyzed square"]
    if film.in_state(FindingState.PRESENT):
        parts.append("red: present")
    if any(film.in_state(state) for state in wording.MARKS):
        parts.append("yellow dashes: to be reviewed")
    return " | ".join(parts)


def _wrapped(text: str, width: int, font: Font) -> list[str]:
    """Break text into lines that fit into `width` pixels."""
    lines = [""]
    for word in short_text(text, 1000).split():
        longer = f"{lines[-1]} {word}".strip()
        if font.getlength(longer) + 2 * _PADDING <= width or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def _height(font: Font) -> int:
    """Return the height of a line of text in pixels."""
    return round(font.getbbox("Ag|")[3] + _PADDING)
