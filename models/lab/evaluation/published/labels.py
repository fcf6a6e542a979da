"""The labels that the paper's tasks measure a film by, in the names of their data sets."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.engines import FloatArray
from models.lab.evaluation.request import PublishedTask
from models.lab.film_lines import BoxLine, FilmLine, in_square, meaning_of, report_of
from models.lab.tasks.labels import CIG
from models.lab.tasks.prompts import DataSet, class_prompts

LOCATED: Final[Mapping[PublishedTask, DataSet]] = {
    "detection_vindr": "vindr",
    "detection_nih8": "nih8",
    "detection_mscxr": "mscxr",
}
"""The data set whose classes a task locates."""
_CLASSES: Final[Mapping[PublishedTask, frozenset[str]]] = {
    task: frozenset(prompt.name for prompt in class_prompts(data_set)) for task, data_set in LOCATED.items()
}
_NIH: Final = _CLASSES["detection_nih8"]
_SPELLINGS: Final = {"Infiltrate": "Infiltration"}


class Phrase(NamedTuple):
    """A phrase and its boxes [n, 4], center-size; at least one."""

    text: str
    boxes: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PublishedLabels:
    """What is known of a film; boxes are center-size, in 0..1 of the square that the network sees.

    boxes: the class and the box [4] of each, in the order of the line; located: classes of which all boxes are known
    phrases: sorted, each once
    regions: box [4] by name; region_findings: findings of the regions that are labeled for all classes
    region_texts: the sentences about each region, joined by blanks; report: "" if it is unknown
    """

    boxes: tuple[tuple[str, FloatArray], ...] = ()
    located: frozenset[str] = frozenset()
    phrases: tuple[Phrase, ...] = ()
    regions: Mapping[str, FloatArray] = field(default_factory=dict)
    region_findings: Mapping[str, frozenset[str]] = field(default_factory=dict)
    region_texts: Mapping[str, str] = field(default_factory=dict)
    report: str = ""

    def of(self, classes: Collection[str]) -> dict[str, FloatArray]:
        """Return the boxes [n, 4] of each of these classes that has any."""
        found: dict[str, list[FloatArray]] = {}
        for name, box in self.boxes:
            if name in classes:
                found.setdefault(name, []).append(box)
        return {name: np.stack(own) for name, own in found.items()}


def labels_of_line(line: FilmLine, seen: NDArray[np.float64], regions: Mapping[str, FloatArray]) -> PublishedLabels:
    """Read the labels of a line; seen: the edges of the square, in pixels of the film; regions: boxes in the square."""
    is_judged = _is_judged(line)
    return PublishedLabels(
        boxes=tuple(
            (name, box)
            for box_line in line.get("boxes", [])
            if (name := class_of_box(box_line)) is not None and (box := in_square(box_line["xyxy"], seen)) is not None
        ),
        located=frozenset(line.get("located", [])),
        phrases=tuple(_phrases(line, seen)),
        regions=regions,
        region_findings={
            name: frozenset(found)
            for name, found in line.get("region_findings", {}).items()
            if is_judged and name in regions
        },
        region_texts=_region_texts(line, regions),
        report=report_of(line).strip(),
    )


def class_of_box(box: BoxLine) -> str | None:
    """Return the class of a data set that a box is of; None if it is of none, as that of a region."""
    label = f"nih/{_SPELLINGS.get(box['label'], box['label'])}"
    if label in _NIH and not {"finding", "region"} & box.keys():
        return label
    return meaning_of(box)[1]


def published_tasks_of(line: FilmLine) -> set[PublishedTask]:
    """Return the tasks of the paper that the labels of a line are sufficient for."""
    named = {name for box in line.get("boxes", []) if (name := class_of_box(box)) is not None}
    located = {*line.get("located", [])}
    tasks = {task for task, classes in _CLASSES.items() if classes & named or classes <= located}
    if named & _CLASSES["detection_mscxr"]:
        tasks.add("region_classification_mscxr")
    if line.get("region_findings") and _is_judged(line):
        tasks.add("region_classification_imagenome")
    if any(phrase.get("boxes") for phrase in line.get("phrases", [])):
        tasks |= {"grounding_mscxr", "region_explanation_mscxr"}
    if any(sentence.get("regions") for sentence in line.get("sentences", [])):
        tasks.add("region_explanation_imagenome")
    if report_of(line).strip():
        tasks.add("report_mimic")
    return tasks


def measures_box(tasks: Collection[PublishedTask], box: BoxLine) -> bool:
    """Return whether one of these tasks measures a box by its class."""
    name = class_of_box(box)
    if name in _CLASSES["detection_mscxr"] and "region_classification_mscxr" in tasks:
        return True
    return any(name in _CLASSES.get(task, ()) for task in tasks)


def _is_judged(line: FilmLine) -> bool:
    """Return whether the regions of a line are judged for all classes of Chest ImaGenome."""
    return {*line.get("region_known", [])} >= CIG


def _phrases(line: FilmLine, seen: NDArray[np.float64]) -> Iterator[Phrase]:
    """Return each phrase once, with the boxes of all its mentions that lie in the square."""
    found: dict[str, list[FloatArray]] = {}
    for phrase in line.get("phrases", []):
        boxes = (in_square(edges, seen) for edges in phrase.get("boxes", []))
        found.setdefault(phrase["text"], []).extend(box for box in boxes if box is not None)
    for text in sorted(found):
        if found[text]:
            yield Phrase(text, np.stack(found[text]))


def _region_texts(line: FilmLine, regions: Collection[str]) -> dict[str, str]:
    texts: dict[str, list[str]] = {}
    for sentence in line.get("sentences", []):
        for region in sentence.get("regions", []):
            if region in regions:
                texts.setdefault(region, []).append(sentence["text"].strip())
    return {region: " ".join(own) for region, own in texts.items()}
