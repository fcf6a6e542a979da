"""How a task of the paper is asked otherwise than published: an ablation or an analysis, each by a file of its own.

The files stand in `models/lab/evaluation/analyses`; docs/model/paper.md has their keys. `find` asks the network so:
only some prompts see each other, or only some boxes count.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import torch
from torch import Tensor

from models.bounds import require
from models.documents import from_file, read_toml
from models.errors import ModelError
from models.lab.tasks.batch import Picture
from models.network.chex import Chex, whole_picture
from models.network.detector import Detection, aggregated

Analyzed = Literal[
    "report_mimic", "region_explanation_imagenome", "region_explanation_mscxr", "region_classification_imagenome"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """The defaults are what is published.

    prompts: of a report; the filter compares with all pathologies, whichever are asked for
    filter: which region gets a sentence: one that is abnormal by the mean of all classes, as published, or by any class
    but that of no finding, as the paper says (DEP-12)
    positive_only: whether a pathology gets a sentence only if the filter takes it, too
    all_regions: whether a region gets a sentence whatever the filter says
    asked_by: whether a region is given by its box, by its name, or by both
    together: at most so many prompts or boxes of a film see each other in the post decoder; 0: all
    boxes: at most so many boxes of each prompt count, the likeliest; 0: all
    """

    task: Analyzed
    prompts: Literal["all", "pathologies", "regions"] = "all"
    filter: Literal["mean", "by_class"] = "mean"
    positive_only: bool = False
    all_regions: bool = False
    asked_by: Literal["box", "name", "both"] = "box"
    together: int = 0
    boxes: int = 0

    def __post_init__(self) -> None:
        require(self, not_negative="together boxes")
        if why := _objection(self):
            raise ValueError(why)


def read_analysis(path: Path) -> Analysis:
    """Read the file of an analysis. Raises ModelError that lists every mistake in it."""
    return from_file(Analysis, read_toml(path, name="the file of an analysis"), path=path)


def _objection(how: Analysis) -> str | None:
    """Return why these settings do not go together, and what to do; None if they do."""
    is_report = how.task == "report_mimic"
    if is_report and how.asked_by != "box":
        return "asked_by is for regions: a report is given neither boxes nor names; leave it out"
    if not is_report and (how.prompts, how.filter, how.positive_only, how.all_regions) != ("all", "mean", False, False):
        return "prompts, filter, positive_only and all_regions are for task report_mimic; leave them out"
    if how.task == "region_explanation_mscxr" and how.asked_by != "box":
        return "asked_by must be box: a box of MS-CXR has no name but its phrase, which is the sentence that is wanted"
    if how.prompts == "regions" and how.positive_only:
        return "positive_only leaves out pathologies, and prompts = regions asks for none; leave one of them out"
    if how.prompts == "pathologies" and how.all_regions:
        return "all_regions is about regions, and prompts = pathologies asks for none; leave one of them out"
    is_unfiltered = how.prompts == "pathologies" or how.all_regions
    if is_unfiltered and how.filter == "by_class" and not how.positive_only:
        return "filter changes nothing: without positive_only all that is asked for gets a sentence; leave it out"
    if how.asked_by == "both" and how.together != 1:
        return "together must be 1: a box with a name is asked alone, and together the published code fails (BUG-4)"
    if not is_report and how.asked_by != "name" and how.boxes:
        return "boxes are those that the network gives a prompt; where a box is given, it is the only one; leave it out"
    return None


PUBLISHED: Final = Analysis(task="report_mimic")
"""A report as published."""


def find(network: Chex, picture: Picture, prompts: Tensor, how: Analysis) -> tuple[Tensor, Tensor]:
    """Locate prompts [Q, dim] on a film as `Chex.find` does, but for what an analysis says.

    Returns the aggregated scores [1, Q] and the features [1, Q, dim]. Raises ModelError for more boxes than there are.
    """
    most = network.detector.boxes_per_prompt
    if how.boxes > most:
        raise ModelError(f"boxes is {how.boxes}, but this network gives {most} of each prompt; set it to 1 to {most}")
    size = how.together or len(prompts)
    parts = [_find(network, picture, some, boxes=how.boxes or most) for some in torch.split(prompts, size)]
    scores, features = zip(*parts, strict=True)
    return torch.cat(scores, dim=1), torch.cat(features, dim=1)


def _find(network: Chex, picture: Picture, prompts: Tensor, *, boxes: int) -> tuple[Tensor, Tensor]:
    """Locate prompts that see each other, with so many of their boxes."""
    patches, positions, _ = picture
    every = network.detector.boxes_per_prompt
    found: Detection = network.detector(patches, positions, prompts.unsqueeze(0), group=every)
    if boxes < every:
        found = _likeliest(found, boxes)
    features = network.post_decoder.of_aggregated(found.aggregated, found.tokens, whole_picture(*picture))
    return found.aggregated_scores, features


def _likeliest(found: Detection, count: int) -> Detection:
    """Keep the likeliest boxes of each prompt, in their order, and aggregate these anew (spec §4.5)."""
    places = found.scores.topk(count, dim=-1).indices.sort(dim=-1).values
    scores = found.scores.gather(-1, places)
    boxes, tokens = (
        part.gather(2, places.unsqueeze(-1).expand(-1, -1, -1, part.shape[-1])) for part in (found.boxes, found.tokens)
    )
    return aggregated(boxes, scores, tokens)
