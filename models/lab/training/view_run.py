"""The run file of a view head: which model gets it, its sizes, what it learns from.

It is told from the run file of a whole training by its key `model`, which names a model directory here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from models.bounds import require
from models.documents import from_file, read_toml
from models.errors import ModelError
from models.lab.training.runfile import FilmSource
from models.lab.training.stages import Augmentation
from models.manifest import ViewSizes


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewData:
    """What the head learns from: real frontal films, and for each phantom a frontal, a lateral and a film of no chest.

    calibration: the share of patients and seeds that the head does not learn from: temperature and thresholds do
    corners: how often only a corner of a real film is shown, which is no chest
    """

    phantoms: int
    first_seed: int = 0
    films: tuple[FilmSource, ...] = ()
    calibration: float = 0.15
    corners: float = 0.15

    def __post_init__(self) -> None:
        require(self, above_zero="phantoms calibration", not_negative="first_seed", share="calibration corners")
        if self.first_seed + self.phantoms > 1_000_000:
            raise ValueError("first_seed + phantoms must not exceed 1000000: later seeds are reserved for tests")


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewTraining:
    """How the head learns. Weight decay is decoupled (AdamW); the learning rate falls to 0 along a cosine."""

    steps: int
    batch: int
    learning_rate: float
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        require(self, above_zero="steps batch learning_rate", not_negative="weight_decay")


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewRun:
    """A complete run. model: the directory that gets the head; an earlier head is replaced."""

    model: str
    seed: int
    head: ViewSizes
    data: ViewData
    training: ViewTraining
    augmentation: Augmentation = field(default_factory=Augmentation)
    device: Literal["cpu", "cuda"] = "cpu"
    threads: int = 1

    def __post_init__(self) -> None:
        require(self, above_zero="threads")
        if self.augmentation.flip:
            raise ValueError("augmentation.flip must be 0: the head learns what is mirrored")


def is_view_run(path: Path) -> bool:
    """Return whether a run file is that of a view head; False if it cannot be read."""
    try:
        return isinstance(read_toml(path, name="a run file").get("model"), str)
    except ModelError:
        return False


def read_view_run(path: Path) -> ViewRun:
    """Read a run file that `is_view_run` accepts. Raises ModelError that lists every mistake in it."""
    return from_file(ViewRun, read_toml(path, name="a run file"), path=path)
