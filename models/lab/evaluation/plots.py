"""Bar charts and curves for a model card as SVG; the same values give the same bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import StringIO
from typing import Final

import numpy as np
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from models.checkpoint.card import shown

Values = Mapping[str, float | None]

VALUE_COLOR, REFERENCE_COLOR = "#e07b00", "#8a8a8a"
_STYLE: Final = {
    "font.size": 8,
    "font.sans-serif": ["DejaVu Sans", "Verdana"],  # of the same width
    "svg.fonttype": "none",  # text, not outlines
    "svg.hashsalt": "card",  # otherwise the names of elements are random
}


def bars(title: str, values: Values, *, references: Values | None = None) -> str:
    """Draw a bar from 0 to 1 for each value, with a mark for the reference; a missing value has no bar."""
    rows = range(len(values))
    lengths, marks = (
        np.array([table.get(name) for name in values], dtype=float) for table in (values, references or {})
    )
    labels = [f"{name.replace('_', ' ')}: {shown(value)}" for name, value in values.items()]
    with _chart(title, width=5.5, height=0.6 + 0.18 * len(values)) as (axes, svg):
        axes.barh(rows, lengths, height=0.7, color=VALUE_COLOR, tick_label=labels)
        axes.plot(marks, rows, "|", color=REFERENCE_COLOR, markersize=11, markeredgewidth=2.5, clip_on=False)
        axes.margins(y=0.01)
        axes.grid(visible=False, axis="y")
        axes.invert_yaxis()
    return svg.getvalue()


def reliability(points: Sequence[tuple[float, float]]) -> str:
    """Draw frequencies over probabilities, connected from left to right, over the diagonal."""
    with _chart("Probabilities and frequencies", width=3.6, height=3.6) as (axes, svg):
        axes.plot([0, 1], [0, 1], color=REFERENCE_COLOR)
        axes.plot(*zip(*points, strict=True), "o-", color=VALUE_COLOR, clip_on=False, zorder=3)
        axes.set(ylim=(0, 1), xlabel="probability", ylabel="frequency", aspect="equal")
    return svg.getvalue()


@contextmanager
def _chart(title: str, *, width: float, height: float) -> Iterator[tuple[Axes, StringIO]]:
    """Yield axes to draw on, and the file that has the drawing afterwards; sizes in inches."""
    svg = StringIO()
    with style.context(["default", _STYLE]):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots()
        axes.set_title(title, loc="left", weight="bold")
        axes.set(xlim=(0, 1), axisbelow=True)
        axes.grid(color="#e4e4e4")
        yield axes, svg
        figure.savefig(svg, format="svg", metadata={"Date": None})
