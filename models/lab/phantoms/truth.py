"""The labels of a phantom: which findings are where, as numbers and as sentences. Independent of how it is drawn.

Every box is center x, center y, width, height in 0..1 of the square that the network sees, float32, clipped to it
(`models.boxes`). Right and left are the patient's, so right is on the left of the picture.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

UnitBox = NDArray[np.float32]
"""[4]; several boxes are [n, 4]."""
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
"""The Chest ImaGenome class of each finding; fractures are two classes there, and devices have none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingInstance:
    """One finding in one place.

    kind: its form, such as "lobar" or "pacemaker"; side: None if it has none, as the heart
    zone: the lung's zone, None if it has none; regions: the Chest ImaGenome regions that hold it
    """

    finding: FindingKey
    kind: str
    side: Side | None
    zone: Literal["upper", "mid", "lower"] | None
    severity: Severity
    box: UnitBox
    regions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PhantomSentence:
    """One sentence of a report, true of its film.

    findings: what it is about; positive: whether it reports them as present
    regions: where; boxes: [n, 4], of the findings, or of the region that it calls clear; none for an absent finding
    """

    text: str
    findings: tuple[FindingKey, ...]
    positive: bool
    regions: tuple[str, ...]
    boxes: UnitBox


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """A question about one side, for a finding that both sides have: the answer must be in `boxes`, not in `others`."""

    text: str
    finding: FindingKey
    side: Side
    boxes: UnitBox
    others: UnitBox


@dataclass(frozen=True, slots=True, kw_only=True)
class Phantom:
    """A film and all its labels.

    pixels: [side, side], bytes, white is dense; regions: those of the 29 Chest ImaGenome regions that the square shows
    cardiothoracic_ratio: of the drawn heart; above 0.5 is cardiomegaly, and no film is within 0.015 of 0.5
    A lateral film or one of another part of the body has no regions, instances or sentences.
    """

    seed: int
    pixels: NDArray[np.uint8]
    view: View
    is_chest: bool
    cardiothoracic_ratio: float
    instances: tuple[FindingInstance, ...]
    regions: Mapping[str, UnitBox]
    sentences: tuple[PhantomSentence, ...]

    @property
    def findings(self) -> dict[FindingKey, UnitBox]:
        """Boxes [n, 4] of each finding that is present, 1 to 3."""
        return {key: boxes for key in FINDINGS if len(boxes := self.boxes_of(key))}

    @property
    def region_findings(self) -> dict[str, frozenset[FindingKey]]:
        """The findings in each region that the film shows; a finding that is not named is absent."""
        return {
            region: frozenset(instance.finding for instance in self.instances if region in instance.regions)
            for region in self.regions
        }

    @property
    def report(self) -> str:
        """All sentences as one text."""
        return " ".join(sentence.text for sentence in self.sentences)

    def boxes_of(self, key: FindingKey, side: Side | None = None) -> UnitBox:
        """Return the boxes [n, 4] of a finding, of both sides or of one."""
        boxes = [
            instance.box for instance in self.instances if instance.finding == key and side in (None, instance.side)
        ]
        return np.array(boxes, dtype=np.float32).reshape(-1, 4)
