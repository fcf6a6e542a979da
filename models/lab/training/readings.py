"""What the labels of a real film say, for training: a radiologist's reading goes before labels mined from reports.

A mined label is marked as such, because it is often wrong: of 209 films of ChestX-ray14 with the mined label Pneumonia
radiologists saw an opacity on 87. A film that was read as normal has nothing abnormal in the lungs; devices may be
there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from language.labels import NO_FINDING
from language.sentences import by_rule
from models.contract import FindingState, Side
from models.lab.chexpert import NIH_LABELS
from models.lab.tasks.labels import classes_of_nih
from models.lab.training.labels import Line, SaidLine

Boxes = Sequence[Sequence[float]]

_OPACITY: Final = "lung_opacity"
_OPACITIES: Final = (_OPACITY, "consolidation", "pneumonia")
"""What a film without any opacity in the lungs does not show."""
_IN_THE_LUNGS: Final = (
    *_OPACITIES,
    *("atelectasis", "edema", "lung_lesion", "pleural_effusion", "pleural_other", "pneumothorax"),
)
"""What a film that was read as normal does not show."""
_SEEN_AS_OPACITY: Final = frozenset({"Consolidation", "Edema", "Infiltration", "Pneumonia"})
"""Labels of ChestX-ray14 that mean an opacity; it has no label for opacities in general."""
_UNKNOWN_PLACE: Final = frozenset({NO_FINDING, "pneumonia", "pleural_other"})
_MIDDLE: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """What a reading of the RSNA Pneumonia Detection Challenge says. located: classes whose boxes are complete."""

    present: Mapping[str, bool]
    located: frozenset[str]


READINGS: Final[Mapping[str, _Reading]] = {
    "Normal": _Reading(
        present={**dict.fromkeys(_IN_THE_LUNGS, False), NO_FINDING: True}, located=frozenset(_IN_THE_LUNGS)
    ),
    "No Lung Opacity / Not Normal": _Reading(
        present={**dict.fromkeys(_OPACITIES, False), NO_FINDING: False}, located=frozenset(_OPACITIES)
    ),
    "Lung Opacity": _Reading(present={_OPACITY: True, NO_FINDING: False}, located=frozenset({_OPACITY})),
}
"""Readings by the field `rsna` of a line."""


def labels_of_line(
    *,
    nih_labels: Sequence[str] | None,
    reading: str | None,
    boxes: Mapping[str, Boxes],
    regions: Mapping[str, Sequence[float]],
) -> Line:
    """Combine what is known of a film into the stored form.

    nih_labels: those mined from its report, None if there are none; reading: a key of READINGS
    boxes: of classes, by their keys; regions: by their names
    Raises ValueError for an unknown reading.
    """
    if reading is not None and reading not in READINGS:
        raise ValueError(f"rsna must be one of {', '.join(READINGS)}, not {reading!r}")
    mined = {} if nih_labels is None else _mined(nih_labels)
    located = set(boxes)
    if mined.get(NO_FINDING):
        located |= mined.keys() - _UNKNOWN_PLACE
    said = READINGS[reading] if reading is not None else _Reading(present={}, located=frozenset())
    present = {**mined, **said.present}
    line: Line = {
        "regions": {name: list(box) for name, box in regions.items()},
        "boxes": {key: [list(box) for box in found] for key, found in boxes.items()},
        "located": sorted(located | said.located),
    }
    if present:
        line["present"] = present
        line["mined"] = sorted(mined.keys() - said.present.keys())
        line["said"] = [sentence for key, there in present.items() if there for sentence in _sentences(key, boxes)]
    return line


def _mined(nih_labels: Sequence[str]) -> dict[str, bool]:
    there = classes_of_nih(nih_labels)
    present = {key: key in there for key in NIH_LABELS.values()}
    if _SEEN_AS_OPACITY & set(nih_labels):
        present[_OPACITY] = True
    elif NO_FINDING in there:
        present[_OPACITY] = False
    return present


def _sentences(key: str, boxes: Mapping[str, Boxes]) -> list[SaidLine]:
    """Say that a class is present: once for each side with a box of it, or once without a side."""
    if key == NO_FINDING:
        return []
    sides: dict[Side | None, list[list[float]]] = {}
    for box in boxes.get(key, []):
        # A frontal film shows the patient's right side on its left.
        sides.setdefault(Side.RIGHT if box[0] < _MIDDLE else Side.LEFT, []).append(list(box))
    return [
        {
            "text": by_rule(name=key.replace("_", " "), state=FindingState.PRESENT, side=side, zone=None),
            "positive": True,
            "findings": [key],
            "regions": [],
            "boxes": found,
        }
        for side, found in (sides or {None: []}).items()
    ]
