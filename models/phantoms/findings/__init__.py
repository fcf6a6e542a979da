"""Findings, each drawn into a scene by one function that returns what of the film it changed.

A finding ends where it can no longer be seen: what a function returns is all that the film without it would not show,
and that is where its box comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from models.phantoms.dice import Dice
from models.phantoms.findings.devices import add_device, add_wires
from models.phantoms.findings.lungs import add_atelectasis, add_consolidation, add_edema, add_lesion, add_opacity
from models.phantoms.findings.pleura import add_effusion, add_pneumothorax
from models.phantoms.frame import ByteArray
from models.phantoms.plan import Planned
from models.phantoms.scene import Scene
from models.phantoms.truth import FindingKey

__all__ = ["DRAWN", "add_wires"]

DRAWN: Mapping[FindingKey, Callable[[Scene, Planned, Dice], ByteArray]] = {
    "atelectasis": add_atelectasis,
    "consolidation": add_consolidation,
    "edema": add_edema,
    "lung_lesion": add_lesion,
    "lung_opacity": add_opacity,
    "pleural_effusion": add_effusion,
    "pneumothorax": add_pneumothorax,
    "support_devices": add_device,
}
"""By finding. A large heart is part of the anatomy, and a broken bone is drawn broken: neither is drawn afterwards."""
