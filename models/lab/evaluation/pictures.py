"""Contact sheets of the best and the worst films, with the true boxes in green and the model's boxes in orange."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from models import boxes as unit_boxes
from models.contract import FilmReading
from models.engines import FloatArray
from models.lab.evaluation.anatomy import LUNGS_AND_HEART, overlap
from models.lab.evaluation.cases import CaseSource, EvaluationCase, Truth
from models.lab.evaluation.detection import Detections
from models.lab.evaluation.evaluated_model import Observation
from models.lab.phantoms import FINDINGS
from models.manifest import InputRule
from models.reading.preprocess import square

Picture = NDArray[np.uint8]
"""[row, column, color], blue, green, red."""

SHEETS: Final = ("hits", "failures")
_TRUE, _SAID = (90, 200, 60), (0, 140, 255)
_SIDE, _BAND, _COLUMNS = 320, 22, 4


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
    rated = [(value, index) for index, value in enumerate(values) if value is not None]
    worst_first = [index for _, index in sorted(rated)]
    chosen = {"hits": worst_first[::-1][:count], "failures": worst_first[:count]}
    names = []
    for sheet in SHEETS:
        drawn = [draw(films.load(index), said[index], rule=rule) for index in chosen[sheet]]
        if drawn:
            _, jpeg = cv2.imencode(".jpg", contact_sheet(drawn), [cv2.IMWRITE_JPEG_QUALITY, 88])
            (folder / f"{sheet}.jpg").write_bytes(jpeg.tobytes())
            names.append(f"{sheet}.jpg")
    return names


def draw(case: EvaluationCase, said: Observation, *, rule: InputRule) -> Picture:
    """Draw the true and the found boxes on the square that the network sees, with a line of text above."""
    left, top, right, bottom = (round(edge) for edge in square(case.gray.shape[1], case.gray.shape[0], rule))
    seen = (case.gray[top:bottom, left:right] * 255).astype(np.uint8)
    gray = cv2.resize(np.ascontiguousarray(seen), (_SIDE, _SIDE), interpolation=cv2.INTER_AREA)
    picture = np.asarray(cv2.cvtColor(gray, cv2.COLOR_GRAY2BGR), dtype=np.uint8)
    for key, boxes in case.truth.boxes.items():
        for box in boxes:
            _frame(picture, box, _TRUE, key)
    for key, box in _shown(said, case.truth).items():
        _frame(picture, box, _SAID, key)
    if not case.truth.boxes:
        for name in LUNGS_AND_HEART:
            for known, color in ((case.truth.regions, _TRUE), (said.regions, _SAID)):
                if name in known:
                    _frame(picture, known[name], color, name)
    rated = quality(case.truth, said)
    band = np.zeros((_BAND, _SIDE, 3), dtype=np.uint8)
    _text(band, f"{case.name[:30]}  IoU {rated:.2f}" if rated is not None else case.name[:40], (4, 15), (255, 255, 255))
    return np.concatenate([band, picture])


def contact_sheet(pictures: Sequence[Picture]) -> Picture:
    """Put pictures of one size side by side, four in a row, and say what the colors mean."""
    columns = min(_COLUMNS, len(pictures))
    blank = np.zeros_like(pictures[0])
    rows = [list(pictures[start : start + columns]) for start in range(0, len(pictures), columns)]
    rows[-1] += [blank] * (columns - len(rows[-1]))
    legend = np.zeros((_BAND, columns * _SIDE, 3), dtype=np.uint8)
    _text(legend, "green: true", (4, 15), _TRUE)
    _text(legend, "orange: the model", (110, 15), _SAID)
    return np.concatenate([legend, *(np.concatenate(row, axis=1) for row in rows)])


def _shown(said: Observation, truth: Truth) -> Mapping[str, FloatArray]:
    """Return the boxes to draw: those of present findings if there is a report, else the best box of each true one."""
    if said.found is None:
        return {}
    best = best_of(said.found)
    present = _present(said.reading) if said.reading is not None else set(truth.boxes)
    return {key: box for key, box in best.items() if key in present}


def _present(reading: FilmReading) -> set[str]:
    return {prompt.key for prompt in reading.prompts if prompt.state == "present"}


def _frame(picture: Picture, box: FloatArray, color: tuple[int, int, int], name: str) -> None:
    left, top, right, bottom = (round(float(edge) * _SIDE) for edge in unit_boxes.to_corners(box))
    cv2.rectangle(picture, (left, top), (right - 1, bottom - 1), color, 1)
    # What is true is named at the top of its box, what is said at the bottom, so that both can be read.
    height = top + 10 if color == _TRUE else bottom - 4
    _text(picture, name.replace("_", " "), (left + 2, min(max(height, 10), _SIDE - 4)), color)


def _text(picture: Picture, text: str, at: tuple[int, int], color: tuple[int, int, int]) -> None:
    cv2.putText(picture, text, at, cv2.FONT_HERSHEY_SIMPLEX, 0.34, color, 1, cv2.LINE_AA)
