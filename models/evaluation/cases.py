"""Films with what is known of them, whether made by a program or taken from people.

Boxes are center x, center y, width, height in 0..1 of the square that the network sees. What is not known of a film is
not in its truth, and counts neither for nor against a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, get_args

import cv2
import numpy as np
from numpy.typing import NDArray

from models.answers import FloatArray
from models.manifest import Manifest
from models.phantoms import FINDINGS, Phantom, PhantomSet, hints_of, phantom

Task = Literal["detection", "anatomy", "region_classification", "report", "hints"]
TASKS: Final[tuple[Task, ...]] = get_args(Task)

NO_FINDING = "no_finding"
DEVICES = "support_devices"
NEVER_SHOWN: Final = ("enlarged_cardiomediastinum", "pleural_other", "pneumonia")
"""Classes of CheXpert that no phantom shows."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Asked:
    """A question about one side of a finding that both have; taught: whether training may have used its wording."""

    text: str
    boxes: FloatArray
    others: FloatArray
    taught: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Truth:
    """What is known of one film.

    boxes: [n, 4] of each finding that is there; located: the findings all of whose boxes are known, be there none
    labels: of the film, by CheXpert's classes; regions: [4] by Chest ImaGenome's names
    region_findings: what is in each region, among the findings in `judged`
    """

    boxes: Mapping[str, FloatArray] = field(default_factory=dict)
    located: frozenset[str] = frozenset()
    labels: Mapping[str, bool] = field(default_factory=dict)
    regions: Mapping[str, FloatArray] = field(default_factory=dict)
    region_findings: Mapping[str, frozenset[str]] = field(default_factory=dict)
    judged: frozenset[str] = frozenset()
    report: str = ""
    hints: tuple[Asked, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Case:
    """One film, upright, gray [row, column] in 0..1 as the model wants it."""

    name: str
    gray: FloatArray
    truth: Truth


class Films(Protocol):
    """A set of films, each made or read when it is asked for."""

    @property
    def tasks(self) -> frozenset[Task]:
        """What enough is known for."""

    def __len__(self) -> int:
        """How many there are."""

    def load(self, index: int) -> Case:
        """Give one of them. Raises ModelError where it cannot be had."""


class Phantoms:
    """Films made by a program, at the size of the network's input; everything is known of them."""

    tasks = frozenset(TASKS)

    def __init__(self, made: PhantomSet, manifest: Manifest) -> None:
        self._seeds = made.seeds
        self._manifest = manifest

    def __len__(self) -> int:
        return len(self._seeds)

    def load(self, index: int) -> Case:
        """Make one."""
        film = phantom(self._seeds[index], side=self._manifest.input.size)
        return Case(
            name=f"phantom-{film.seed}", gray=shown(film.pixels, self._manifest.gray), truth=truth_of_phantom(film)
        )


def truth_of_phantom(film: Phantom) -> Truth:
    """Say all that is true of a phantom."""
    return Truth(
        boxes={str(key): boxes for key, boxes in film.findings.items()},
        located=frozenset(FINDINGS),
        labels=labels_of({key: key in film.findings for key in FINDINGS} | dict.fromkeys(NEVER_SHOWN, False)),
        regions=film.regions,
        region_findings={region: frozenset(found) for region, found in film.region_findings.items()},
        judged=frozenset(FINDINGS),
        report=film.report,
        hints=tuple(
            Asked(text=hint.text, boxes=hint.boxes, others=hint.others, taught=not untaught)
            for untaught in (False, True)
            for hint in hints_of(film, untaught=untaught)
        ),
    )


def labels_of(known: Mapping[str, bool]) -> dict[str, bool]:
    """Complete what is known of a whole film: nothing is found where all but devices is absent, as CheXpert has it."""
    return dict(known) | {NO_FINDING: not any(there for key, there in known.items() if key != DEVICES)}


def shown(pixels: NDArray[np.uint8], gray: Literal["voi", "mimic_jpg"]) -> FloatArray:
    """Give a film's bytes the gray values that a model wants (SPEC.md 15); they are as displayed already."""
    if gray == "mimic_jpg":
        # No stretch to the full range before: what is equalized keeps no memory of its range.
        pixels = np.asarray(cv2.equalizeHist(pixels), dtype=np.uint8)
    return pixels.astype(np.float32) / np.float32(255)
