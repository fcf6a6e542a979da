"""The request for an evaluation. Imports no library that computes figures, so `--help` works without them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

DEFAULT: Final = Path(__file__).parents[3] / "node" / "read" / "prompt_sets" / "chexpert14.toml"
"""The prompt set that the node uses, if a site has none of its own."""

Task = Literal["detection", "anatomy", "region_classification", "report", "sentences", "films", "hints", "views"]
TASKS: Final[tuple[Task, ...]] = get_args(Task)
PublishedTask = Literal[
    "detection_vindr",
    "detection_nih8",
    "detection_mscxr",
    "grounding_mscxr",
    "region_classification_mscxr",
    "region_classification_imagenome",
    "region_explanation_mscxr",
    "region_explanation_imagenome",
    "report_mimic",
]
PUBLISHED_TASKS: Final[tuple[PublishedTask, ...]] = get_args(PublishedTask)
"""The tasks of the paper, by their data sets. They are measured only if they are named."""
CHOOSING: Final[frozenset[PublishedTask]] = frozenset(
    ("detection_vindr", "detection_nih8", "detection_mscxr", "grounding_mscxr")
)
"""Those that have settings to choose on other films."""
TEXT_TASKS: Final[tuple[PublishedTask, ...]] = (
    "region_explanation_mscxr",
    "region_explanation_imagenome",
    "report_mimic",
)
"""Those that compare texts."""

FigureTask = Literal["figure_4", "figure_5", "figure_6", "figure_8", "figure_9"]
FIGURE_TASKS: Final[tuple[FigureTask, ...]] = get_args(FigureTask)
"""The figures of the paper that have numbers of ours. They are measured only if they are named."""

ALL: Final = "all"
"""Every task that the labels suffice for but those of the paper."""
PAPER: Final = "paper"
"""Every task of the paper that the labels suffice for."""

DECIDED_TASKS: Final[frozenset[Task]] = frozenset(("detection", "report", "sentences"))
"""Those whose figures depend on the decisions of the manifest."""

MOST_FALSE: Final = 0.05
"""The expected number of present findings on the average patient film without a finding."""
CURVE: Final[Mapping[str, float]] = {f"sensitivity_at_{share}": share for share in (0.01, 0.02, 0.05, 0.1, 0.2)}
"""The points of a curve, by name: false positive rates on films without any finding."""
SHARES: Final[Mapping[str, str]] = {
    "with_box": "reported",
    "boxes_right": "boxes",
    "sides_right": "sides",
    "both_right": "both",
    "zones_right": "zones",
}
"""Counts of reported boxes, sides and zones: each numerator with its denominator."""
RULES: Final = "rules"
CHEXBERT: Final = "chexbert:"
"""The labelers of texts; the weights of CheXbert follow its name."""
RESAMPLES: Final = 100
PUBLISHED_RESAMPLES: Final = 250
TEXT_RESAMPLES: Final = 10
"""The number of bootstrap resamples for deviations: of the node's tasks, the paper's, and those of the paper's that
compare texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One evaluation.

    tasks: names of tasks and figures, or `ALL`, or `PAPER`; pictures: films on each contact sheet
    choose_on: a file of other films, on which the settings of published tasks are chosen; None: as published
    analysis: a file that names one of the paper's tasks and what it changes of it, see `Analysis`
    held_out: use only patients that a run held out, a share or a file
    resamples: number of bootstrap resamples, 0 for no deviations; None: the three defaults above
    labeler: the labeler of texts, `RULES` or `CHEXBERT` and the file of its weights; None: our rules
    metric_files: the folder with models and word lists for some figures of texts
    folds: whether the decisions for each fifth of the patients are chosen on the films of the others
    false_findings: expected present findings on the average film without a finding, by cross-fitted thresholds
    """

    model: Path
    data: str
    tasks: Sequence[str] = (ALL,)
    choose_on: Path | None = None
    analysis: Path | None = None
    engine: str = "onnx"
    prompts: Path = DEFAULT
    out: Path | None = None
    pictures: int = 12
    held_out: str | None = None
    resamples: int | None = None
    labeler: str | None = None
    metric_files: Path | None = None
    folds: bool = False
    false_findings: float = MOST_FALSE
