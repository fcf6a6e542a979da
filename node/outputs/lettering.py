"""Text on pictures: Pillow's built-in font, broken into lines, with those characters only that the font has.

The font is a part of Pillow, so the same version gives the same pixels on every machine; with another version the
pixels, and so the UID of an object that shows them, may be others. The font has ASCII and some signs (Pillow 13.0.0):
another character would be drawn as an empty frame.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache

from PIL import Image, ImageDraw, ImageFont

from node.domain import Box

Color = tuple[int, int, int]
Font = ImageFont.FreeTypeFont | ImageFont.ImageFont

WHITE: Color = (255, 255, 255)
BLACK: Color = (0, 0, 0)
PADDING = 3
"""Pixels between a text and the edges of its background."""

_UNASSIGNED = "\uffff"
"""No font has this character, so its glyph is the frame for missing ones."""


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
    """Break a text into lines that fit into `width` pixels; a word that is wider than a line is broken too."""
    lines = [""]
    for word in drawable(text).replace(" %", "\0%").split():
        for part in _broken(word, width, used):
            longer = f"{lines[-1]} {part}".strip()
            if lines[-1] and width_of(longer.replace("\0", " "), used) > width:
                lines.append(part)
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
    """Return a text in characters that the font has: without accents where it has none, else with question marks."""
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


def _broken(word: str, width: float, used: Font) -> Iterator[str]:
    """Yield the parts of a word that are as long as a line can be."""
    if width_of(word, used) <= width:
        yield word
        return
    start = 0
    for end in range(1, len(word) + 1):
        if end - start > 1 and width_of(word[start:end], used) > width:
            yield word[start : end - 1]
            start = end - 1
    yield word[start:]
