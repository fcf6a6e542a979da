"""Contact sheets of the best and the worst films, with the true boxes in green and the model's boxes in orange."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from models import boxes as unit_boxes
from models.engines import FloatArray
from models.lab.evaluation.anatomy import LUNGS_AND_HEART, overlap
from models.lab.evaluation.cases import CaseSource, EvaluationCase, Truth
from models.lab.evaluation.detection import Detections
from models.lab.evaluation.evaluated_model import Observation
from models.lab.phantoms import FINDINGS
from models.manifest import InputRule
from models.reading.preprocess import square

_TRUE, _SAID = "#3cc85a", "#ff8c00"
_COLUMNS, _SIDE = 4, 3.2
"""The films in a row, and the side of one in inches."""
_MARGIN: Final = 0.01
_LEGEND: Final = "green: true, orange: the model"


def quality(truth: Truth, said: Observation) -> float | None:
    """Return the mean IoU of the true and the found boxes of a film; None if it has no true boxes.

    Findings are used if the film has any and they were asked for, otherwise the lungs and the heart.
    """
    if said.found is not None and truth.boxes:
        best = best_of(said.found)
        return float(np.mean([max(overlap(best[key], box) for box in boxes) for key, boxes in truth.boxes.items()]))
    shared = [name for name in LUNGS_AND_HEART if name in truth.regions and name in said.regions]
    return float(np.mean([overlap(said.regions[name], truth.regions[name]) for name in shared])) if shared else None


def best_of(found: Detections) -> dict[str, FloatArray]:
    """Return the best box [4] of each finding."""
    return {
        key: found.boxes[mine[found.scores[mine].argmax()]]
        for number, key in enumerate(FINDINGS)
        if len(mine := np.flatnonzero(found.classes == number))
    }


def write_sheets(
    folder: Path,
    films: CaseSource,
    truths: Sequence[Truth],
    said: Sequence[Observation],
    *,
    rule: InputRule,
    count: int,
) -> list[str]:
    """Write the best and the worst films, at most `count` of each. Returns the names of the files.

    Raises OSError if a file cannot be written.
    """
    values = [quality(*film) for film in zip(truths, said, strict=True)]
    worst_first = [index for _, index in sorted((value, i) for i, value in enumerate(values) if value is not None)]
    if not worst_first:
        return []
    for name, chosen in (("hits.jpg", worst_first[::-1][:count]), ("failures.jpg", worst_first[:count])):
        columns, rows = min(_COLUMNS, len(chosen)), -(-len(chosen) // _COLUMNS)
        sheet = Figure(figsize=(columns * _SIDE, rows * _SIDE), layout="constrained")
        sheet.suptitle(_LEGEND, fontsize=8)
        for place, index in enumerate(chosen, 1):
            _draw(sheet.add_subplot(rows, columns, place), films.load(index), said[index], rule=rule)
        sheet.savefig(folder / name)
    return ["hits.jpg", "failures.jpg"]


def _draw(axes: Axes, case: EvaluationCase, said: Observation, *, rule: InputRule) -> None:
    """Draw the true and the found boxes on the square that the network sees."""
    left, top, right, bottom = (round(edge) for edge in square(case.gray.shape[1], case.gray.shape[0], rule))
    axes.imshow(case.gray[top:bottom, left:right], cmap="gray", vmin=0, vmax=1, extent=(0, 1, 1, 0))
    axes.set_axis_off()
    rated = quality(case.truth, said)
    title = case.name[:30] if rated is None else f"{case.name[:30]}  IoU {rated:.2f}"
    axes.set_title(title, fontsize=7, parse_math=False)  # a name of a file may have dollar signs
    for key, boxes in case.truth.boxes.items():
        for box in boxes:
            _frame(axes, box, _TRUE, key)
    for key, box in _shown(said, case.truth).items():
        _frame(axes, box, _SAID, key)
    if not case.truth.boxes:
        for name in LUNGS_AND_HEART:
            for known, color in ((case.truth.regions, _TRUE), (said.regions, _SAID)):
                if name in known:
                    _frame(axes, known[name], color, name)


def _shown(said: Observation, truth: Truth) -> Mapping[str, FloatArray]:
    """Return the boxes to draw: those of present findings if there is a report, else the best box of each true one."""
    if said.found is None:
        return {}
    present = set(truth.boxes)
    if said.reading is not None:
        present = {prompt.key for prompt in said.reading.prompts if prompt.state == "present"}
    return {key: box for key, box in best_of(said.found).items() if key in present}


def _frame(axes: Axes, box: FloatArray, color: str, name: str) -> None:
    left, top, right, bottom = unit_boxes.to_corners(box).tolist()
    axes.add_patch(Rectangle((left, top), right - left, bottom - top, fill=False, edgecolor=color))
    # What is true is named at the top of its box, what is said at the bottom, so that both can be read.
    at, side = (top + _MARGIN, "top") if color == _TRUE else (bottom - _MARGIN, "bottom")
    axes.text(left + _MARGIN, at, name.replace("_", " "), color=color, fontsize=6, verticalalignment=side, clip_on=True)
