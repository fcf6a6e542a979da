"""The meaning of labels: regions, and classes of CheXpert, of ChestX-ray14 and of the paper's data sets.

A label that no catalog knows is a mistake in the file, usually of spelling, and is refused. A label that a catalog
knows but no task uses is accepted; whoever reads a file of films counts it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from typing import Annotated, Final

from language.labels import DEVICES, NO_FINDING
from models.documents import Rule
from models.lab.phantoms.truth import FINDINGS
from models.lab.tasks.prompts import class_names, region_prompts, trained_prompts

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
REGIONS: Final = frozenset(region.name for region in region_prompts() if not region.members)
"""The regions of Chest ImaGenome that have one box."""
_JOINED: Final[Mapping[str, tuple[str, ...]]] = {
    region.name: region.members for region in region_prompts() if region.members
}
_OF_DATA_SETS: Final = class_names()
_CLASSES: Final = frozenset({*CHEXPERT, *_OF_DATA_SETS})
NIH: Final = (*NIH_LABELS, *OTHER_NIH_LABELS)
_OF_NIH: Final = {"Infiltrate": "nih/Infiltration", "Infiltration": "nih/Infiltration"}
"""Labels of ChestX-ray14 that have boxes, but no class of CheXpert."""
CIG: Final = frozenset(prompt.name for prompt in trained_prompts("cig"))
"""The classes of Chest ImaGenome that regions are judged for."""


def labels_of_whole(found: Collection[str]) -> dict[str, bool]:
    """Return the labels of a film of which all is known, from the keys of the findings on it.

    As in CheXpert "no finding" is true if every class except devices is absent.
    """
    present = {key: key in found for key in (*FINDINGS, *NEVER_SHOWN)}
    return present | {NO_FINDING: not any(there for key, there in present.items() if key != DEVICES)}


def region_of(label: str) -> str | None:
    """Return the region with one box that a box's label means; None if it means something else."""
    return label.lower() if label.lower() in REGIONS else None


def class_of(label: str) -> str | None:
    """Return the class that a box's label means: by CheXpert's key, otherwise by its data set's name.

    None for a region, and for a label of ChestX-ray14 that is no class anywhere.
    """
    key = label.lower().replace(" ", "_")
    if key in CHEXPERT:
        return key
    return label if label in _OF_DATA_SETS else NIH_LABELS.get(label) or _OF_NIH.get(label)


def classes_of_nih(labels: Iterable[str]) -> set[str]:
    """Return the classes of CheXpert that labels of ChestX-ray14 mean."""
    return {NIH_LABELS[label] for label in labels if label in NIH_LABELS}


def unknown_label(label: str) -> str | None:
    """Return what is wrong with the label of a box that no catalog knows."""
    if class_of(label) is not None or label in NIH or label.lower() in REGIONS or label.lower() in _JOINED:
        return None
    return _unknown("label", label, (*NIH, *_CLASSES, *(name.title() for name in (*REGIONS, *_JOINED))))


def _unknown_class(name: str) -> str | None:
    return None if name in _CLASSES else _unknown("class", name, _CLASSES)


def unknown_region(name: str) -> str | None:
    """Return what is wrong with a name that is no region with one box."""
    if members := _JOINED.get(name):
        return f"the region {name!r} has no box of its own; name {' and '.join(members)} instead"
    return None if name in REGIONS else _unknown("region", name, REGIONS)


def _not_judged(name: str) -> str | None:
    if name in FINDINGS or name in CIG:
        return None
    return _unknown_class(name) or f"{name!r} is no class of Chest ImaGenome, so no region is judged for it"


def _unknown(what: str, name: str, known: Collection[str]) -> str:
    near = get_close_matches(name, sorted(known), n=1)
    meant = f"did you mean {near[0]!r}?" if near else "correct it, or remove it"
    return f"no catalog has the {what} {name!r}; {meant}"


ClassName = Annotated[str, Rule(_unknown_class)]
"""A class of any catalog."""
RegionName = Annotated[str, Rule(unknown_region)]
"""A region with one box."""
JudgedName = Annotated[str, Rule(_not_judged)]
"""A finding of phantoms, or a class of Chest ImaGenome."""
NihLabel = Annotated[str, Rule(lambda label: None if label in NIH else _unknown("label", label, NIH))]
