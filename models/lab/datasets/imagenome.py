"""Chest ImaGenome: on films of MIMIC-CXR the boxes of regions, what each region holds, and the sentences about it.

Of the silver set, which a program made: train.jsonl, validate.jsonl and test.jsonl, by MIMIC-CXR's split. As published
a film needs five boxes, and none twice; a film to train on needs a report. A region is judged for all 53 classes.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple, TypedDict, cast

from models.errors import ModelError
from models.lab.datasets.mimic import SPLITS, Place, line_at, places_of
from models.lab.datasets.preparation import Listing, Made, Published
from models.lab.datasets.reports import clean
from models.lab.film_lines import FilmLine, SentenceLine
from models.lab.tasks.labels import CIG, REGIONS

Edges = tuple[float, float, float, float]

_LEAST_BOXES: Final = 5
_LEAST_WORDS: Final = 2
_CATEGORIES: Final = {"anatomicalfinding": "cig/af/", "disease": "cig/disease/"}
_READ: Final = frozenset((*_CATEGORIES, "nlp"))
"""The categories of attributes that count; "nlp" is normal or abnormal."""

PUBLISHED: Final = (
    Published(what="scene graphs", count=242_072, source="data set"),
    Published(what="classes of anatomical findings", count=43, source="paper"),
    Published(what="classes of diseases", count=10, source="paper"),
    Published(what="films in train.jsonl", count=227_382, source="paper"),
    Published(what="films in validate.jsonl", count=1_959, source="paper"),
    Published(what="films in test.jsonl", count=3_402, source="paper"),
)


class _Object(TypedDict):
    bbox_name: str
    width: float
    height: float
    original_x1: float
    original_y1: float
    original_x2: float
    original_y2: float


class _Attribute(TypedDict):
    bbox_name: str
    attributes: list[list[str]]
    phrases: list[str]


class _Scene(TypedDict):
    viewpoint: str
    objects: list[_Object]
    attributes: list[_Attribute]


class _Film(NamedTuple):
    place: Place
    scene: str
    needs_report: bool


class _Said:
    """The labels of a film: the findings of each region, and each phrase with its regions and findings."""

    def __init__(self) -> None:
        self.findings: dict[str, set[str]] = defaultdict(set)
        self.regions: dict[str, list[str]] = defaultdict(list)
        self.of_phrase: dict[str, set[str]] = defaultdict(set)
        self.abnormal: set[str] = set()


def listing(source: Path, mimic: Path) -> Listing[_Film]:
    """List the films.

    mimic: the folder of MIMIC-CXR's lines
    Raises ModelError that names file, line and column of what is missing or wrong.
    """
    scenes = source / "silver_dataset" / "scene_graph"
    if not scenes.is_dir():
        raise ModelError(f"{scenes} is missing; unpack scene_graph.zip in {scenes.parent}")
    names = {path.name for path in scenes.iterdir()}
    counts = Counter[str]({"scene graphs": len(names)})
    counts["classes of diseases"] = sum(name.startswith(_CATEGORIES["disease"]) for name in CIG)
    counts["classes of anatomical findings"] = len(CIG) - counts["classes of diseases"]
    films: dict[str, list[_Film]] = {name: [] for name in SPLITS}
    for split, name, place in places_of(mimic):
        if (scene := f"{name}_SceneGraph.json") not in names:
            counts["films without a scene graph, left out"] += 1
            continue
        names.remove(scene)
        films[split].append(_Film(place, scene=str(scenes / scene), needs_report=split == "train"))
    counts["scene graphs of no frontal film of MIMIC-CXR, left out"] = len(names)
    return Listing(
        films=[(name, film) for name, own in films.items() for film in own],
        make=make,
        counts=counts,
        published=PUBLISHED,
    )


def make(film: _Film, out: Path) -> Made:
    """Make the line of a film, or say why it is left out."""
    line = line_at(film.place, out)
    counts = Counter[str]()
    path = Path(film.scene)
    try:
        scene = cast("_Scene", json.loads(path.read_text(encoding="utf-8")))
        boxes, is_twice = _boxes(scene, line["size"], counts)
        said = _said(scene, counts)
        view = scene["viewpoint"]
    except (OSError, UnicodeDecodeError, LookupError, TypeError, ValueError) as error:
        raise ModelError(f"{path} is no scene graph as expected ({error!r}); unpack it again") from error
    reasons = {
        "films of another view in their scene graph": view not in ("AP", "PA"),
        f"films with fewer than {_LEAST_BOXES} boxes": len(boxes) < _LEAST_BOXES,
        "films with a box twice": is_twice,
        "films to train on without a report": film.needs_report and "report" not in line,
    }
    for reason, is_so in reasons.items():
        if is_so:
            return Made(None, counts + Counter([f"{reason}, left out"]))
    _add(line, boxes, said, counts)
    return Made(line, counts)


def joined(boxes: Iterable[Edges]) -> list[Edges]:
    """Join boxes that touch, each with the first that it touches, as published."""
    groups: list[Edges] = []
    for box in boxes:
        for place, other in enumerate(groups):
            if box[0] <= other[2] and other[0] <= box[2] and box[1] <= other[3] and other[1] <= box[3]:
                groups[place] = _around(box, other)
                break
        else:
            groups.append(box)
    return groups


def _around(first: Edges, second: Edges) -> Edges:
    return (
        min(first[0], second[0]),
        min(first[1], second[1]),
        max(first[2], second[2]),
        max(first[3], second[3]),
    )


def _boxes(scene: _Scene, size: list[int], counts: Counter[str]) -> tuple[dict[str, Edges], bool]:
    """Return the box of each object, clipped to the film, and whether one has several."""
    boxes: dict[str, Edges] = {}
    is_twice = False
    for thing in scene["objects"]:
        left, right = (max(0.0, min(float(size[0]), float(thing[edge]))) for edge in ("original_x1", "original_x2"))
        top, bottom = (max(0.0, min(float(size[1]), float(thing[edge]))) for edge in ("original_y1", "original_y2"))
        if thing["width"] <= 0 or thing["height"] <= 0 or right <= left or bottom <= top:
            counts["boxes without area, left out"] += 1
            continue
        is_twice |= thing["bbox_name"] in boxes
        boxes[thing["bbox_name"]] = (left, top, right, bottom)
    return boxes, is_twice


def _said(scene: _Scene, counts: Counter[str]) -> _Said:
    """Collect findings and phrases; the i-th list of attributes is of the i-th phrase."""
    said = _Said()
    for attribute in scene["attributes"]:
        region = attribute["bbox_name"]
        for names, text in zip(attribute["attributes"], attribute["phrases"], strict=True):
            parts = [name.split("|") for name in names]
            found = {_CATEGORIES[part[0]] + part[2] for part in parts if part[0] in _CATEGORIES and part[1] == "yes"}
            said.findings[region] |= found
            others = [part[0] for part in parts if part[0] not in _READ and part[1] == "yes"]
            counts.update(f"attributes of the category {category}, left out" for category in others)
            phrase = clean(text)
            if len(phrase.split()) < _LEAST_WORDS:
                counts[f"phrases of fewer than {_LEAST_WORDS} words, left out"] += 1
                continue
            said.of_phrase[phrase] |= found
            if region not in said.regions[phrase]:
                said.regions[phrase].append(region)
            if ["nlp", "yes", "abnormal"] in parts:
                said.abnormal.add(phrase)
    return said


def _add(line: FilmLine, boxes: Mapping[str, Edges], said: _Said, counts: Counter[str]) -> None:
    """Add regions, findings and sentences to a line of MIMIC-CXR."""
    line["boxes"] = [{"label": name, "xyxy": list(boxes[name])} for name in boxes if name in REGIONS]
    counts["boxes of regions"] += len(line["boxes"])
    counts["boxes of objects that are no region of the paper, left out"] += len(boxes) - len(line["boxes"])
    line["region_known"] = sorted(CIG)
    line["region_findings"] = {}
    for region in boxes:
        if region in REGIONS:
            found = said.findings.get(region, set())
            line["region_findings"][region] = sorted(found & CIG)
            counts["findings of regions"] += len(found & CIG)
            counts["findings that are no class of the paper, left out"] += len(found - CIG)
    without = (found & CIG for region, found in said.findings.items() if region not in line["region_findings"])
    counts["findings of regions without a box, left out"] += sum(map(len, without))
    sentences = {sentence["text"]: sentence for sentence in line.get("sentences", [])}
    counts["phrases that are no sentence of the report, added"] += len(said.regions.keys() - sentences.keys())
    for phrase, regions in said.regions.items():
        sentences[phrase] = _placed(phrase, regions, boxes, said)
    line["sentences"] = list(sentences.values())


def _placed(phrase: str, regions: list[str], boxes: Mapping[str, Edges], said: _Said) -> SentenceLine:
    return {
        "text": phrase,
        "positive": phrase in said.abnormal,
        "findings": sorted(said.of_phrase[phrase] & CIG),
        "regions": [region for region in regions if region in REGIONS and region in boxes],
        "boxes": [list(box) for box in joined(boxes[region] for region in regions if region in boxes)],
    }
