"""Films with their labels, from phantoms or from people.

Boxes are center x, center y, width, height in 0..1 of the square that the network sees. What is unknown about a film is
missing from its labels and does not count in any figure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

import cv2
import numpy as np
from numpy.typing import NDArray

from language.labels import NO_FINDING
from models.engines import FloatArray
from models.lab.evaluation.published.labels import PublishedLabels
from models.lab.evaluation.request import TASKS, Task
from models.lab.evaluation.views import Kind
from models.lab.phantoms import FINDINGS, OTHER_KINDS, Phantom, PhantomSet, hints_of, other_film, phantom
from models.lab.tasks.labels import labels_of_whole
from models.manifest import Manifest


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SideQuestion:
    """A question about one side, for a finding on both sides; taught: training may have used its wording.

    boxes, others: the true boxes [n, 4] of the finding on that side, and on the other one
    """

    text: str
    boxes: FloatArray
    others: FloatArray
    taught: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Truth:
    """The labels of one film.

    boxes: [n, 4] of each present finding; located: the findings whose boxes are complete, also if there are none
    labels: presence by CheXpert's classes; regions: box [4] by Chest ImaGenome's names
    region_findings: the findings in each region, among the findings in `judged`
    cardiothoracic_ratio: if it is known more exactly than from the boxes of its regions
    view: AP or PA, "" if unknown or if it is no frontal chest film
    patient: their name in the file; age: in completed years; read_as: a radiologist's reading; groups: sex, decades of
    age and view; "" or none if unknown
    mined_normal: whether the label mined from the film's report is "no finding", whatever a radiologist read; None if
    there is none, or one of other origin goes before it
    """

    boxes: Mapping[str, FloatArray] = field(default_factory=dict)
    located: frozenset[str] = frozenset()
    labels: Mapping[str, bool] = field(default_factory=dict)
    regions: Mapping[str, FloatArray] = field(default_factory=dict)
    region_findings: Mapping[str, frozenset[str]] = field(default_factory=dict)
    judged: frozenset[str] = frozenset()
    cardiothoracic_ratio: float | None = None
    report: str = ""
    hints: tuple[SideQuestion, ...] = ()
    view: str = ""
    patient: str = ""
    read_as: str = ""
    groups: frozenset[str] = frozenset()
    mined_normal: bool | None = None
    age: int | None = None

    @property
    def is_normal(self) -> bool:
        """Whether somebody read the film as without a finding; a label mined from a report alone does not count."""
        return self.labels.get(NO_FINDING, False) and (self.mined_normal is None or bool(self.read_as))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EvaluationCase:
    """One film, upright, gray [row, column] in 0..1 as the model expects it.

    published: what the tasks of the paper measure it by
    others: makes films beside it that are no frontal chest films, by what they are
    """

    name: str
    gray: FloatArray
    truth: Truth
    published: PublishedLabels = field(default_factory=PublishedLabels)
    others: Callable[[], Mapping[Kind, FloatArray]] = dict


class CaseSource(Protocol):
    """A set of films; each is made or read when it is requested."""

    def __len__(self) -> int:
        """The number of films."""

    def load(self, index: int) -> EvaluationCase:
        """Return one film. Raises ModelError if it cannot be read."""


class Phantoms:
    """Phantoms at the size of the network's input; their labels are complete."""

    tasks: frozenset[Task] = frozenset(TASKS)

    def __init__(self, made: PhantomSet, manifest: Manifest) -> None:
        self._seeds = made.seeds
        self._manifest = manifest

    def __len__(self) -> int:
        return len(self._seeds)

    def load(self, index: int) -> EvaluationCase:
        """Make one film."""
        film = phantom(self._seeds[index], side=self._manifest.input.size)
        return EvaluationCase(
            name=f"phantom-{film.seed}",
            gray=shown(film.pixels, self._manifest.gray),
            truth=truth_of_phantom(film),
            others=lambda: self._others(film.seed),
        )

    def _others(self, seed: int) -> dict[Kind, FloatArray]:
        parts = [kind for kind in OTHER_KINDS if kind != "lateral"]
        side, gray = self._manifest.input.size, self._manifest.gray
        return {
            "lateral": shown(other_film(seed, "lateral", side).pixels, gray),
            "other": shown(other_film(seed, parts[seed % len(parts)], side).pixels, gray),
        }


def truth_of_phantom(film: Phantom) -> Truth:
    """Return the labels of a phantom."""
    return Truth(
        boxes={str(key): boxes for key, boxes in film.findings.items()},
        located=frozenset(FINDINGS),
        labels=labels_of_whole(film.findings),
        regions=film.regions,
        region_findings={region: frozenset(found) for region, found in film.region_findings.items()},
        judged=frozenset(FINDINGS),
        cardiothoracic_ratio=film.cardiothoracic_ratio,
        report=film.report,
        view=film.view,
        hints=tuple(
            SideQuestion(text=hint.text, boxes=hint.boxes, others=hint.others, taught=not untaught)
            for untaught in (False, True)
            for hint in hints_of(film, untaught=untaught)
        ),
    )


def shown(pixels: NDArray[np.uint8], gray: Literal["voi", "mimic_jpg"]) -> FloatArray:
    """Give a film's bytes the gray values that a model wants (spec §15); they are as displayed already."""
    if gray == "mimic_jpg":
        # Equalization does not depend on the range of the values, so no stretching is needed before.
        pixels = np.asarray(cv2.equalizeHist(pixels), dtype=np.uint8)
    return pixels.astype(np.float32) / np.float32(255)
