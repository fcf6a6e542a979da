"""What is true of a phantom: which findings lie where, in numbers and in words. Knows nothing of how it was drawn.

Every box is center x, center y, width, height in 0..1 of the square that the network sees, float32, clipped to it
(`models.boxes`). Right and left are the patient's, so right lies on the left of the picture.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

UnitBox = NDArray[np.float32]
"""[4]; several are [n, 4]."""
FindingKey = Literal[
    "atelectasis",
    "cardiomegaly",
    "consolidation",
    "edema",
    "fracture",
    "lung_lesion",
    "lung_opacity",
    "pleural_effusion",
    "pneumothorax",
    "support_devices",
]
"""The findings, by their keys in the node's prompt set for CheXpert."""
Side = Literal["right", "left"]
Severity = Literal["mild", "moderate", "severe"]
View = Literal["PA", "AP", "LATERAL", "NONE"]

FINDINGS: tuple[FindingKey, ...] = get_args(FindingKey)
MOST_BOXES = 3

CIG_CLASSES: Mapping[FindingKey, str] = {
    "atelectasis": "cig/af/atelectasis",
    "cardiomegaly": "cig/af/enlarged cardiac silhouette",
    "consolidation": "cig/af/consolidation",
    "edema": "cig/af/pulmonary edema/hazy opacity",
    "lung_lesion": "cig/af/lung lesion",
    "lung_opacity": "cig/af/lung opacity",
    "pleural_effusion": "cig/af/pleural effusion",
    "pneumothorax": "cig/af/pneumothorax",
}
"""The same findings among the classes of Chest ImaGenome, where fractures are two classes and devices are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One finding in one place.

    kind: which form it has, "lobar" or "pacemaker"; side: None where it has none, as the heart
    zone: of the lung, None where it has none; regions: the Chest ImaGenome regions that hold it
    """

    finding: FindingKey
    kind: str
    side: Side | None
    zone: Literal["upper", "mid", "lower"] | None
    severity: Severity
    box: UnitBox
    regions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """One sentence of a report, true of its film.

    findings: what it speaks of; positive: whether it says that these are there
    regions: where; boxes: [n, 4], of the findings, or of the region that it calls clear; none for an absent finding
    """

    text: str
    findings: tuple[FindingKey, ...]
    positive: bool
    regions: tuple[str, ...]
    boxes: UnitBox


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """A finding that both sides have, asked for on one of them: the answer must lie in `boxes`, not in `others`."""

    text: str
    finding: FindingKey
    side: Side
    boxes: UnitBox
    others: UnitBox


@dataclass(frozen=True, slots=True, kw_only=True)
class Phantom:
    """A film and all that is true of it.

    pixels: [side, side], bytes, white is dense; regions: those of the 29 Chest ImaGenome regions that the square shows
    cardiothoracic_ratio: of the heart as drawn; above 0.5 is cardiomegaly, and no film lies closer to it than 0.015
    Of a lateral or of another part of the body nothing is known but that: no regions, instances or sentences.
    """

    seed: int
    pixels: NDArray[np.uint8]
    view: View
    is_chest: bool
    cardiothoracic_ratio: float
    instances: tuple[Instance, ...]
    regions: Mapping[str, UnitBox]
    sentences: tuple[Sentence, ...]

    @property
    def is_frontal(self) -> bool:
        """Whether the film is one that the node reads."""
        return self.view in ("PA", "AP")

    @property
    def findings(self) -> dict[FindingKey, UnitBox]:
        """Boxes [n, 4] of each finding that is there, 1 to 3."""
        return {key: boxes for key in FINDINGS if len(boxes := self.boxes_of(key))}

    @property
    def severity(self) -> dict[FindingKey, Severity]:
        """The worst form of each finding that is there."""
        order = get_args(Severity)
        found = [(one.finding, order.index(one.severity)) for one in self.instances]
        return {key: order[max(degree for other, degree in found if other == key)] for key in self.findings}

    @property
    def region_findings(self) -> dict[str, frozenset[FindingKey]]:
        """What each region that the film shows holds; whatever is not named is not there."""
        return {
            region: frozenset(one.finding for one in self.instances if region in one.regions) for region in self.regions
        }

    @property
    def report(self) -> str:
        """The sentences as one text."""
        return " ".join(sentence.text for sentence in self.sentences)

    def boxes_of(self, key: FindingKey, side: Side | None = None) -> UnitBox:
        """Give the boxes [n, 4] of a finding, of both sides or of one."""
        boxes = [one.box for one in self.instances if one.finding == key and side in (None, one.side)]
        return np.array(boxes, dtype=np.float32).reshape(-1, 4)
