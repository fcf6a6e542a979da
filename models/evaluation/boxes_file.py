"""Films of a file: one film to a line of JSON, beside the pictures that it names.

Of a line count `file`, relative to the file of lines; `boxes`, a list of {label, xyxy} in pixels of that picture, each
left, top, right, bottom; `nih_labels`, those of ChestX-ray14; `patient`. What `python -m models.phantoms` writes with
`--truth` counts too: `region_findings` and `sentences` say that everything is known of a film.

A box is a region's where its label is one of Chest ImaGenome's, a finding's where ChestX-ray14 or CheXpert has it. Of
ChestX-ray14 a class is taken for absent where its label is missing; of boxes, only on a film without any finding.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NotRequired, TypedDict, cast

import cv2
import numpy as np

from models import boxes as unit_boxes
from models.answers import FloatArray
from models.errors import ModelError
from models.evaluation.cases import NEVER_SHOWN, Asked, Case, Task, Truth, labels_of, shown
from models.manifest import Manifest
from models.phantoms import FINDINGS
from models.preprocess import square
from models.tasks.prompts import region_prompts
from models.training.films import NIH_LABELS, is_held_out, patient_of

_NO_FINDING = "No Finding"
_LEAST_SIDE = 1e-3
"""Of a box that counts, as a share of the square (SPEC.md 1)."""


class BoxLine(TypedDict):
    """A box of a line."""

    label: str
    xyxy: list[float]
    finding: NotRequired[str]
    region: NotRequired[str]
    side: NotRequired[str | None]


class SentenceLine(TypedDict):
    """A sentence of a line."""

    text: str


class HintLine(TypedDict):
    """A question of a line."""

    text: str
    finding: str
    side: str


class FilmLine(TypedDict):
    """A line."""

    file: str
    size: NotRequired[list[int]]
    patient: NotRequired[str]
    boxes: NotRequired[list[BoxLine]]
    nih_labels: NotRequired[list[str]]
    region_findings: NotRequired[dict[str, list[str]]]
    sentences: NotRequired[list[SentenceLine]]
    hints: NotRequired[list[HintLine]]


class FileFilms:
    """The films of a file, read when they are asked for."""

    def __init__(self, path: Path, lines: Sequence[FilmLine], manifest: Manifest) -> None:
        self._path, self._lines, self._manifest = path, lines, manifest

    @property
    def tasks(self) -> frozenset[Task]:
        """What enough is known for, of one film at least."""
        kinds = {kind for line in self._lines for kind in _tasks_of(line)}
        return frozenset(kinds)

    def __len__(self) -> int:
        return len(self._lines)

    def load(self, index: int) -> Case:
        """Read one. Raises ModelError where its picture cannot be read, or has not the size that its line says."""
        line = self._lines[index]
        path = self._path.parent / line["file"]
        pixels = cv2.imread(str(path), cv2.IMREAD_GRAYSCALE)
        if pixels is None:
            raise ModelError(f"{path} cannot be read as a picture (PNG or JPEG); restore it, or remove its line")
        rows, columns = pixels.shape
        if line.get("size", [columns, rows]) != [columns, rows]:
            raise ModelError(f"{path} has {columns} x {rows} pixels, its line says {line['size']}; boxes would not fit")
        seen = square(columns, rows, self._manifest.input)
        gray = shown(np.asarray(pixels, dtype=np.uint8), self._manifest.gray)
        return Case(name=path.stem, gray=gray, truth=_truth(line, np.array(seen, dtype=np.float64)))


def read_films(path: Path, manifest: Manifest, *, held_out: float | None = None) -> FileFilms:
    """Read a file of films.

    held_out: only the patients that a run keeps from training with this share
    Raises ModelError that names the line and what is wrong with it.
    """
    try:
        texts = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{path} cannot be read ({error}); name a file with one film to a line") from error
    lines = [_checked(text, where=f"{path}, line {number}") for number, text in enumerate(texts, 1) if text.strip()]
    if held_out is not None:
        lines = [line for line in lines if is_held_out(patient_of(line), held_out)]
    if not lines:
        raise ModelError(f"{path} holds no film{' of patients that were held out' if held_out is not None else ''}")
    return FileFilms(path, lines, manifest)


def _checked(text: str, *, where: str) -> FilmLine:
    """Read one line."""
    try:
        line = cast("FilmLine", json.loads(text))
        named = isinstance(line["file"], str)
        boxes = [(one["label"].lower(), np.array(one["xyxy"], dtype=np.float64)) for one in line.get("boxes", [])]
        whole = all(box.shape == (4,) and np.isfinite(box).all() for _, box in boxes)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelError(f"{where}: not a film as expected ({error!r}); correct or remove it") from error
    if not named or not whole:
        raise ModelError(f'{where}: "file" must be a path and every "xyxy" four numbers; correct or remove it')
    return line


def _tasks_of(line: FilmLine) -> list[Task]:
    kinds: list[Task] = []
    if any(_region(one) for one in line.get("boxes", [])):
        kinds.append("anatomy")
    if any(_finding(one) in FINDINGS for one in line.get("boxes", [])):
        kinds.append("detection")
    if "region_findings" in line:
        kinds.append("region_classification")
    if "nih_labels" in line or "sentences" in line:
        kinds.append("report")
    if line.get("hints"):
        kinds.append("hints")
    return kinds


def _truth(line: FilmLine, seen: FloatArray | np.ndarray[tuple[int], np.dtype[np.float64]]) -> Truth:
    """Translate a line whose film's square has these edges in pixels."""
    regions: dict[str, FloatArray] = {}
    found: dict[str, list[FloatArray]] = {}
    sides: dict[tuple[str, str | None], list[FloatArray]] = {}
    for one in line.get("boxes", []):
        box = _unit(one["xyxy"], seen)
        if box is None:
            continue
        if region := _region(one):
            regions[region] = box
        elif finding := _finding(one):
            found.setdefault(finding, []).append(box)
            sides.setdefault((finding, one.get("side")), []).append(box)
    boxes = {key: np.stack(some) for key, some in found.items() if key in _DETECTED}
    whole = "region_findings" in line
    present = {key: key in found for key in (*FINDINGS, *NEVER_SHOWN)} if whole else _labels(line)
    nothing = whole or _NO_FINDING in line.get("nih_labels", [])
    return Truth(
        boxes=boxes,
        located=frozenset(FINDINGS) if nothing else frozenset(boxes),
        labels=labels_of(present) if whole else present,
        regions=regions,
        region_findings={
            name: frozenset(there) for name, there in line.get("region_findings", {}).items() if name in regions
        },
        judged=frozenset(FINDINGS) if whole else frozenset(),
        report=" ".join(one["text"] for one in line.get("sentences", [])),
        hints=tuple(_asked(one, sides) for one in line.get("hints", [])),
    )


def _labels(line: FilmLine) -> dict[str, bool]:
    """Translate labels of ChestX-ray14, which it has of every film or of none."""
    if "nih_labels" not in line:
        return {}
    there = {NIH_LABELS[label] for label in line["nih_labels"] if label in NIH_LABELS}
    return {key: key in there for key in dict.fromkeys(NIH_LABELS.values())}


def _asked(hint: HintLine, sides: Mapping[tuple[str, str | None], list[FloatArray]]) -> Asked:
    other = "left" if hint["side"] == "right" else "right"
    own, others = (
        np.array(sides.get((hint["finding"], side), []), dtype=np.float32).reshape(-1, 4)
        for side in (hint["side"], other)
    )
    return Asked(text=hint["text"], boxes=own, others=others, taught=True)


def _unit(xyxy: Sequence[float], seen: np.ndarray[tuple[int, ...], np.dtype[np.floating]]) -> FloatArray | None:
    """Bring pixels of a film into the square; None for what lies outside of it."""
    offset, size = np.tile(seen[:2], 2), np.tile(seen[2:] - seen[:2], 2)
    corners = ((np.array(xyxy, dtype=np.float64) - offset) / size).clip(0, 1)
    box: FloatArray = unit_boxes.to_center_size(corners).astype(np.float32)
    return box if box[2:].min() > _LEAST_SIDE else None


def _region(one: BoxLine) -> str | None:
    name = one.get("region", one["label"]).lower()
    return name if name in _REGIONS else None


def _finding(one: BoxLine) -> str | None:
    key = one.get("finding", one["label"].lower().replace(" ", "_"))
    return key if key in FINDINGS else NIH_LABELS.get(one["label"])


_DETECTED: frozenset[str] = frozenset(FINDINGS)
_REGIONS = frozenset(region.name for region in region_prompts() if not region.members)
