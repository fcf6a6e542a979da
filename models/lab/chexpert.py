"""The 14 classes of CheXpert, by their keys in the node's prompt set, and the labels of ChestX-ray14 that mean them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from language.labels import DEVICES, NO_FINDING
from models.lab.phantoms.truth import FINDINGS

NEVER_SHOWN: Final = ("enlarged_cardiomediastinum", "pleural_other", "pneumonia")
"""Classes that phantoms never show."""
CHEXPERT: Final = (*FINDINGS, *NEVER_SHOWN, NO_FINDING)
CHEXPERT_COLUMNS: Final[Mapping[str, str]] = {key.replace("_", " ").title(): key for key in CHEXPERT}
"""The class of each column of CheXpert's tables."""

NIH_LABELS: Final[Mapping[str, str]] = {
    "Atelectasis": "atelectasis",
    "Cardiomegaly": "cardiomegaly",
    "Consolidation": "consolidation",
    "Edema": "edema",
    "Effusion": "pleural_effusion",
    "Mass": "lung_lesion",
    "No Finding": NO_FINDING,
    "Nodule": "lung_lesion",
    "Pleural_Thickening": "pleural_other",
    "Pneumonia": "pneumonia",
    "Pneumothorax": "pneumothorax",
}
"""CheXpert's key for each label of ChestX-ray14."""
OTHER_NIH_LABELS: Final = ("Emphysema", "Fibrosis", "Hernia", "Infiltration", "Infiltrate")
"""Labels that CheXpert has no class for. "Infiltrate" is how the table of boxes writes "Infiltration"."""


def labels_of_whole(found: Collection[str]) -> dict[str, bool]:
    """Return the labels of a film of which all is known, from the keys of the findings on it.

    As in CheXpert "no finding" is true if every class except devices is absent.
    """
    present = {key: key in found for key in (*FINDINGS, *NEVER_SHOWN)}
    return present | {NO_FINDING: not any(there for key, there in present.items() if key != DEVICES)}
