"""Films listed in a file: one JSON object a line, one film each, beside the pictures that the lines name.

These keys of a line are used: `file`, a path relative to this file; `boxes`, a list of {label, xyxy} in pixels of that
picture, each left, top, right, bottom; `nih_labels`, the labels of ChestX-ray14; `rsna`, a radiologist's reading, which
goes before them; `labels`, {class of CheXpert: true or false}, which go before both; `report`, its text, or
`sentences`, a list of {text}; `patient`, `view`, `sex`, `age`; `cardiothoracic_ratio`, if it is known more exactly than
from boxes of lungs and heart. The output of `python -m models.phantoms` with `--truth` is accepted too:
`region_findings` means that all about a film is known.

A box belongs to a region if its label is one of Chest ImaGenome's, to a finding if ChestX-ray14 or CheXpert has it. A
label that no catalog knows is refused. A class of ChestX-ray14 is absent if its label is missing; boxes imply absence
only on a film without any finding.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NotRequired, TypedDict, cast

import cv2
import numpy as np

from models import boxes as unit_boxes
from models.engines import FloatArray
from models.errors import ModelError
from models.lab.chexpert import NEVER_SHOWN, NIH_LABELS
from models.lab.evaluation.cases import EvaluationCase, SideQuestion, Truth, labels_of, shown
from models.lab.evaluation.request import Task
from models.lab.phantoms import FINDINGS
from models.lab.tasks.labels import UnknownLabel, check_classes, check_regions, class_of, classes_of_nih, region_of
from models.lab.training.films import patient_of
from models.lab.training.readings import READINGS
from models.lab.training.split import HeldOut
from models.manifest import Manifest
from models.reading.preprocess import square
from models.views import FRONTAL

_NO_FINDING = "No Finding"
_NOT_MINED = frozenset({"lung_opacity", "support_devices"})
"""Findings that ChestX-ray14 has no label for, so that its "No Finding" does not exclude them."""
_LEAST_SIDE = 1e-3
"""The smallest side of a box that counts, as a share of the square (spec §1)."""


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
    rsna: NotRequired[str]
    view: NotRequired[str]
    sex: NotRequired[str]
    age: NotRequired[str]
    labels: NotRequired[dict[str, bool]]
    report: NotRequired[str]
    cardiothoracic_ratio: NotRequired[float]
    region_findings: NotRequired[dict[str, list[str]]]
    sentences: NotRequired[list[SentenceLine]]
    hints: NotRequired[list[HintLine]]


class FileFilms:
    """The films of a file, read when they are requested."""

    def __init__(self, path: Path, lines: Sequence[FilmLine], manifest: Manifest) -> None:
        self._path, self._lines, self._manifest = path, lines, manifest

    @property
    def tasks(self) -> frozenset[Task]:
        """The tasks that the labels of at least one film are sufficient for."""
        kinds = {kind for line in self._lines for kind in _tasks_of(line)}
        return frozenset(kinds)

    def __len__(self) -> int:
        return len(self._lines)

    def name(self, index: int) -> str:
        """Return the path of a film, as its line gives it."""
        return self._lines[index]["file"]

    def load(self, index: int) -> EvaluationCase:
        """Read one film. Raises ModelError if its picture cannot be read, or has another size than its line says."""
        line = self._lines[index]
        path = self._path.parent / line["file"]
        pixels = cv2.imread(str(path), cv2.IMREAD_GRAYSCALE)
        if pixels is None:
            raise ModelError(f"{path} cannot be read as a picture (PNG or JPEG); restore it, or remove its line")
        rows, columns = pixels.shape
        if line.get("size", [columns, rows]) != [columns, rows]:
            raise ModelError(
                f"{path} has {columns} x {rows} pixels, but its line says {line['size']}; correct the line"
            )
        seen = square(columns, rows, self._manifest.input)
        gray = shown(np.asarray(pixels, dtype=np.uint8), self._manifest.gray)
        return EvaluationCase(name=path.stem, gray=gray, truth=_truth(line, np.array(seen, dtype=np.float64)))


def read_films(path: Path, manifest: Manifest, *, held_out: HeldOut | None = None) -> FileFilms:
    """Read a file of films.

    held_out: use only the patients that a training run held out
    Raises ModelError that names the line and its mistake.
    """
    try:
        texts = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{path} cannot be read ({error}); name a file with one film per line") from error
    lines = [_checked(text, where=f"{path}, line {number}") for number, text in enumerate(texts, 1) if text.strip()]
    if held_out is not None:
        lines = [line for line in lines if patient_of(line) in held_out]
    if not lines:
        raise ModelError(f"{path} holds no film{' of patients that were held out' if held_out is not None else ''}")
    return FileFilms(path, lines, manifest)


def _checked(text: str, *, where: str) -> FilmLine:
    """Read one line."""
    try:
        line = cast("FilmLine", json.loads(text))
        named = isinstance(line["file"], str)
        boxes = [
            (box_line["label"].lower(), np.array(box_line["xyxy"], dtype=np.float64))
            for box_line in line.get("boxes", [])
        ]
        whole = all(box.shape == (4,) and np.isfinite(box).all() for _, box in boxes)
        _report_of(line).strip()
        _check_labels(line)
    except UnknownLabel as error:
        raise ModelError(f"{where}: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelError(f"{where}: not a film as expected ({error!r}); correct or remove it") from error
    if not named or not whole:
        raise ModelError(f'{where}: "file" must be a path and every "xyxy" four numbers; correct or remove it')
    return line


def _check_labels(line: FilmLine) -> None:
    """Refuse labels, regions and findings that no catalog knows. Raises UnknownLabel."""
    for box in line.get("boxes", []):
        if "region" in box:
            check_regions([box["region"].lower()])
        elif "finding" in box:
            check_classes([box["finding"]])
        else:
            class_of(box["label"])
    classes_of_nih(line.get("nih_labels", []))
    if line.get("rsna", "Normal") not in READINGS:
        raise ValueError(f"rsna must be one of {', '.join(READINGS)}")
    labels = line.get("labels", {})
    check_classes(labels)
    if not all(isinstance(label, bool) for label in labels.values()):
        raise ValueError("labels must be true or false")
    check_regions(line.get("region_findings", {}))
    for found in line.get("region_findings", {}).values():
        check_classes(found)
    check_classes(hint["finding"] for hint in line.get("hints", []))


def _tasks_of(line: FilmLine) -> list[Task]:
    kinds: list[Task] = ["sentences"]
    if any(_region(box) for box in line.get("boxes", [])):
        kinds.append("anatomy")
    if any(_finding(box) in FINDINGS for box in line.get("boxes", [])):
        kinds.append("detection")
    if "region_findings" in line:
        kinds.append("region_classification")
    is_labelled = "nih_labels" in line or "labels" in line
    if is_labelled or _report_of(line).strip():
        kinds.append("report")
    if is_labelled or "region_findings" in line:
        kinds.append("films")
    if line.get("hints"):
        kinds.append("hints")
    if line.get("view") in FRONTAL:
        kinds.append("views")
    return kinds


def _truth(line: FilmLine, seen: FloatArray | np.ndarray[tuple[int], np.dtype[np.float64]]) -> Truth:
    """Convert a line; seen: the edges of the square, in pixels of the film."""
    regions: dict[str, FloatArray] = {}
    found: dict[str, list[FloatArray]] = {}
    sides: dict[tuple[str, str | None], list[FloatArray]] = {}
    for box_line in line.get("boxes", []):
        box = _unit(box_line["xyxy"], seen)
        if box is None:
            continue
        if region := _region(box_line):
            regions[region] = box
        elif finding := _finding(box_line):
            found.setdefault(finding, []).append(box)
            sides.setdefault((finding, box_line.get("side")), []).append(box)
    boxes = {key: np.stack(some) for key, some in found.items() if key in _DETECTED}
    whole = "region_findings" in line
    present = {key: key in found for key in (*FINDINGS, *NEVER_SHOWN)} if whole else _labels(line)
    return Truth(
        boxes=boxes,
        located=frozenset(FINDINGS) if whole else frozenset(boxes) | (_located(line) & _DETECTED),
        labels=labels_of(present) if whole else present,
        regions=regions,
        region_findings={
            name: frozenset(there) & _DETECTED
            for name, there in line.get("region_findings", {}).items()
            if name in regions
        },
        judged=frozenset(FINDINGS) if whole else frozenset(),
        cardiothoracic_ratio=line.get("cardiothoracic_ratio"),
        report=_report_of(line),
        view=line.get("view", "") if line.get("view") in FRONTAL else "",
        patient=patient_of(line),
        read_as=line.get("rsna", ""),
        groups=frozenset(_groups(line)),
        mined_normal=_mined_normal(line),
        hints=tuple(_asked(hint, sides) for hint in line.get("hints", [])),
    )


def _mined_normal(line: FilmLine) -> bool | None:
    return None if "labels" in line or "nih_labels" not in line else _NO_FINDING in line["nih_labels"]


def _report_of(line: FilmLine) -> str:
    return line["report"] if "report" in line else " ".join(sentence["text"] for sentence in line.get("sentences", []))


def _labels(line: FilmLine) -> dict[str, bool]:
    """Convert labels of ChestX-ray14, and take those of CheXpert."""
    labels = {}
    if "nih_labels" in line:
        there = classes_of_nih(line["nih_labels"])
        labels = {key: key in there for key in dict.fromkeys(NIH_LABELS.values())}
    if "rsna" in line:
        labels |= READINGS[line["rsna"]].present
    return labels | line.get("labels", {})


def _located(line: FilmLine) -> frozenset[str]:
    """Name the findings whose boxes are complete, because all are given or because the film has none."""
    read = READINGS[line["rsna"]].located if "rsna" in line else frozenset[str]()
    return read | (_DETECTED - _NOT_MINED if _NO_FINDING in line.get("nih_labels", []) else frozenset())


def _groups(line: FilmLine) -> Iterator[str]:
    """Name the groups that a film belongs to: its view, and the sex and decades of its patient."""
    if "view" in line:
        yield f"view {line['view']}"
    if "sex" in line:
        yield f"sex {line['sex']}"
    if line.get("age", "").isdecimal():
        age = int(line["age"])
        yield "age to 39" if age < 40 else "age 40 to 59" if age < 60 else "age from 60"


def _asked(hint: HintLine, sides: Mapping[tuple[str, str | None], list[FloatArray]]) -> SideQuestion:
    other = "left" if hint["side"] == "right" else "right"
    own, others = (
        np.array(sides.get((hint["finding"], side), []), dtype=np.float32).reshape(-1, 4)
        for side in (hint["side"], other)
    )
    return SideQuestion(text=hint["text"], boxes=own, others=others, taught=True)


def _unit(xyxy: Sequence[float], seen: np.ndarray[tuple[int, ...], np.dtype[np.floating]]) -> FloatArray | None:
    """Convert pixels of a film to the square; None if the box lies outside of it."""
    offset, size = np.tile(seen[:2], 2), np.tile(seen[2:] - seen[:2], 2)
    corners = ((np.array(xyxy, dtype=np.float64) - offset) / size).clip(0, 1)
    box: FloatArray = unit_boxes.to_center_size(corners).astype(np.float32)
    return box if box[2:].min() > _LEAST_SIDE else None


def _region(box: BoxLine) -> str | None:
    return region_of(box.get("region", box["label"]))


def _finding(box: BoxLine) -> str | None:
    return box["finding"] if "finding" in box else class_of(box["label"])


_DETECTED: frozenset[str] = frozenset(FINDINGS)
