"""Draw a page of text with what was found on one film, for workstations that show pictures and no reports."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from PIL import Image

from node.domain import Box, Film, Finding, FindingState, Report
from node.outputs import impression, wording
from node.outputs.lettering import BLACK, GRAY, WHITE, Color, Font, font, line_height, wrapped, write

WIDTHS: Final = (900, 1200, 1600)
"""Widths of a page in pixels; the narrowest that does not get too tall is taken, for there the letters are largest."""

_TALLEST: Final = 1.25
"""Height of a page divided by its width; only the widest page may be taller."""

_LARGE, _MIDDLE, _SMALL = 34, 26, 20
_MARGIN: Final = 24
_INDENT: Final = 32

_Paragraph = tuple[str, int, Color, int]
"""Text, size of its letters, color, and indent in pixels."""

_Line = tuple[str, Font, Color, int]

NOT_DRAWN: Final = "The film with its boxes could not be drawn, because its pixels could not be decoded again."


def draw(report: Report, film: Film, *, is_drawn: bool) -> Image.Image:
    """Draw the page of one film, white on black.

    is_drawn: whether there is a picture of the film with its boxes; if not, the page of a film that was read says so
    """
    paragraphs = list(_paragraphs(report, film, is_drawn=is_drawn))
    for width in WIDTHS:
        lines = [line for paragraph in paragraphs for line in _lines(paragraph, width - 2 * _MARGIN)]
        needed = sum(line_height(used) for _, used, _, _ in lines) + 2 * _MARGIN
        if needed <= width * _TALLEST:
            break
    image = Image.new("RGB", (width, needed), BLACK)
    top = _MARGIN
    for text, used, color, indent in lines:
        bottom = top + line_height(used)
        where = Box(left=_MARGIN + indent, top=top, right=width - 1, bottom=bottom - 1)
        write(image, [text], where, color=color, used=used)
        top = bottom
    return image


def _lines(paragraph: _Paragraph, width: int) -> Iterator[_Line]:
    text, size, color, indent = paragraph
    used = font(size)
    for line in wrapped(text, width - indent, used):
        yield line, used, color, indent


def _paragraphs(report: Report, film: Film, *, is_drawn: bool) -> Iterator[_Paragraph]:
    """Yield what the page says: the impression first, identities last."""
    for text in impression.labeled(impression.of_film(film)):
        yield text, _LARGE, WHITE, 0
    if film.is_read:
        yield from _findings(film)
        yield from _heading("Analyzed part")
        if not is_drawn:
            yield NOT_DRAWN, _MIDDLE, WHITE, 0
        yield wording.looked_at(film), _SMALL, WHITE, 0
    yield from _heading("About this page")
    yield wording.intended_use(report, [film]), _SMALL, GRAY, 0
    yield f"Study {report.study_uid}", _SMALL, GRAY, 0
    yield f"Film {film.source}", _SMALL, GRAY, 0


def _findings(film: Film) -> Iterator[_Paragraph]:
    for heading, findings in impression.under_headings(film):
        yield from _heading(heading)
        if findings[0].state is FindingState.ABSENT:
            names = (f"{wording.name_of(finding)} {wording.certainty(finding)}" for finding in findings)
            yield ", ".join(names), _SMALL, WHITE, 0
            continue
        for finding in findings:
            yield _place(finding), _MIDDLE, WHITE, 0
            if finding.sentence is not None:
                yield wording.said(film.sentences[finding.sentence]), _SMALL, GRAY, _INDENT
    if left_out := impression.left_out(film):
        yield from _heading(wording.HEADINGS[FindingState.LEFT_OUT])
        yield ", ".join(map(wording.name_of, left_out)), _SMALL, WHITE, 0


def _heading(text: str) -> Iterator[_Paragraph]:
    yield "", _SMALL, WHITE, 0
    yield text, _SMALL, GRAY, 0


def _place(finding: Finding) -> str:
    """Return a finding with side, percent and zone."""
    name = wording.sided(wording.name_of(finding), finding.side)
    boxes = f", {len(finding.boxes)} boxes" if len(finding.boxes) > 1 else ""
    evidence = finding.evidence
    if evidence is None or evidence.zone is None:
        return f"{name}, {wording.certainty(finding)}{boxes}"
    zone = f"most in the {evidence.zone.replace('_', ' ')} ({wording.percent(evidence.extent)} of it covered)"
    return f"{name}, {wording.certainty(finding)}, {zone}{boxes}"
