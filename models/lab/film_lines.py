"""The lines of a file of films: one JSON object each, read alike by training and evaluation (docs/model/data.md).

Boxes are left, top, right, bottom in pixels of the picture that the line names. A label, class or region that no
catalog knows is refused. What a catalog knows and a reader has no use for is counted by that reader.

What somebody read goes before labels mined from reports (`trusted`). These are marked, because they are often
wrong: of 209 films of ChestX-ray14 with the mined label Pneumonia radiologists saw an opacity on 87. A film that was
read as normal has nothing abnormal in the lungs; devices may be there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal, NotRequired, cast

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypedDict  # pydantic checks that of `typing` from Python 3.12 on

from language.labels import DEVICES, NO_FINDING
from language.sentences import by_rule
from models import boxes as unit_boxes
from models.contract import FindingState, Side
from models.documents import Rule, from_table, refuse
from models.errors import ModelError
from models.lab.phantoms.truth import FINDINGS
from models.lab.tasks.labels import (
    CHEXPERT,
    NIH_LABELS,
    ClassName,
    JudgedName,
    NihLabel,
    RegionName,
    class_of,
    classes_of_nih,
    labels_of_whole,
    region_of,
    unknown_label,
    unknown_region,
)
from models.lab.training.labels import Edges, Line, SaidLine
from models.lab.training.stages import Share

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


READINGS: Final[Mapping[str, Mapping[str, bool]]] = {
    "Normal": {**dict.fromkeys(_IN_THE_LUNGS, False), NO_FINDING: True},
    "No Lung Opacity / Not Normal": {**dict.fromkeys(_OPACITIES, False), NO_FINDING: False},
    "Lung Opacity": {_OPACITY: True, NO_FINDING: False},
}
"""The labels of the readings of the RSNA Pneumonia Detection Challenge, by the field `rsna` of a line.

The boxes of the classes that a reading names are complete.
"""


def labels_of_line(film: FilmLine, *, boxes: Mapping[str, Boxes], regions: Mapping[str, Sequence[float]]) -> Line:
    """Combine the labels of a film into the stored form.

    boxes: those of classes by key; regions: those of regions by name
    """
    reading = film.get("rsna")
    of_nih = _mined(film["nih_labels"]) if "nih_labels" in film else {}
    whole = is_whole(film)
    present, mined = trusted(film, of_nih, read=labels_of_whole(boxes) if whole else {})
    located = {*boxes, *film.get("located", []), *(FINDINGS if whole else ())}
    if of_nih.get(NO_FINDING) and present[NO_FINDING]:
        located |= of_nih.keys() - _UNKNOWN_PLACE
    if reading is not None:
        located |= READINGS[reading].keys() - {NO_FINDING}
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
        **(READINGS[film["rsna"]] if "rsna" in film else {}),
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


def _wrong_size(size: Sequence[int]) -> str | None:
    return None if len(size) == 2 and min(size) > 0 else "must be two whole numbers, columns and rows"


def _wrong_subject(box: BoxLine) -> str | None:
    """Return what is wrong with the region of a box, or with its label if that names the subject."""
    if "region" in box:
        return unknown_region(box["region"].lower())
    return None if "finding" in box else unknown_label(box["label"])


class BoxLine(TypedDict):
    """A box; finding, region: its subject, where the label does not name it."""

    label: str
    xyxy: Edges
    finding: NotRequired[ClassName]
    region: NotRequired[str]
    side: NotRequired[str | None]


class SentenceLine(TypedDict):
    """A sentence of the report, or a phrase; boxes: those of its subject, if they are known."""

    text: str
    positive: NotRequired[bool]
    findings: NotRequired[list[ClassName]]
    regions: NotRequired[list[RegionName]]
    boxes: NotRequired[list[Edges]]


class HintLine(TypedDict):
    """A question about one side."""

    text: str
    finding: ClassName
    side: str


class FilmLine(TypedDict):
    """A film."""

    file: str
    size: NotRequired[Annotated[list[int], Rule(_wrong_size)]]
    patient: NotRequired[str]
    study: NotRequired[str]
    gray: NotRequired[Literal["as stored"]]
    view: NotRequired[str]
    sex: NotRequired[str]
    age: NotRequired[str]
    boxes: NotRequired[list[Annotated[BoxLine, Rule(_wrong_subject)]]]
    nih_labels: NotRequired[list[NihLabel]]
    rsna: NotRequired[Literal["Normal", "No Lung Opacity / Not Normal", "Lung Opacity"]]
    labels: NotRequired[dict[ClassName, bool]]
    mined: NotRequired[list[ClassName]]
    probabilities: NotRequired[dict[ClassName, Share]]
    located: NotRequired[list[ClassName]]
    report: NotRequired[str]
    sentences: NotRequired[list[SentenceLine]]
    phrases: NotRequired[list[SentenceLine]]
    region_findings: NotRequired[dict[RegionName, list[JudgedName]]]
    region_known: NotRequired[list[JudgedName]]
    cardiothoracic_ratio: NotRequired[float]
    hints: NotRequired[list[HintLine]]
    truth: NotRequired[Line]


def read_line(text: str | bytes, *, where: str) -> FilmLine:
    """Read a line and check it. Raises ModelError with every mistake in it; each begins with `where`."""
    try:
        line = cast("FilmLine", json.loads(text, object_hook=_without_nulls))
        from_table(FilmLine, line, unknown="ignore")
        refuse(_contradictions(line))
    except ValueError as error:
        mistakes = (mistake.removeprefix(": ") for mistake in str(error).split("\n"))
        raise ModelError("\n".join(f"{where}: {mistake}" for mistake in mistakes)) from error
    return line


def _without_nulls(table: dict[str, object]) -> dict[str, object]:
    """Leave out null, which programs write for a key that a film lacks."""
    return {key: value for key, value in table.items() if value is not None}


def _contradictions(line: FilmLine) -> Iterator[str]:
    """Yield what the keys of a line do not say together."""
    if unlabelled := sorted(set(line.get("mined", [])) - line.get("labels", {}).keys()):
        yield f"mined: names {unlabelled[0]!r}, of which labels says nothing"
    truth, known = line.get("truth", {}), line.get("region_known")
    if truth.get("soft", {}).keys() - truth.get("mined", []):
        yield "truth.soft: must be of classes that mined names"
    for name in sorted({name for found in line.get("region_findings", {}).values() for name in found}):
        if known is not None and name not in known:
            yield f"region_findings: has {name!r}, which region_known does not name"
        if known is None and name not in FINDINGS:
            yield f"region_findings: has {name!r}; add region_known, what regions are judged for"


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
