"""What is known of one film, as arrays by the catalog's numbers, and as the line of JSON in which it is kept.

A line holds, all of it optional, boxes as center x, center y, width, height in 0..1 of the film's central square:

    present: {class: true or false}, of the whole film; what is not named is not known
    boxes: {class: [box]}; located: [class], of which all boxes are named, be it that there are none
    regions: {region: box}; of a film that names any, others are not in sight
    region_present: {region: [class]}, what is there; region_known: [class], of which is known where it is and is not
    said: [{text, positive, findings: [class], regions: [region], boxes: [box]}], the sentences of the report
    sides: [{finding, side, zone, box}], for questions about one side

Classes are named as in the catalog; a name that it lacks is passed over, since a run may ask for a part of the classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NotRequired, TypedDict

import numpy as np
from numpy.typing import NDArray

from models.phantoms.truth import FINDINGS, Phantom
from models.training.catalog import Catalog

FloatArray = NDArray[np.float32]
BoolArray = NDArray[np.bool_]

MOST_BOXES = 3
"""Of a class on one film; the rest is left out."""


class SaidLine(TypedDict):
    """A sentence, as it is kept."""

    text: str
    positive: bool
    findings: list[str]
    regions: list[str]
    boxes: list[list[float]]


class SideLine(TypedDict):
    """A finding on one side, as it is kept."""

    finding: str
    side: str
    zone: str | None
    box: list[float]


class Line(TypedDict):
    """A film, as it is kept."""

    present: NotRequired[dict[str, bool]]
    boxes: NotRequired[dict[str, list[list[float]]]]
    located: NotRequired[list[str]]
    regions: NotRequired[dict[str, list[float]]]
    region_present: NotRequired[dict[str, list[str]]]
    region_known: NotRequired[list[str]]
    said: NotRequired[list[SaidLine]]
    sides: NotRequired[list[SideLine]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A sentence of a report. positive: it says that its findings are there; boxes: [n, 4], of what it speaks of."""

    text: str
    positive: bool
    findings: tuple[int, ...]
    regions: tuple[int, ...]
    boxes: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class OnSide:
    """A finding on one side of the patient. zone: of the lung, None where it has none; box: [4]."""

    finding: int
    side: str
    zone: str | None
    box: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """All that is known of a film.

    present, known: [C], of the film; boxes: [C, MOST_BOXES, 4]; valid: [C, MOST_BOXES]; located: [C]
    regions: [A, 4]; seen: [A]; region_present, region_known: [A, C]
    """

    present: BoolArray
    known: BoolArray
    boxes: FloatArray
    valid: BoolArray
    located: BoolArray
    regions: FloatArray
    seen: BoolArray
    region_present: BoolArray
    region_known: BoolArray
    said: tuple[Said, ...]
    sides: tuple[OnSide, ...]


def line_of(film: Phantom) -> Line:
    """Keep what is true of a phantom, by its findings' keys; what phantoms never show is absent from all of them."""
    return {
        "present": {key: key in film.findings for key in FINDINGS}
        | {"no_finding": not film.findings}
        | dict.fromkeys(("enlarged_cardiomediastinum", "pleural_other", "pneumonia"), False),
        "boxes": {key: _rows(boxes) for key, boxes in film.findings.items()},
        "located": list(FINDINGS),
        "regions": {name: _rows(box)[0] for name, box in film.regions.items()},
        "region_present": {name: sorted(found) for name, found in film.region_findings.items()},
        "region_known": list(FINDINGS),
        "said": [
            {
                "text": one.text,
                "positive": one.positive,
                "findings": list(one.findings),
                "regions": list(one.regions),
                "boxes": _rows(one.boxes),
            }
            for one in film.sentences
        ],
        "sides": [
            {"finding": one.finding, "side": one.side, "zone": one.zone, "box": _rows(one.box)[0]}
            for one in film.instances
            if one.side is not None and one.finding != "support_devices"
        ],
    }


def truth_of(line: Line, catalog: Catalog) -> Truth:
    """Turn a line into arrays. Phantoms' keys and the names of classes both name a class."""
    numbers = {one.name: number for number, one in enumerate(catalog.classes)}
    numbers |= {one.finding: number for number, one in enumerate(catalog.classes) if one.finding is not None}
    places = {name: number for number, name in enumerate(catalog.regions)}
    classes, regions = len(catalog.classes), len(catalog.regions)
    present, known = _marks(line.get("present", {}), numbers)
    boxes = np.zeros((classes, MOST_BOXES, 4), dtype=np.float32)
    valid = np.zeros((classes, MOST_BOXES), dtype=np.bool_)
    for key, found in line.get("boxes", {}).items():
        if key in numbers:
            rows = as_boxes(found[:MOST_BOXES])
            boxes[numbers[key], : len(rows)], valid[numbers[key], : len(rows)] = rows, True
    shown = np.zeros((regions, 4), dtype=np.float32)
    seen = np.zeros(regions, dtype=np.bool_)
    for name, box in line.get("regions", {}).items():
        shown[places[name]], seen[places[name]] = box, True
    judged = _some(line.get("region_known", []), numbers, classes)
    region_present = np.zeros((regions, classes), dtype=np.bool_)
    for name, keys in line.get("region_present", {}).items():
        region_present[places[name]] = _some(keys, numbers, classes)
    return Truth(
        present=present,
        known=known,
        boxes=boxes,
        valid=valid,
        located=_some(line.get("located", []), numbers, classes),
        regions=shown,
        seen=seen,
        region_present=region_present,
        region_known=seen[:, np.newaxis] & judged,
        said=tuple(_said(one, numbers, places) for one in line.get("said", [])),
        sides=tuple(
            OnSide(finding=numbers[one["finding"]], side=one["side"], zone=one["zone"], box=as_boxes([one["box"]])[0])
            for one in line.get("sides", [])
            if one["finding"] in numbers
        ),
    )


def as_boxes(rows: Sequence[Sequence[float]]) -> FloatArray:
    """Make [n, 4] of a list, also of an empty one."""
    return np.array(rows, dtype=np.float32).reshape(-1, 4)


def _rows(boxes: FloatArray) -> list[list[float]]:
    """Write boxes down, to a hundredth of a pixel."""
    return [[round(float(number), 5) for number in box] for box in boxes.reshape(-1, 4)]


def _said(line: SaidLine, numbers: Mapping[str, int], places: Mapping[str, int]) -> Said:
    return Said(
        text=line["text"],
        positive=line["positive"],
        findings=tuple(numbers[key] for key in line["findings"] if key in numbers),
        regions=tuple(places[name] for name in line["regions"]),
        boxes=as_boxes(line["boxes"]),
    )


def _marks(present: Mapping[str, bool], numbers: Mapping[str, int]) -> tuple[BoolArray, BoolArray]:
    count = max(numbers.values()) + 1
    return (
        _some([key for key, there in present.items() if there], numbers, count),
        _some(list(present), numbers, count),
    )


def _some(keys: Sequence[str], numbers: Mapping[str, int], count: int) -> BoolArray:
    marks = np.zeros(count, dtype=np.bool_)
    marks[[numbers[key] for key in keys if key in numbers]] = True
    return marks
