"""Findings; each is drawn into a scene by a function that returns the part of the film it changed.

A finding ends where it is no longer visible: the returned mask covers everything that the film without the finding
would not show, and its box is taken from that mask.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from models.lab.phantoms.drawing import ByteArray
from models.lab.phantoms.findings.devices import add_device, add_wires
from models.lab.phantoms.findings.lungs import (
    add_atelectasis,
    add_consolidation,
    add_edema,
    add_effusion,
    add_lesion,
    add_opacity,
    add_pneumothorax,
)
from models.lab.phantoms.plan import Planned
from models.lab.phantoms.random_streams import RandomStream
from models.lab.phantoms.scene import Scene
from models.lab.phantoms.truth import FindingKey

__all__ = ["DRAWN", "add_wires"]

DRAWN: Mapping[FindingKey, Callable[[Scene, Planned, RandomStream], ByteArray]] = {
    "atelectasis": add_atelectasis,
    "consolidation": add_consolidation,
    "edema": add_edema,
    "lung_lesion": add_lesion,
    "lung_opacity": add_opacity,
    "pleural_effusion": add_effusion,
    "pneumothorax": add_pneumothorax,
    "support_devices": add_device,
}
"""By finding. An enlarged heart is part of the anatomy and fractures are part of the bones, so neither is here."""
