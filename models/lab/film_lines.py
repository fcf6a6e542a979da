"""The lines of a file of films: one JSON object each, read alike by training and evaluation (docs/model/data.md).

Boxes are left, top, right, bottom in pixels of the picture that the line names. A label, class or region that no
catalog knows is refused. What a catalog knows and a reader has no use for is counted by that reader.

What somebody read goes before labels mined from reports (`trusted`). These are marked, because they are often
wrong: of 209 films of ChestX-ray14 with the mined label Pneumonia radiologists saw an opacity on 87. A film that was
read as normal has nothing abnormal in the lungs; devices may be there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NotRequired, TypedDict, cast

import numpy as np
from numpy.typing import NDArray

from language.labels import DEVICES, NO_FINDING
from language.sentences import by_rule
from models import boxes as unit_boxes
from models.contract import FindingState, Side
from models.errors import ModelError
from models.lab.phantoms.truth import FINDINGS
from models.lab.tasks.labels import (
    CHEXPERT,
    CIG,
    NIH_LABELS,
    UnknownLabel,
    check_classes,
    check_regions,
    class_of,
    classes_of_nih,
    labels_of_whole,
    region_of,
)
from models.lab.training.labels import Line, SaidLine

Boxes = Sequence[Sequence[float]]

_OPACITY: Final = "lung_opacity"
_OPACITIES: Final = (_OPACITY, "consolidation", "pneumonia")
"""The classes that are absent on a film without any opacity in the lungs."""
_IN_THE_LUNGS: Final = (
    *_OPACITIES,
    *("atelectasis", "edema", "lung_lesion", "pleural_effusion", "pleural_other", "pneumothorax"),
)
"""The classes that are absent on a film that was read as normal."""
_SEEN_AS_OPACITY: Final = frozenset({"Consolidation", "Edema", "Infiltration", "Pneumonia"})
"""Labels of ChestX-ray14 that mean an opacity; it has no label for opacities in general."""
_UNKNOWN_PLACE: Final = frozenset({NO_FINDING, "pneumonia", "pleural_other"})
_MIDDLE: Final = 0.5
FloatArray = NDArray[np.float32]

AS_STORED: Final = "as stored"
"""Gray values of a picture that are as the network of the paper saw them, whatever a model wants."""
LEAST_SIDE: Final = 1e-3
"""The smallest side of a box that counts, as a share of the square (spec §1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """The labels of a reading of the RSNA Pneumonia Detection Challenge; located: classes whose boxes are complete."""

    present: Mapping[str, bool]
    located: frozenset[str]


READINGS: Final[Mapping[str, _Reading]] = {
    "Normal": _Reading(
        present={**dict.fromkeys(_IN_THE_LUNGS, False), NO_FINDING: True}, located=frozenset(_IN_THE_LUNGS)
    ),
    "No Lung Opacity / Not Normal": _Reading(
        present={**dict.fromkeys(_OPACITIES, False), NO_FINDING: False}, located=frozenset(_OPACITIES)
    ),
    "Lung Opacity": _Reading(present={_OPACITY: True, NO_FINDING: False}, located=frozenset({_OPACITY})),
}
"""Readings by the field `rsna` of a line."""


def labels_of_line(film: FilmLine, *, boxes: Mapping[str, Boxes], regions: Mapping[str, Sequence[float]]) -> Line:
    """Combine the labels of a film into the stored form.

    boxes: those of classes by key; regions: those of regions by name
    Raises ValueError for an unknown reading.
    """
    reading = film.get("rsna")
    if reading is not None and reading not in READINGS:
        raise ValueError(f"rsna must be one of {', '.join(READINGS)}, not {reading!r}")
    of_nih = _mined(film["nih_labels"]) if "nih_labels" in film else {}
    whole = is_whole(film)
    present, mined = trusted(film, of_nih, read=labels_of_whole(boxes) if whole else {})
    located = {*boxes, *film.get("located", []), *(FINDINGS if whole else ())}
    if of_nih.get(NO_FINDING) and present[NO_FINDING]:
        located |= of_nih.keys() - _UNKNOWN_PLACE
    if reading is not None:
        located |= READINGS[reading].located
    line: Line = {
        "regions": {name: list(box) for name, box in regions.items()},
        "boxes": {key: [list(box) for box in found] for key, found in boxes.items()},
        "located": sorted(located),
    }
    if present:
        line["present"], line["mined"] = present, sorted(mined)
    if soft := {
        key: (present[key] + share) / 2 for key, share in film.get("probabilities", {}).items() if key in mined
    }:
        line["soft"] = soft
    if of_nih or reading is not None:
        shown = [key for key, there in present.items() if there and key in CHEXPERT]
        line["said"] = [sentence for key in shown for sentence in _sentences(key, boxes)]
    return line


def trusted(
    film: FilmLine, of_nih: Mapping[str, bool], *, read: Mapping[str, bool] | None = None
) -> tuple[dict[str, bool], set[str]]:
    """Join the labels of a film, so that a reading goes before labels mined from a report.

    of_nih: the labels of ChestX-ray14, mined; read: further labels that are no mined ones
    A film on which somebody saw something, other than a device, is not normal, whatever was mined.
    Returns all labels, and the classes of which only a mined label is known.
    """
    labels, of_report = film.get("labels", {}), set(film.get("mined", []))
    mined = {**of_nih, **{key: labels[key] for key in of_report}}
    seen = {
        **(READINGS[film["rsna"]].present if "rsna" in film else {}),
        **(read or {}),
        **{key: there for key, there in labels.items() if key not in of_report},
    }
    if NO_FINDING in mined and any(there for key, there in seen.items() if key not in (NO_FINDING, DEVICES)):
        seen.setdefault(NO_FINDING, False)
    return {**mined, **seen}, mined.keys() - seen.keys()


def _mined(nih_labels: Sequence[str]) -> dict[str, bool]:
    there = classes_of_nih(nih_labels)
    present = {key: key in there for key in NIH_LABELS.values()}
    if _SEEN_AS_OPACITY & set(nih_labels):
        present[_OPACITY] = True
    elif NO_FINDING in there:
        present[_OPACITY] = False
    return present


def _sentences(key: str, boxes: Mapping[str, Boxes]) -> list[SaidLine]:
    """Say that a class is present: once for each side with a box of it, or once without a side."""
    if key == NO_FINDING:
        return []
    sides: dict[Side | None, list[list[float]]] = {}
    for box in boxes.get(key, []):
        # A frontal film shows the patient's right side on its left.
        sides.setdefault(Side.RIGHT if box[0] < _MIDDLE else Side.LEFT, []).append(list(box))
    return [
        {
            "text": by_rule(name=key.replace("_", " "), state=FindingState.PRESENT, side=side, zone=None),
            "positive": True,
            "findings": [key],
            "regions": [],
            "boxes": found,
        }
        for side, found in (sides or {None: []}).items()
    ]


class BoxLine(TypedDict):
    """A box; finding, region: its subject, where the label does not name it."""

    label: str
    xyxy: list[float]
    finding: NotRequired[str]
    region: NotRequired[str]
    side: NotRequired[str | None]


class SentenceLine(TypedDict):
    """A sentence of the report, or a phrase; boxes: those of its subject, if they are known."""

    text: str
    positive: NotRequired[bool]
    findings: NotRequired[list[str]]
    regions: NotRequired[list[str]]
    boxes: NotRequired[list[list[float]]]


class HintLine(TypedDict):
    """A question about one side."""

    text: str
    finding: str
    side: str


class FilmLine(TypedDict):
    """A film."""

    file: str
    size: NotRequired[list[int]]
    patient: NotRequired[str]
    study: NotRequired[str]
    gray: NotRequired[str]
    view: NotRequired[str]
    sex: NotRequired[str]
    age: NotRequired[str]
    boxes: NotRequired[list[BoxLine]]
    nih_labels: NotRequired[list[str]]
    rsna: NotRequired[str]
    labels: NotRequired[dict[str, bool]]
    mined: NotRequired[list[str]]
    probabilities: NotRequired[dict[str, float]]
    located: NotRequired[list[str]]
    report: NotRequired[str]
    sentences: NotRequired[list[SentenceLine]]
    phrases: NotRequired[list[SentenceLine]]
    region_findings: NotRequired[dict[str, list[str]]]
    region_known: NotRequired[list[str]]
    cardiothoracic_ratio: NotRequired[float]
    hints: NotRequired[list[HintLine]]
    truth: NotRequired[Line]


def read_line(text: str | bytes, *, where: str) -> FilmLine:
    """Read a line and check it; of `truth` only `present`. Raises ModelError that begins with `where`."""
    try:
        line = cast("FilmLine", json.loads(text))
        if not isinstance(line["file"], str):
            raise TypeError('"file" must be a path')
        if not isinstance(line.get("truth", {}), dict):
            raise TypeError("truth is not as expected: it must be an object")
        if not isinstance(line.get("age", ""), str):
            raise TypeError('"age" must be text, as "57"')
        if line.get("gray", AS_STORED) != AS_STORED:
            raise ValueError(f"gray must be {AS_STORED!r}, or left out")
        if len(size := line.get("size", [1, 1])) != 2 or min(size) < 1:
            raise ValueError('"size" must be two whole numbers, columns and rows')
        patient_of(line)
        _check_boxes(line)
        _check_labels(line)
        _check_sentences(line)
        _check_regions(line)
    except UnknownLabel as error:
        raise ModelError(f"{where}: {error}") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{where}: not a film as expected ({error!r}); correct or remove it") from error
    return line


def patient_of(film: Mapping[str, object]) -> str:
    """Return the patient of a line: its `patient`, else the beginning of the picture's name as in ChestX-ray14."""
    return str(film["patient"]) if "patient" in film else Path(str(film["file"])).stem.split("_")[0]


def report_of(line: FilmLine) -> str:
    """Return the report of a line: its text, or its sentences."""
    return line["report"] if "report" in line else " ".join(sentence["text"] for sentence in line.get("sentences", []))


def meaning_of(box: BoxLine) -> tuple[str | None, str | None]:
    """Return the region and the class of a box; the class is None for a region."""
    region = region_of(box.get("region", box["label"]))
    if region is not None:
        return region, None
    return None, box["finding"] if "finding" in box else class_of(box["label"])


def is_whole(line: FilmLine) -> bool:
    """Whether the labels are complete, as those of a phantom: findings of regions, and no list of known ones."""
    return "region_findings" in line and "region_known" not in line


def in_square(xyxy: Sequence[float], square: NDArray[np.floating]) -> FloatArray | None:
    """Convert pixels to center-size in a square, given by its edges in pixels; None if too little lies inside."""
    offset, size = np.tile(square[:2], 2), np.tile(square[2:] - square[:2], 2)
    corners = ((np.array(xyxy, dtype=np.float64) - offset) / size).clip(0, 1)
    box: FloatArray = unit_boxes.to_center_size(corners).astype(np.float32)
    return box if box[2:].min() > LEAST_SIDE else None


def _check_boxes(line: FilmLine) -> None:
    for box in line.get("boxes", []):
        if "region" in box:
            check_regions([box["region"].lower()])
        elif "finding" in box:
            check_classes([box["finding"]])
        else:
            class_of(box["label"])
        _check_corners(box["xyxy"])


def _check_corners(xyxy: object) -> None:
    edges = np.array(xyxy, dtype=np.float64)
    if edges.shape != (4,) or not np.isfinite(edges).all():
        raise ValueError('every "xyxy" must be four numbers')


def _check_labels(line: FilmLine) -> None:
    classes_of_nih(line.get("nih_labels", []))
    if line.get("rsna", "Normal") not in READINGS:
        raise ValueError(f"rsna must be one of {', '.join(READINGS)}, not {line['rsna']!r}")
    labels, corrected = line.get("labels", {}), line.get("truth", {}).get("present", {})
    check_classes([*labels, *corrected])
    if not all(isinstance(label, bool) for label in (*labels.values(), *corrected.values())):
        raise ValueError("labels must be true or false")
    check_classes([*line.get("located", []), *line.get("mined", []), *line.get("probabilities", {})])
    if not all(0 <= probability <= 1 for probability in line.get("probabilities", {}).values()):
        raise ValueError("probabilities must be between 0 and 1")
    if unlabelled := sorted(set(line.get("mined", [])) - labels.keys()):
        raise ValueError(f"mined names {unlabelled[0]!r}, of which labels says nothing")
    check_classes(hint["finding"] for hint in line.get("hints", []))


def _check_sentences(line: FilmLine) -> None:
    report_of(line).strip()
    for sentence in (*line.get("sentences", []), *line.get("phrases", [])):
        if not isinstance(sentence["text"], str):
            raise TypeError("the text of a sentence must be a text")
        check_classes(sentence.get("findings", []))
        check_regions(sentence.get("regions", []))
        for box in sentence.get("boxes", []):
            _check_corners(box)


def _check_regions(line: FilmLine) -> None:
    """Refuse findings of regions that are no class of Chest ImaGenome, or not among the known ones."""
    check_regions(line.get("region_findings", {}))
    known = line.get("region_known")
    _check_of_regions(known or [])
    for found in line.get("region_findings", {}).values():
        _check_of_regions(found)
        for name in found:
            if known is not None and name not in known:
                raise ValueError(f"region_findings has {name!r}, which region_known does not name")
            if known is None and name not in FINDINGS:
                raise ValueError(f"region_findings has {name!r}; add region_known, what regions are judged for")


def _check_of_regions(names: Iterable[str]) -> None:
    """Raise UnknownLabel for a name that is neither a finding of phantoms nor a class of Chest ImaGenome."""
    for name in names:
        check_classes([name])
        if name not in FINDINGS and name not in CIG:
            raise UnknownLabel(f"{name!r} is no class of Chest ImaGenome, so it is nothing that a region is judged for")
