"""The 14 classes of CheXpert, by their keys in the node's prompt set, and the labels of ChestX-ray14 that mean them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from language.labels import NO_FINDING
from models.lab.phantoms.truth import FINDINGS

NEVER_SHOWN: Final = ("enlarged_cardiomediastinum", "pleural_other", "pneumonia")
"""Classes that phantoms never show."""
CHEXPERT: Final = (*FINDINGS, *NEVER_SHOWN, NO_FINDING)

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
