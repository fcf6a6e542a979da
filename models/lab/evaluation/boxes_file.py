"""Films listed in a file: one JSON object a line, one film each, beside the pictures that the lines name.

`models.lab.film_lines` describes a line. The output of `python -m models.phantoms` with `--truth` is accepted too:
`region_findings` without `region_known` means that all about a film is known.

A box belongs to a region if its label is one of Chest ImaGenome's, to a finding if ChestX-ray14 or CheXpert has it. A
class of ChestX-ray14 is absent if its label is missing; boxes imply absence only on a film without any finding, and
where `located` says that all boxes of a class are given. What no task measures is counted (`unmeasured`); the tasks
of the paper measure only if they are asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from language.labels import NO_FINDING
from models.engines import FloatArray
from models.errors import ModelError
from models.lab.evaluation.cases import EvaluationCase, SideQuestion, Truth, shown
from models.lab.evaluation.published.labels import labels_of_line, measures_box, published_tasks_of
from models.lab.evaluation.request import PublishedTask, Task
from models.lab.film_lines import (
    READINGS,
    FilmLine,
    HintLine,
    in_square,
    is_whole,
    meaning_of,
    patient_of,
    read_line,
    report_of,
    trusted,
)
from models.lab.phantoms import FINDINGS
from models.lab.phantoms.truth import CIG_CLASSES
from models.lab.tasks.labels import CHEXPERT, NIH_LABELS, OTHER_NIH_LABELS, classes_of_nih, labels_of_whole
from models.lab.training.split import Patients
from models.manifest import InputRule, Manifest
from models.reading.preprocess import square
from models.views import FRONTAL

_NO_FINDING = "No Finding"
_NOT_MINED = frozenset({"lung_opacity", "support_devices"})
"""Findings that ChestX-ray14 has no label for, so that its "No Finding" does not exclude them."""
_OF_CIG: Mapping[str, str] = {name: key for key, name in CIG_CLASSES.items()}
"""The finding that each class of Chest ImaGenome is measured as."""


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

    @property
    def published_tasks(self) -> frozenset[PublishedTask]:
        """The tasks of the paper that the labels of at least one film are sufficient for."""
        return frozenset(task for line in self._lines for task in published_tasks_of(line))

    @property
    def patients(self) -> frozenset[str]:
        """The patients of the films."""
        return frozenset(map(patient_of, self._lines))

    def unmeasured(self, published: Collection[PublishedTask] = ()) -> Counter[str]:
        """Count the labels that no task measures, by what they are; published: the tasks of the paper that are run."""
        rule = self._manifest.input
        return Counter(what for line in self._lines for what in (*_unmeasured(line, published), *_outside(line, rule)))

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
        gray = shown(np.asarray(pixels, dtype=np.uint8), "voi" if "gray" in line else self._manifest.gray)
        edges = np.array(seen, dtype=np.float64)
        truth = _truth(line, edges)
        published = labels_of_line(line, edges, truth.regions)
        return EvaluationCase(name=path.stem, gray=gray, truth=truth, published=published)


def read_films(path: Path, manifest: Manifest, *, held_out: Patients | None = None) -> FileFilms:
    """Read a file of films.

    held_out: use only these patients, as those that a training run held out
    Raises ModelError that names the line and its mistake.
    """
    try:
        texts = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{path} cannot be read ({error}); name a file with one film per line") from error
    lines = [read_line(text, where=f"{path}, line {number}") for number, text in enumerate(texts, 1) if text.strip()]
    if held_out is not None:
        lines = [line for line in lines if patient_of(line) in held_out]
    if not lines:
        raise ModelError(f"{path} holds no film{' of patients that were held out' if held_out is not None else ''}")
    return FileFilms(path, lines, manifest)


def _unmeasured(line: FilmLine, published: Collection[PublishedTask]) -> Iterator[str]:
    """Name each label of a line that no task measures; published: the tasks of the paper that are run."""
    yield from (f"{key} of truth, which training alone reads" for key in line.get("truth", {}) if key != "present")
    for box in line.get("boxes", []):
        region, finding = meaning_of(box)
        if region is None and finding not in _DETECTED and not measures_box(published, box):
            yield f"boxes of {finding or box['label']}"
    yield from (f"labels of {name}" for name in line.get("nih_labels", []) if name in OTHER_NIH_LABELS)
    yield from (f"labels of {name}" for name in line.get("labels", {}) if name not in CHEXPERT)
    placed = {meaning_of(box)[0] for box in line.get("boxes", [])}
    all_judged = "region_classification_imagenome" in {*published} & published_tasks_of(line)
    for region, found in line.get("region_findings", {}).items():
        if not (all_judged and region in placed):
            yield from (f"findings of regions, {name}" for name in found if _judged(name) is None)
        if region not in placed:
            yield from ("findings of regions without a box" for name in found if _judged(name) is not None)
    measured = bool({"grounding_mscxr", "region_explanation_mscxr"} & {*published})
    yield from ("located phrases" for phrase in line.get("phrases", []) if not (measured and phrase.get("boxes")))


def _outside(line: FilmLine, rule: InputRule) -> Iterator[str]:
    """Name each box that the network does not see; of a film whose line gives no size it is not known before."""
    if "size" not in line:
        return
    columns, rows = line["size"]
    edges = np.array(square(columns, rows, rule), dtype=np.float64)
    kinds = {
        "boxes": [box["xyxy"] for box in line.get("boxes", [])],
        "boxes of phrases": [box for phrase in line.get("phrases", []) for box in phrase.get("boxes", [])],
    }
    for kind, boxes in kinds.items():
        hidden = [box for box in boxes if in_square(box, edges) is None]
        yield from (f"{kind} outside the square that the network sees" for _ in hidden)


def _all_judged(names: Iterable[str]) -> frozenset[str]:
    return frozenset(key for name in names if (key := _judged(name)) is not None)


def _judged(name: str) -> str | None:
    """Return the finding by which a class of a region is measured; None if it is not."""
    return name if name in _DETECTED else _OF_CIG.get(name)


def _tasks_of(line: FilmLine) -> list[Task]:
    kinds: list[Task] = ["sentences"]
    meanings = [meaning_of(box) for box in line.get("boxes", [])]
    if any(region for region, _ in meanings):
        kinds.append("anatomy")
    if any(finding in _DETECTED for _, finding in meanings):
        kinds.append("detection")
    if "region_findings" in line:
        kinds.append("region_classification")
    is_labelled = "nih_labels" in line or any(key in CHEXPERT for key in (*line.get("labels", {}), *_corrected(line)))
    if is_labelled or report_of(line).strip():
        kinds.append("report")
    if is_labelled or is_whole(line):
        kinds.append("films")
    if line.get("hints"):
        kinds.append("hints")
    if line.get("view") in FRONTAL:
        kinds.append("views")
    return kinds


def _truth(line: FilmLine, seen: NDArray[np.float64]) -> Truth:
    """Convert a line; seen: the edges of the square, in pixels of the film."""
    regions: dict[str, FloatArray] = {}
    found: dict[str, list[FloatArray]] = {}
    sides: dict[tuple[str, str | None], list[FloatArray]] = {}
    for box_line in line.get("boxes", []):
        box, (region, finding) = in_square(box_line["xyxy"], seen), meaning_of(box_line)
        if box is None:
            continue
        if region is not None:
            regions[region] = box
        elif finding is not None:
            found.setdefault(finding, []).append(box)
            sides.setdefault((finding, box_line.get("side")), []).append(box)
    boxes = {key: np.stack(some) for key, some in found.items() if key in _DETECTED}
    whole = is_whole(line)
    known = frozenset[str](FINDINGS) if whole else _all_judged(line.get("region_known", []))
    return Truth(
        boxes=boxes,
        located=frozenset(FINDINGS) if whole else frozenset(boxes) | (_located(line) & _DETECTED),
        labels=labels_of_whole(found) if whole else _labels(line),
        regions=regions,
        region_findings={
            name: _all_judged(there) for name, there in line.get("region_findings", {}).items() if name in regions
        },
        judged=known,
        cardiothoracic_ratio=line.get("cardiothoracic_ratio"),
        report=report_of(line),
        view=line.get("view", "") if line.get("view") in FRONTAL else "",
        patient=patient_of(line),
        read_as=line.get("rsna", ""),
        groups=frozenset(_groups(line)),
        mined_normal=_mined_normal(line),
        age=int(age) if (age := line.get("age", "")).isdecimal() else None,
        hints=tuple(_asked(hint, sides) for hint in line.get("hints", [])),
    )


def _mined_normal(line: FilmLine) -> bool | None:
    """Return the label "no finding" that was mined; None if there is none, or if a reader gave that label."""
    labels = line.get("labels", {})
    if NO_FINDING in labels:
        return labels[NO_FINDING] if NO_FINDING in line.get("mined", []) else None
    return _NO_FINDING in line["nih_labels"] if "nih_labels" in line else None


def _labels(line: FilmLine) -> dict[str, bool]:
    """Convert labels, those that somebody read before mined ones; what readers corrected goes before all."""
    of_nih = {}
    if "nih_labels" in line:
        there = classes_of_nih(line["nih_labels"])
        of_nih = {key: key in there for key in dict.fromkeys(NIH_LABELS.values())}
    labels, _ = trusted(line, of_nih)
    return {key: there for key, there in {**labels, **_corrected(line)}.items() if key in CHEXPERT}


def _corrected(line: FilmLine) -> dict[str, bool]:
    """Return the labels of what `node corrections --export` wrote; its other keys are for training."""
    return line.get("truth", {}).get("present", {})


def _located(line: FilmLine) -> frozenset[str]:
    """Name the findings whose boxes are complete, because all are given or because the film has none.

    A mined "No Finding" says so only where nobody read otherwise.
    """
    read = READINGS[line["rsna"]].keys() - {NO_FINDING} if "rsna" in line else set[str]()
    is_normal = _NO_FINDING in line.get("nih_labels", []) and _labels(line)[NO_FINDING]
    normal = _DETECTED - _NOT_MINED if is_normal else frozenset[str]()
    return normal.union(read, line.get("located", []))


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


_DETECTED: frozenset[str] = frozenset(FINDINGS)
