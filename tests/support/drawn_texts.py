"""What Pillow is told to write on pictures: texts and places, as no reader of pixels could tell."""

from __future__ import annotations

import pytest
from PIL import ImageDraw


class DrawnTexts:
    """The texts that are drawn, each with the picture that it is drawn on and its place there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.drawn: list[tuple[str, tuple[float, ...], tuple[int, int]]] = []
        whole = ImageDraw.ImageDraw.text

        def text(canvas: ImageDraw.ImageDraw, xy: tuple[float, float], value: str, **style: object) -> None:
            self.drawn.append((value, canvas.textbbox(xy, value, font=style["font"]), canvas.im.size))  # type: ignore[arg-type]
            whole(canvas, xy, value, **style)  # type: ignore[arg-type]  # handed through as it came

        monkeypatch.setattr(ImageDraw.ImageDraw, "text", text)

    @property
    def lines(self) -> list[str]:
        return [value for value, _, _ in self.drawn]

    def cut_off(self) -> list[str]:
        """Return the texts that do not lie wholly on their picture."""
        return [
            value
            for value, (left, top, right, bottom), (columns, rows) in self.drawn
            if left < 0 or top < 0 or right > columns or bottom > rows
        ]
