"""What an evaluation is asked for. Imports no library that makes figures, so that help needs none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from models.evaluation.cases import Task
from models.evaluation.prompt_set import DEFAULT

Ablation = Literal["no_region_filter"]
ABLATIONS: Final[tuple[Ablation, ...]] = get_args(Ablation)

TRAINING_FILMS: Final = 200
"""Training phantoms that references are learned from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One evaluation.

    tasks: None for all that the films are good for; pictures: films on each contact sheet
    held_out: only patients that a run with this share kept from training; resamples: for deviations, 0 for none
    tune: choose the manifest's decisions on these films first; sensitivity: of thresholds, None for the best F1
    """

    model: Path
    data: str
    tasks: Sequence[Task] | None = None
    engine: str = "onnx"
    prompts: Path = DEFAULT
    out: Path | None = None
    pictures: int = 12
    ablations: Sequence[Ablation] = ()
    held_out: float | None = None
    resamples: int = 100
    training_films: int = TRAINING_FILMS
    tune: bool = False
    sensitivity: float | None = None
