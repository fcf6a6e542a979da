"""Draws a film with its boxes burnt in, for people and workstations that show neither reports nor presentation states.

The film is covered by the labels of its boxes only. Above it is the head: the research label and the impression, which
names every reported finding, also one without a box. Below it is the legend of its lines.

Text has Pillow's built-in font: one version of Pillow gives the same pixels on every machine; another version may give
other pixels, and so another UID of an object with them. The font has ASCII and some signs (Pillow 13.0.0): another
character would be drawn as an empty frame.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from models.contract import Box, FindingState
from node.domain import Film
from node.outputs import impression, vocabulary, wording
from node.outputs.label_placement import place

LONGEST_SIDE = 1400
SHORTEST_SIDE = 480
"""Limits of the longer side of the film, in pixels. A smaller film is enlarged, because the labels would cover it."""

_HEAD_WIDTH, _HEAD_LETTERS = 900, 24
"""Width of a head without a film, and height of its letters, in pixels."""

NOT_DRAWN: Final = "The film with its boxes could not be drawn, because its pixels could not be decoded again."

_COLORS: dict[FindingState, Color] = {
    FindingState.PRESENT: (255, 96, 64),
    FindingState.INDETERMINATE: (255, 208, 64),
    FindingState.UNCALIBRATED: (255, 208, 64),
}
_SQUARE: Color = (80, 200, 255)
Color = tuple[int, int, int]
Font = ImageFont.FreeTypeFont | ImageFont.ImageFont
WHITE: Color = (255, 255, 255)
BLACK: Color = (0, 0, 0)
PADDING = 3
"""Pixels between a text and the edges of its background."""
_UNASSIGNED = "\uffff"
"""No font has this character, so its glyph is the frame for missing ones."""


def draw(picture: npt.NDArray[np.uint8], film: Film, *, shape: tuple[int, int] = (1, 1), made: str = "") -> Image.Image:
    """Draw the findings onto a film that was read.

    picture: [row, column] in stored orientation, as displayed
    shape: ratio of a pixel's height to its width; the drawn pixels are squares
    made: the last line, for a picture that may be seen without its report: program, model and time
    Large films are shrunk and very small films enlarged, together with the boxes.
    """
    image = Image.fromarray(picture).resize(_size(picture, shape)).convert("RGB")
    # Each axis has its own ratio: rounding to whole pixels must not move a box outside the film.
    ratios = image.width / picture.shape[1], image.height / picture.shape[0]
    longest = max(image.size)
    line = max(2, longest // 500)
    _outline(image, _scaled(wording.analyzed(film), ratios), color=_SQUARE, line=line, dashed=True)
    _draw_findings(image, film, ratios, used=font(max(14, longest // 70)), line=line)
    return _framed(image, film, made)


def draw_head(film: Film, *, made: str = "") -> Image.Image:
    """Draw only the head of a film that was not read, or whose pixels cannot be decoded again; made: see `draw`."""
    used = font(_HEAD_LETTERS)
    lines = [text for line in _head(film) for text in wrapped(line, _HEAD_WIDTH, used)]
    if film.is_read:
        lines += wrapped(NOT_DRAWN, _HEAD_WIDTH, used)
    lines += wrapped(made, _HEAD_WIDTH, used) if made else []
    image = Image.new("RGB", (_HEAD_WIDTH, len(lines) * line_height(used)))
    _write_band(image, lines, top=0, used=used)
    return image


def _size(picture: npt.NDArray[np.uint8], shape: tuple[int, int]) -> tuple[int, int]:
    """Return columns and rows of the drawn film."""
    rows, columns = picture.shape[0] * shape[0], picture.shape[1] * shape[1]
    longest = max(picture.shape)
    scale = min(max(longest, SHORTEST_SIDE), LONGEST_SIDE) / max(rows, columns)
    return max(1, round(columns * scale)), max(1, round(rows * scale))


def _draw_findings(image: Image.Image, film: Film, ratios: tuple[float, float], *, used: Font, line: int) -> None:
    """Draw all boxes, then all labels over them."""
    drawn = [(finding, found) for finding in vocabulary.by_urgency(wording.reported(film)) for found in finding.boxes]
    boxes = [_scaled(found.box, ratios) for _, found in drawn]
    for (finding, _), box in zip(drawn, boxes, strict=True):
        is_review = finding.state in vocabulary.MARKS
        _outline(image, box, color=_COLORS[finding.state], line=line, dashed=is_review)
    labels = [wrapped(wording.label(finding, found), image.width, used) for finding, found in drawn]
    sizes = [(max(width_of(text, used) for text in lines), float(len(lines) * line_height(used))) for lines in labels]
    places = place(boxes, sizes, within=Box(left=0, top=0, right=image.width, bottom=image.height))
    for (finding, _), lines, where in zip(drawn, labels, places, strict=True):
        if where is not None:
            write(image, lines, where, color=_COLORS[finding.state], used=used)


def _framed(image: Image.Image, film: Film, made: str) -> Image.Image:
    """Put the head above a drawn film, and its legend and origin below it."""
    width, longest = max(image.width, SHORTEST_SIDE), max(image.size)
    large, small = font(max(16, longest // 50)), font(max(14, longest // 70))
    above = [text for line in _head(film) for text in wrapped(line, width, large)]
    below = [text for line in (_legend(film), made) if line for text in wrapped(line, width, small)]
    top, bottom = (len(lines) * line_height(used) for lines, used in ((above, large), (below, small)))
    whole = Image.new("RGB", (width, top + image.height + bottom))
    whole.paste(image, ((width - image.width) // 2, top))
    _write_band(whole, above, top=0, used=large)
    _write_band(whole, below, top=top + image.height, used=small)
    return whole


def _head(film: Film) -> list[str]:
    return impression.labeled(impression.of_film(film))


def _write_band(image: Image.Image, lines: Sequence[str], *, top: int, used: Font) -> None:
    where = Box(left=0, top=top, right=image.width, bottom=top + len(lines) * line_height(used) - 1)
    write(image, lines, where, color=WHITE, used=used)


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


def _legend(film: Film) -> str:
    """Return the legend of the picture's lines."""
    parts = ["blue dashes: analyzed square"]
    drawn = {finding.state for finding in wording.reported(film) if finding.boxes}
    if FindingState.PRESENT in drawn:
        parts.append(f"red: {vocabulary.STATES[FindingState.PRESENT]}")
    if drawn & vocabulary.MARKS.keys():
        parts.append(f"yellow dashes: {vocabulary.STATES[FindingState.INDETERMINATE]}")
    if without := [finding for finding in wording.reported(film) if not finding.boxes]:
        parts.append(f"no box: {wording.names_of(vocabulary.by_urgency(without))}")
    return " | ".join(parts)


@cache
def font(size: int) -> Font:
    """Return the font for letters of a size in pixels."""
    return ImageFont.load_default(size)


def line_height(used: Font) -> int:
    """Return the height of a line of text in pixels."""
    return round(used.getbbox("Ag|")[3] + PADDING)


@lru_cache(maxsize=10_000)
def width_of(text: str, used: Font) -> float:
    """Return the width of a drawn line in pixels, with the edges of its background."""
    return float(used.getlength(drawable(text))) + 2 * PADDING


def wrapped(text: str, width: float, used: Font) -> list[str]:
    """Break a text between its words into lines that fit into `width` pixels."""
    lines = [""]
    for word in drawable(text).replace(" %", "\0%").split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and width_of(longer.replace("\0", " "), used) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return [line.replace("\0", " ") for line in lines]


def write(image: Image.Image, lines: Sequence[str], where: Box, *, color: Color, used: Font) -> None:
    """Write lines of text on a black background."""
    canvas = ImageDraw.Draw(image)
    canvas.rectangle(where.edges, fill=BLACK)
    for number, text in enumerate(lines):
        top = where.top + number * line_height(used)
        canvas.text((where.left + PADDING, top), drawable(text), fill=color, font=used)


def drawable(text: str) -> str:
    """Return a text in characters of the font: others lose their accents, or become question marks."""
    return "".join(map(_drawable, unicodedata.normalize("NFC", text)))


@cache
def is_drawable(character: str) -> bool:
    """Return whether the font has a character."""
    drawn, missing = (font(20).getmask(glyph) for glyph in (character, _UNASSIGNED))
    return character == " " or (bytes(drawn) != bytes(missing) and drawn.size != (0, 0))


@cache
def _drawable(character: str) -> str:
    if character.isspace():
        return " "
    if unicodedata.category(character) == "Pd":
        return "-"
    plain = "".join(part for part in unicodedata.normalize("NFKD", character) if not unicodedata.combining(part))
    spellings = (character, plain, character.casefold())
    return next((spelling for spelling in spellings if spelling and all(map(is_drawable, spelling))), "?")
