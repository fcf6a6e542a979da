"""The figures of the paper that show how a more precise prompt is answered: Figures 4, 5, 6, 8 and 9 (supplement E.3).

The paper plots them and prints no number, so each is a table of ours alone. Measured is the gIoU of a
prompt's likeliest box with a box of MS-CXR. The location of that box is the region of Chest ImaGenome with the highest
IoU among those that hold its class and their parts ("fine"), and the lung that this region is a part of ("coarse"). A
film counts if regions hold each class that MS-CXR has a box of.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from language.labels import NO_FINDING, Labeler
from models import boxes as unit_boxes
from models.engines import FloatArray
from models.errors import ModelError
from models.lab.evaluation.boxes_file import FileFilms
from models.lab.evaluation.published.classification import features_of
from models.lab.evaluation.published.labels import PublishedLabels
from models.lab.evaluation.published.model import PublishedModel, looked_at
from models.lab.evaluation.request import FigureTask
from models.lab.phantoms.truth import CIG_CLASSES
from models.lab.tasks.batch import Picture, as_array
from models.lab.tasks.prompts import class_prompts, embed
from models.progress import ProgressReport

PHRASES: Final = {prompt.name: prompt.positive for prompt in class_prompts("mscxr")}
"""The name of each class of MS-CXR, by its label."""
_CHEXPERT: Final = {name: name.removeprefix("mscxr/").replace(" ", "_").lower() for name in PHRASES}
_CIG: Final = {key: str(name) for key, name in CIG_CLASSES.items()} | {"pneumonia": "cig/disease/pneumonia"}
_PARTS: Final = ("upper lung zone", "mid lung zone", "lower lung zone", "hilar structures", "apical zone")
_LUNG_OF: Final = {f"{side} {part}": f"{side} lung" for side in ("left", "right") for part in _PARTS}
PUBLISHED_FILMS: Final = 98
_Overlap = Callable[[NDArray[np.floating], NDArray[np.floating]], NDArray[np.floating]]

BY_SEVERITY: Final = ("Mild", "Moderate", "Severe")
BY_CHANGE: Final = ("Improved", "Unchanged", "Worsened")
BY_NEGATION: Final = "No"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Instance:
    """A box [4] of MS-CXR, and where it lies.

    name: its class; fine, coarse: regions
    others: [n, 4], boxes of the class in the other lung; opposite: the box [4] of that lung, None if it has none
    """

    name: str
    box: FloatArray
    fine: str
    coarse: str
    others: FloatArray
    opposite: FloatArray | None

    def asked(self, region: str = "", *, word: str = "") -> str:
        """Return the prompt for the class, with a word before it, or a region after it."""
        phrase = f"{word} {PHRASES[self.name].lower()}" if word else PHRASES[self.name]
        return f"{phrase} in the {region}" if region else phrase


class Measured(NamedTuple):
    """How a kind of prompt did with one box: its gIoU with that box, and with the box it should stay away from."""

    kind: str
    own: float
    other: float


def instances_of(labels: PublishedLabels) -> list[Instance]:
    """Return the boxes of MS-CXR on a film; none if the film does not count."""
    made = []
    for name, boxes in labels.of(PHRASES).items():
        sought = _CIG[_CHEXPERT[name]]
        holding = {region for region, found in labels.region_findings.items() if sought in found}
        if not holding:
            return []
        holding |= {part for part, lung in _LUNG_OF.items() if lung in holding and part in labels.regions}
        regions = sorted(holding)
        of_regions = np.stack([labels.regions[region] for region in regions])
        fine = [regions[number] for number in _overlaps(unit_boxes.iou, boxes, of_regions).argmax(axis=1)]
        coarse = [_LUNG_OF.get(region, region) for region in fine]
        for box, own_fine, own in zip(boxes, fine, coarse, strict=True):
            is_opposite = [region == mirrored(own) for region in coarse]
            made.append(
                Instance(
                    name=name,
                    box=box,
                    fine=own_fine,
                    coarse=own,
                    others=boxes[is_opposite],
                    opposite=labels.regions.get(mirrored(own)),
                )
            )
    return made


def mirrored(region: str) -> str:
    """Return the region on the other side; "" if it is on none."""
    side, _, part = region.partition(" ")
    return {"left": f"right {part}", "right": f"left {part}"}.get(side, "")


def figures(
    model: PublishedModel,
    films: FileFilms,
    wanted: Sequence[FigureTask],
    labeler: Labeler,
    report: ProgressReport,
) -> dict[str, dict[str, object]]:
    """Compute these figures. Raises ModelError if a film cannot be read, or if none counts."""
    measured: dict[FigureTask, list[Measured]] = {task: [] for task in wanted}
    told = defaultdict[str, list[tuple[str, str]]](list)
    bias, counted = Counter[str](), 0
    for case, picture in looked_at(model, films, report, stage="reading, prompts"):
        instances = instances_of(case.published)
        counted += bool(instances)
        with torch.inference_mode():
            for task in measured.keys() & BOXES.keys():
                for instance in instances:
                    measured[task] += located(model, picture, instance, task)
            for instance in instances if "figure_6" in wanted else ():
                for kind, text in sentences(model, picture, instance).items():
                    told[kind].append((_CHEXPERT[instance.name], text))
            if "figure_9" in wanted:
                bias.update(nearest_regions(model, picture, case.published))
    if not counted:
        raise ModelError(
            "no film has boxes of MS-CXR in regions of Chest ImaGenome that hold their class; prepare mscxr with "
            "--mimic and the folder that imagenome was prepared to"
        )
    made: dict[str, dict[str, object]] = {}
    for task in wanted:
        made[task] = {"films": counted, "films_of_the_paper": PUBLISHED_FILMS}
        if task in BOXES:
            made[task]["by_prompt"] = _summarized(measured[task])
        if task == "figure_6":
            made[task] |= {"by_sentence": _counted(told, labeler), "labeler": labeler.name}
        if task == "figure_9":
            made[task]["nearest_region"] = dict(sorted(bias.items()))
    return made


def _hinted(instance: Instance) -> dict[str, str]:
    return {
        "no hint": instance.asked(),
        "coarse hint": instance.asked(instance.coarse),
        "fine hint": instance.asked(instance.fine),
    }


def _turned_away(instance: Instance) -> dict[str, str]:
    opposite = instance.asked(mirrored(instance.coarse))
    return {"no hint": instance.asked(), "right hint": instance.asked(instance.coarse), "opposite hint": opposite}


def _changed(instance: Instance) -> dict[str, str]:
    words = (*BY_SEVERITY, *BY_CHANGE, BY_NEGATION)
    return {"as it is": instance.asked(), **{word.lower(): instance.asked(word=word) for word in words}}


BOXES: Final[Mapping[FigureTask, Callable[[Instance], dict[str, str]]]] = {
    "figure_4": _hinted,
    "figure_5": _turned_away,
    "figure_6": _hinted,
    "figure_8": _changed,
}
"""The prompts of each figure that measures boxes, by their kind."""


def located(model: PublishedModel, picture: Picture, instance: Instance, task: FigureTask) -> Iterator[Measured]:
    """Measure the box of each prompt of a figure; nothing if the figure is not about such an instance."""
    others = instance.others
    if task == "figure_5":
        is_one_sided = not len(others) and instance.opposite is not None
        others = instance.opposite[np.newaxis] if is_one_sided and instance.opposite is not None else others[:0]
    if task in ("figure_4", "figure_5") and not len(others):
        return
    asked = BOXES[task](instance)
    found = likeliest(model, picture, list(asked.values()))
    own = _overlaps(unit_boxes.giou, found, instance.box[np.newaxis])[:, 0]
    other = _overlaps(unit_boxes.giou, found, others).max(axis=1) if len(others) else np.full(len(found), np.nan)
    yield from (Measured(*row) for row in zip(asked, own.tolist(), other.tolist(), strict=True))


def likeliest(model: PublishedModel, picture: Picture, prompts: Sequence[str]) -> FloatArray:
    """Return the likeliest box of each prompt, [prompt, 4]; no prompt sees another."""
    vectors = embed(model.network, model.phrases, [(prompt,) for prompt in prompts])
    boxes, scores, *_ = (as_array(part)[0] for part in model.network.find(*picture, vectors.unsqueeze(0)))
    best: FloatArray = boxes[np.arange(len(prompts)), scores.argmax(axis=1)]
    return best


def sentences(model: PublishedModel, picture: Picture, instance: Instance) -> dict[str, str]:
    """Write a sentence for each way to ask for an instance, each alone (Figure 6 b)."""
    named = embed(model.network, model.phrases, [(instance.asked(),)]).unsqueeze(0)
    box, is_prompted = torch.from_numpy(instance.box)[np.newaxis, np.newaxis], torch.ones(1, 1)
    features = {
        "box": features_of(model, picture, [instance.box])[0],
        "box and pathology": model.network.describe(*picture, box, named, is_prompted)[0],
    }
    texts = {"pathology": instance.asked(), "region": instance.coarse.capitalize()}
    for kind, text in (texts | {"pathology in the region": instance.asked(instance.coarse)}).items():
        vector = embed(model.network, model.phrases, [(text,)]).unsqueeze(0)
        features[kind] = model.network.find(*picture, vector)[3][0]
    return {kind: model.sentences.decode(model.network.write(own)[0].tolist()) for kind, own in features.items()}


def nearest_regions(model: PublishedModel, picture: Picture, labels: PublishedLabels) -> Iterator[str]:
    """Yield, for each class that no region of a film holds, the region with the highest IoU with its prompt's box."""
    held = frozenset[str]().union(*labels.region_findings.values())
    absent = [name for name in PHRASES if _CIG[_CHEXPERT[name]] not in held and name not in dict(labels.boxes)]
    if not labels.region_findings or not absent:
        return
    found = likeliest(model, picture, [PHRASES[name] for name in absent])
    regions = list(labels.regions)
    overlaps = _overlaps(unit_boxes.iou, found, np.stack([labels.regions[region] for region in regions]))
    for name, own in zip(absent, overlaps, strict=True):
        if own.max() > 0:
            yield f"{PHRASES[name]}: {regions[int(own.argmax())]}"


def _overlaps(measure: _Overlap, first: FloatArray, other: FloatArray) -> NDArray[np.floating]:
    """Measure every pair of center-size boxes [n, 4] and [m, 4]: [n, m]."""
    return measure(unit_boxes.to_corners(first), unit_boxes.to_corners(other))


def _summarized(measured: Sequence[Measured]) -> dict[str, dict[str, float | int | None]]:
    """Return the figures of each kind of prompt."""
    made: dict[str, dict[str, float | int | None]] = {}
    for kind in dict.fromkeys(row.kind for row in measured):
        own, other = np.array([row[1:] for row in measured if row.kind == kind]).T
        low, middle, high = np.quantile(own, (0.25, 0.5, 0.75)).tolist()
        made[kind] = {"boxes": len(own), "giou": middle, "giou_lower": low, "giou_upper": high}
        if not np.isnan(other).any():
            made[kind] |= {"giou_other": float(np.median(other)), "nearer": float((own > other).mean())}
    return made


def _counted(told: Mapping[str, Sequence[tuple[str, str]]], labeler: Labeler) -> dict[str, dict[str, float]]:
    """Return of each way to ask how often a sentence finds the class of the prompt, and how many others it speaks of.

    As in the caption of Figure 6 found or denied ("others_named"), and as in E.3 found ("others_found").
    """
    made = {}
    for kind, pairs in told.items():
        rows = []
        for key, text in pairs:
            marks = {name: mark for name, mark in labeler.label(text).items() if name != NO_FINDING}
            others = [mark for name, mark in marks.items() if name != key]
            rows.append((marks.get(key) == "positive", others.count("positive"), len(others)))
        queried, found, named = np.array(rows, dtype=np.float64).mean(axis=0).tolist()
        made[kind] = {"queried": queried, "others_found": found, "others_named": named}
    return made
