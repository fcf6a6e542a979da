"""A short closed list of scanner models, as labels of metrics: no text of an image ever becomes one.

Pure. A manufacturer is known by its name in one of the ways it is written; its models are numbered in the order they
come, `philips-1`, `philips-2`. What has no known manufacturer, or comes when the list is full, is `other`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from node.domain import JsonObject
from node.metrics import OTHER_SCANNER

MOST_SCANNERS: Final = 20

# How manufacturers of radiography write themselves in (0008,0070), and how they did before they were bought.
_VENDORS: Final = {
    "agfa": "agfa",
    "canon": "canon|toshiba",
    "carestream": "carestream|kodak",
    "fujifilm": "fuji|fujifilm",
    "ge": "ge|general electric",
    "hologic": "hologic",
    "konica_minolta": "konica|minolta",
    "philips": "philips",
    "samsung": "samsung",
    "shimadzu": "shimadzu",
    "siemens": "siemens",
    "varex": "varex|varian",
}


def vendor_of(manufacturer: str) -> str | None:
    """Name a manufacturer from the closed list, or None."""
    for vendor, names in _VENDORS.items():
        if re.search(rf"\b({names})\b", manufacturer, re.IGNORECASE):
            return vendor
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scanners:
    """The models seen so far: each label and the text of (0008,1090) it stands for."""

    models: Mapping[str, str] = field(default_factory=dict)

    def label_of(self, manufacturer: str, model: str) -> str:
        """The label of a scanner; `other` where it has none."""
        vendor = vendor_of(manufacturer)
        for label, known in self.models.items():
            if known == model and label.rpartition("-")[0] == vendor:
                return label
        return OTHER_SCANNER

    def with_scanner(self, manufacturer: str, model: str) -> Scanners:
        """Number a model that is new, while there is room; itself where there is nothing to number."""
        vendor = vendor_of(manufacturer)
        is_known = self.label_of(manufacturer, model) != OTHER_SCANNER
        if vendor is None or is_known or len(self.models) >= MOST_SCANNERS:
            return self
        number = 1 + sum(label.rpartition("-")[0] == vendor for label in self.models)
        return Scanners(models={**self.models, f"{vendor}-{number}": model})

    def to_json(self) -> JsonObject:
        """As it is kept."""
        return dict(self.models)


def scanners_from_json(content: JsonObject | None) -> Scanners:
    """What was kept; nothing where nothing was. A label that this version does not make is left out."""
    labels = "|".join(_VENDORS)
    kept = {
        label: model
        for label, model in (content or {}).items()
        if isinstance(model, str) and re.fullmatch(rf"({labels})-\d+", label)
    }
    return Scanners(models=dict(list(kept.items())[:MOST_SCANNERS]))
