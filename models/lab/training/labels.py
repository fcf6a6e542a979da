"""The labels of one film, as arrays by the catalog's numbers, and as the line of JSON in which they are stored.

Before a run trains, it prints which labels it does not use.

A line holds these keys, all optional, with boxes as center x, center y, width, height in 0..1 of the film's central
square:

    present: {class: true or false}, of the whole film; a class that is not named is unknown
    mined: [class], those of them that were mined from a report, and may be wrong
    soft: {class: 0..1}, of mined ones: the mean of the label and another network's probability; training aims at it
    boxes: {class: [box]}; located: [class], the classes whose boxes are complete, possibly none
    regions: {region: box}; on a film that names any, the other regions are not visible
    region_present: {region: [class]}, classes in the region; region_known: [class], whose place is completely known
    said: [{text, positive, findings: [class], regions: [region], boxes: [box]}], the sentences of the report
    sides: [{finding, side, zone, box}], for questions about one side
    unused: {what: how many}, labels of the film that no training can use

Classes are named as in a catalog: CheXpert's by their keys, others by the names of their data sets. A run may use only
some of them, and says how many labels of others there are; a class or region that no catalog knows is refused.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, NotRequired, cast

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypedDict  # pydantic checks that of `typing` from Python 3.12 on

from models.documents import Rule
from models.lab.phantoms.truth import FINDINGS, Phantom
from models.lab.tasks.labels import ClassName, RegionName
from models.lab.training.catalog import Catalog
from models.lab.training.stages import Share

FloatArray = NDArray[np.float32]
BoolArray = NDArray[np.bool_]

LEAST_ROOM = 3
"""Places for the boxes of a class on one film; if one class has more boxes, all classes get more places."""


Edges = Annotated[list[float], Rule(lambda edges: None if _is_box(edges) else "must be four numbers")]


def _is_box(edges: Sequence[float]) -> bool:
    return len(edges) == 4 and all(map(math.isfinite, edges))


class SaidLine(TypedDict):
    """A sentence, as stored."""

    text: str
    positive: bool
    findings: list[ClassName]
    regions: list[RegionName]
    boxes: list[Edges]


class SideLine(TypedDict):
    """A finding on one side, as stored."""

    finding: ClassName
    side: str
    zone: str | None
    box: Edges


class Line(TypedDict):
    """A film, as stored."""

    present: NotRequired[dict[ClassName, bool]]
    mined: NotRequired[list[ClassName]]
    soft: NotRequired[dict[ClassName, Share]]
    boxes: NotRequired[dict[ClassName, list[Edges]]]
    located: NotRequired[list[ClassName]]
    regions: NotRequired[dict[RegionName, Edges]]
    region_present: NotRequired[dict[RegionName, list[ClassName]]]
    region_known: NotRequired[list[ClassName]]
    said: NotRequired[list[SaidLine]]
    sides: NotRequired[list[SideLine]]
    unused: NotRequired[dict[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A sentence of a report. positive: it reports its findings as present; boxes: [n, 4], those of its subject."""

    text: str
    positive: bool
    findings: tuple[int, ...]
    regions: tuple[int, ...]
    boxes: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class OnSide:
    """A finding on one side of the patient; zone: the lung's zone, None if it has none; box: [4]."""

    finding: int
    side: str
    zone: str | None
    box: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class FilmLabels:
    """All labels of a film.

    present, known, mined: [C], of the film; target: [C], 0..1, what the loss of presence aims at
    boxes: [C, T, 4]; valid: [C, T]; located: [C]
    regions: [A, 4]; seen: [A]; region_present, region_known: [A, C]
    """

    present: BoolArray
    known: BoolArray
    mined: BoolArray
    target: FloatArray
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
    """Return the labels of a phantom, by its findings' keys; classes that phantoms never show are marked absent."""
    return {
        "present": {key: key in film.findings for key in FINDINGS}
        | {"no_finding": not film.findings}
        | dict.fromkeys(("enlarged_cardiomediastinum", "pleural_other", "pneumonia"), False),
        "boxes": {key: _rows(boxes) for key, boxes in film.findings.items()},
        "located": list(FINDINGS),
        "regions": {name: _rows(box)[0] for name, box in film.regions.items()},
        "region_present": {name: sorted(found) for name, found in film.region_findings.items()},
        "region_known": list(FINDINGS),
        "said": [cast("SaidLine", asdict(sentence) | {"boxes": _rows(sentence.boxes)}) for sentence in film.sentences],
        "sides": [
            {"finding": instance.finding, "side": instance.side, "zone": instance.zone, "box": _rows(instance.box)[0]}
            for instance in film.instances
            if instance.side is not None and instance.finding != "support_devices"
        ],
    }


def labels_of(line: Line, catalog: Catalog) -> FilmLabels:
    """Turn a line into arrays. A class may be named by a phantom's key or by its name; its name takes precedence."""
    named = list(enumerate(catalog.classes))
    numbers = {phrases.finding: number for number, phrases in named if phrases.finding is not None}
    numbers |= {phrases.name: number for number, phrases in named}
    places = {name: number for number, name in enumerate(catalog.regions)}
    classes, regions = len(catalog.classes), len(catalog.regions)
    present, known = _marks(line.get("present", {}), numbers)
    target = present.astype(np.float32)
    for key, share in line.get("soft", {}).items():
        if key in numbers:
            target[numbers[key]] = share
    room = max([LEAST_ROOM, *(len(found) for key, found in line.get("boxes", {}).items() if key in numbers)])
    boxes = np.zeros((classes, room, 4), dtype=np.float32)
    valid = np.zeros((classes, room), dtype=np.bool_)
    for key, found in line.get("boxes", {}).items():
        if key in numbers:
            rows = as_boxes(found)
            boxes[numbers[key], : len(rows)], valid[numbers[key], : len(rows)] = rows, True
    shown = np.zeros((regions, 4), dtype=np.float32)
    seen = np.zeros(regions, dtype=np.bool_)
    for name, box in line.get("regions", {}).items():
        shown[places[name]], seen[places[name]] = box, True
    judged = _some(line.get("region_known", []), numbers, classes)
    region_present = np.zeros((regions, classes), dtype=np.bool_)
    for name, keys in line.get("region_present", {}).items():
        region_present[places[name]] = _some(keys, numbers, classes)
    return FilmLabels(
        present=present,
        known=known,
        mined=_some(line.get("mined", []), numbers, classes),
        target=target,
        boxes=boxes,
        valid=valid,
        located=_some(line.get("located", []), numbers, classes),
        regions=shown,
        seen=seen,
        region_present=region_present,
        region_known=seen[:, np.newaxis] & judged,
        said=tuple(_said(sentence, numbers, places) for sentence in line.get("said", [])),
        sides=tuple(
            OnSide(
                finding=numbers[side["finding"]], side=side["side"], zone=side["zone"], box=as_boxes([side["box"]])[0]
            )
            for side in line.get("sides", [])
            if side["finding"] in numbers
        ),
    )


def as_boxes(rows: Sequence[Sequence[float]]) -> FloatArray:
    """Make an array [n, 4] of a list, also of an empty one."""
    return np.array(rows, dtype=np.float32).reshape(-1, 4)


def _rows(boxes: FloatArray) -> list[list[float]]:
    """Round boxes to a hundredth of a pixel for storage."""
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


def count_unused(lines: Iterable[Line], catalog: Catalog) -> Counter[str]:
    """Count labels that no training can use, and the labels and boxes of classes that the run does not ask for."""
    asked = {phrases.name for phrases in catalog.classes} | {phrases.finding for phrases in catalog.classes}
    unused = Counter[str]()
    for line in lines:
        unused.update(line.get("unused", {}))
        for key in line.get("present", {}):
            if key not in asked:
                unused[f"labels of {key}"] += 1
        for key, boxes in line.get("boxes", {}).items():
            if key not in asked:
                unused[f"boxes of {key}"] += len(boxes)
        for found in line.get("region_present", {}).values():
            unused.update(f"findings of regions, {key}" for key in found if key not in asked)
    return unused
