"""Bar charts and curves for a model card, as small SVG files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final
from xml.sax.saxutils import escape

Values = Mapping[str, float | None]

_LABEL, _WIDTH, _ROW, _TOP = 190, 300, 18, 30
_VALUE, _REFERENCE = "#e07b00", "#8a8a8a"
_FONT: Final = 'font-family="sans-serif" font-size="11"'


def bars(title: str, values: Values, *, references: Values | None = None) -> str:
    """Draw a bar from 0 to 1 for each value, with a mark for the reference; a missing value has no bar."""
    marks = references or {}
    height = _TOP + _ROW * len(values) + 24
    return _page(_LABEL + _WIDTH + 60, height, [*_axis(height), *_rows(values, marks), _text(8, 16, title, bold=True)])


def curve(title: str, points: Sequence[tuple[float, float]], *, across: str, up: str) -> str:
    """Draw points of the unit square, connected from left to right, over the diagonal."""
    side, left = 260, 46
    at = [(left + x * side, _TOP + (1 - y) * side) for x, y in points]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
    drawn = [
        f'<rect x="{left}" y="{_TOP}" width="{side}" height="{side}" fill="none" stroke="#ccc"/>',
        f'<line x1="{left}" y1="{_TOP + side}" x2="{left + side}" y2="{_TOP}" stroke="{_REFERENCE}"/>',
        f'<polyline points="{line}" fill="none" stroke="{_VALUE}" stroke-width="2"/>',
        *(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{_VALUE}"/>' for x, y in at),
        _text(8, 16, title, bold=True),
        _text(left, _TOP + side + 16, f"{across}, 0 to 1"),
        f'<text {_FONT} transform="translate(34 {_TOP + side}) rotate(-90)">{escape(up)}, 0 to 1</text>',
    ]
    return _page(left + side + 24, _TOP + side + 28, drawn)


def _rows(values: Values, marks: Values) -> Iterator[str]:
    for number, (name, value) in enumerate(values.items()):
        top = _TOP + number * _ROW
        yield _text(8, top + 12, name.replace("_", " "))
        if value is not None:
            yield f'<rect x="{_LABEL}" y="{top + 3}" width="{value * _WIDTH:.1f}" height="12" fill="{_VALUE}"/>'
            yield _text(_LABEL + value * _WIDTH + 4, top + 13, f"{value:.2f}")
        mark = marks.get(name)
        if mark is not None:
            x = _LABEL + mark * _WIDTH
            yield f'<rect x="{x - 1.5:.1f}" y="{top + 1}" width="3" height="16" fill="{_REFERENCE}"/>'


def _axis(height: int) -> Iterator[str]:
    for step in range(0, 11, 2):
        x = _LABEL + step / 10 * _WIDTH
        yield f'<line x1="{x}" y1="{_TOP}" x2="{x}" y2="{height - 22}" stroke="#e4e4e4"/>'
        yield _text(x - 8, height - 8, f"{step / 10:.1f}")


def _text(x: float, y: float, text: str, *, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" {_FONT}{weight}>{escape(text)}</text>'


def _page(width: int, height: int, drawn: Sequence[str]) -> str:
    inner = "\n".join(drawn)
    background = f'<rect width="{width}" height="{height}" fill="#ffffff"/>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}">\n{background}\n{inner}\n</svg>\n'
    )
