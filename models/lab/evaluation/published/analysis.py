"""How a task of the paper is asked otherwise than published: an analysis of Table 5 or 6, each by a file of its own.

The files stand in `models/lab/evaluation/analyses`; docs/model/paper.md has their keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from models.documents import from_file, read_toml

Analyzed = Literal["report_mimic", "region_explanation_imagenome", "region_classification_imagenome"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """The defaults are what is published.

    prompts: the prompts of a report; the filter compares with all pathologies, whichever are asked for
    filter: which region gets a sentence: one that is abnormal by the mean of all classes, as published, or by any class
    but that of no finding, as the paper says (DEP-12)
    positive_only: whether a pathology gets a sentence only if the filter takes it, too
    all_regions: whether a region gets a sentence whatever the filter says
    asked_by: whether a region is given by its box or by its name
    """

    task: Analyzed
    prompts: Literal["all", "pathologies", "regions"] = "all"
    filter: Literal["mean", "by_class"] = "mean"
    positive_only: bool = False
    all_regions: bool = False
    asked_by: Literal["box", "name"] = "box"

    def __post_init__(self) -> None:
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
    if how.prompts == "regions" and how.positive_only:
        return "positive_only leaves out pathologies, and prompts = regions asks for none; leave one of them out"
    if how.prompts == "pathologies" and how.all_regions:
        return "all_regions is about regions, and prompts = pathologies asks for none; leave one of them out"
    is_unfiltered = how.prompts == "pathologies" or how.all_regions
    if is_unfiltered and how.filter == "by_class" and not how.positive_only:
        return "filter changes nothing: without positive_only all that is asked for gets a sentence; leave it out"
    return None


PUBLISHED: Final = Analysis(task="report_mimic")
"""A report as published."""
