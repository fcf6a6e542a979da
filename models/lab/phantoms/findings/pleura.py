"""Fluid and air between the lung and the chest wall."""

from __future__ import annotations

import cv2
import numpy as np

from models.lab.phantoms.anatomy import SIGN
from models.lab.phantoms.drawing import fill, ramp, share, soften, strokes
from models.lab.phantoms.frame import ByteArray, FloatArray, Points
from models.lab.phantoms.plan import Planned
from models.lab.phantoms.random_streams import RandomStream
from models.lab.phantoms.scene import Scene, displace, hilum_of
from models.lab.phantoms.truth import Side


def add_effusion(scene: Scene, planned: Planned, stream: RandomStream) -> ByteArray:
    """Fill a pleural space from below: with a meniscus if the patient is upright, else as a veil."""
    side = _side(planned)
    body = scene.body
    low, high = body.dome[side], body.hilum
    tall = {
        "mild": stream.between(0.12, 0.24),
        "moderate": stream.between(0.34, 0.52),
        "severe": stream.between(0.62, 0.95),
    }[planned.severity]
    outwards = scene.u * np.float32(SIGN[side])
    half = body.width[side]
    if planned.kind == "layering":
        level = low - (0.6 + 0.4 * tall) * (low - high)
        thick = np.float32(0.35 + 0.35 * tall) * ramp(scene.v, level - 2.5, body.angle[side])
        return displace(scene, side, thick + np.float32(0.35) * ramp(scene.v, low - 3, low + 1))
    # The mildest only blunts the angle: the level falls medially below the dome, so the middle stays free.
    level = low - tall * (low - high)
    rise = stream.between(1.2, 2.6) + 1.5 * tall
    out = np.clip(outwards / np.float32(half), 0, 1)
    surface = np.float32(level) + np.float32(rise) * (np.float32(0.5) - out * out)
    if planned.severity == "mild":
        surface += np.float32(3.0) * ramp(outwards, 0.72 * half, 0.35 * half)
    depth = ramp(scene.v - surface, -0.7, 0.9)
    return displace(scene, side, depth * np.float32(stream.between(0.97, 1.0)))


def add_pneumothorax(scene: Scene, planned: Planned, stream: RandomStream) -> ByteArray:
    """Retract a lung from the chest wall: its edge is a fine line, and beyond it there are no vessels."""
    side = _side(planned)
    inner = _collapsed(scene, planned, stream, side)
    space = np.asarray(cv2.subtract(scene.lung[side], fill(scene.frame, [inner])), dtype=np.uint8)
    gap = share(space)
    lost = _lost(scene, space) * np.float32(0.4) if planned.kind == "large" else np.float32(0)
    scene.air[side][...] = scene.air[side] * (1 - gap) * (1 - lost) + scene.room[side] * np.float32(1.05) * gap
    scene.marks[side][...] *= 1 - gap
    line = strokes(scene.frame, [np.concatenate([inner, inner[:1]])], width=0.16)
    beside = (soften(space, 0.12 * scene.frame.scale) > 12) & (soften(scene.lung[side], 0.12 * scene.frame.scale) > 250)
    edge = np.where(beside, line, np.uint8(0))
    scene.marks[side][...] += share(edge) * np.float32(stream.between(1.0, 1.8))
    return np.where((space > 60) | (edge > 60), np.uint8(255), np.uint8(0))


def _lost(scene: Scene, space: ByteArray) -> FloatArray:
    """Return where a collapsed lung has lost its air: beside the space, completely from 3 cm inside its box."""
    left, _, width, _ = cv2.boundingRect((space > 60).astype(np.uint8))
    columns = np.arange(scene.frame.columns, dtype=np.float32)
    inside = np.minimum(columns - np.float32(left), np.float32(left + width) - columns)
    return np.broadcast_to(ramp(inside, 0.0, 3.0 * scene.frame.scale), space.shape)


def _collapsed(scene: Scene, planned: Planned, stream: RandomStream, side: Side) -> Points:
    """Return the outline of the collapsed lung, moved toward its hilum."""
    body = scene.body
    outline = body.lungs[side]
    hilum = np.array(hilum_of(body, side)) - (SIGN[side] * 1.2, 0.0)
    height = (outline[:, 1] - body.top[side]) / (body.angle[side] - body.top[side])
    out = np.clip(SIGN[side] * outline[:, 0] / body.width[side], 0, 1)
    if planned.kind == "large":
        weight = np.clip(1.3 * out - 0.1, 0, 1) * (1 - 0.25 * height)
        amount = stream.between(0.35, 0.6)
    elif planned.kind == "apical":
        reach = {"mild": 0.30, "moderate": 0.45}.get(planned.severity, 0.6)
        weight = np.clip(1 - height / reach, 0, 1) ** 0.8 * np.clip(0.35 + out, 0, 1)
        amount = {"mild": stream.between(0.22, 0.3), "moderate": stream.between(0.3, 0.42)}.get(planned.severity, 0.5)
    else:
        weight = np.clip((height - 0.45) / 0.5, 0, 1) * np.clip(1.5 * out - 0.5, 0, 1)
        amount = {"mild": 0.22, "moderate": 0.3, "severe": 0.4}[planned.severity]
    moved: Points = outline + (hilum - outline) * (weight * amount)[:, np.newaxis]
    return moved


def _side(planned: Planned) -> Side:
    if planned.side is None:
        raise ValueError(f"{planned.finding} needs a side")
    return planned.side
