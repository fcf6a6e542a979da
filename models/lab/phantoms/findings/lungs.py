"""Findings in the lung itself (consolidation, patchy opacity, atelectasis, edema, lesions) and around it."""

from __future__ import annotations

from collections.abc import Mapping

import cv2
import numpy as np

from models.lab.phantoms.anatomy import SIGN, Anatomy
from models.lab.phantoms.drawing import (
    ByteArray,
    FloatArray,
    Points,
    clouds,
    fill,
    ramp,
    ribbon,
    share,
    smooth,
    soften,
    strokes,
)
from models.lab.phantoms.plan import Planned, Zone
from models.lab.phantoms.random_streams import RandomStream
from models.lab.phantoms.scene import Scene, displace, hilum_of
from models.lab.phantoms.truth import Side

LESION_SIDE = 24 / 224
"""The smallest lesion, as a share of the film's side; smaller ones could not be learned at the network's size."""

_CENTERS: Mapping[Zone, float] = {"upper": 0.24, "mid": 0.5, "lower": 0.77}
"""Of the zones, as a share of the lung's height to the dome."""


def add_consolidation(scene: Scene, planned: Planned, stream: RandomStream) -> ByteArray:
    """Fill a part of a lobe densely, except for air bronchograms; a fissure may give it a sharp edge."""
    side, zone = _place(planned)
    size = {"mild": 2.6, "moderate": 3.6, "severe": 4.8}[planned.severity] * stream.between(0.9, 1.15)
    at = _point(scene.body, side, zone, stream)
    cloud = _cloud(scene, stream, at, (size * stream.between(0.85, 1.2), size), rough=0.28)
    if stream.chance(0.5):
        cloud *= ramp(scene.v, at[1] + 0.55 * size, at[1] + 0.4 * size)
    open_bronchi = share(_bronchi(scene, side, at, size, stream)) * np.float32(0.5)
    return displace(scene, side, _cut(cloud) * np.float32(stream.between(0.72, 0.95)) * (1 - open_bronchi))


def add_opacity(scene: Scene, planned: Planned, stream: RandomStream) -> ByteArray:
    """Add a faint, patchy opacity without edges."""
    side, zone = _place(planned)
    strength = {"mild": 0.36, "moderate": 0.47, "severe": 0.58}[planned.severity]
    at = _point(scene.body, side, zone, stream)
    fog = np.zeros_like(scene.u)
    for _ in range(stream.whole(2, 4)):
        place = (at[0] + stream.near(0, 1.3), at[1] + stream.near(0, 1.4))
        fog = np.maximum(
            fog, _cloud(scene, stream, place, (stream.between(1.6, 2.8), stream.between(1.6, 2.8)), rough=0.4)
        )
    return displace(scene, side, _cut(fog) * np.float32(strength))


def add_atelectasis(scene: Scene, planned: Planned, stream: RandomStream) -> ByteArray:
    """Collapse a part of a lung: to plates above the diaphragm, or a lobe to a wedge beside the spine."""
    side, zone = _place(planned)
    if planned.kind == "plate":
        return _plates(scene, planned, stream, side)
    sign, body = SIGN[side], scene.body
    half, top, low = body.width[side], body.top[side], body.dome[side]
    size = {"mild": 0.8, "moderate": 0.95, "severe": 1.1}[planned.severity]
    if zone == "upper":
        outer, inner = top + 0.22 * (low - top) * size, top + 0.40 * (low - top) * size
        wedge = [
            (1.0, top - 0.5),
            (1.0, inner),
            (3.4, inner - 0.3),
            (0.62 * half, outer - 0.8),
            (0.95 * half, outer - 3.5),
        ]
        wedge += [(0.8 * half, top - 0.5)]
    else:
        height = (low - body.hilum) * size
        wedge = [(0.4, low - 1.05 * height), (2.8, low - 1.0 * height), (0.42 * half, low - 0.45 * height)]
        # On the left the heart covers the part near the spine.
        wide = half * size * (0.66 if side == "right" else 0.85)
        wedge += [(wide, low + 0.5), (0.9 * wide, low + 4), (0.4, low + 4)]
    outline = np.array(wedge) * (sign, 1) + (body.shift * 0.5, 0)
    filled = share(soften(fill(scene.frame, [outline]), stream.between(0.12, 0.3) * scene.frame.scale))
    return displace(scene, side, _cut(filled) * np.float32(stream.between(0.75, 0.95)))


def add_lesion(scene: Scene, planned: Planned, stream: RandomStream) -> ByteArray:
    """Add a solid ball; its size is a share of the film, so that the network can see it."""
    side, zone = _place(planned)
    body = scene.body
    low, high = {"mild": (1.0, 1.3), "moderate": (1.3, 1.65), "severe": (1.65, 2.1)}[planned.severity]
    radius = stream.between(low, high) * LESION_SIDE * scene.frame.framing.width / 2
    # Some lungs are too narrow for the largest lesions.
    radius = min(radius, 0.24 * body.width[side])
    at = _point(body, side, zone, stream, out=(0.5, 0.68))
    wobble = clouds(scene.frame, stream, size=1.5) * np.float32(stream.between(0.02, 0.18))
    away = _distance(scene, at, (radius, radius)) + wobble * ramp(_distance(scene, at, (radius, radius)), 0.3, 0.8)
    ball = np.sqrt(np.maximum(1 - away, 0))
    seen = share(scene.lung[side]) * np.minimum(scene.air[side] * np.float32(0.5), 1)
    thick = ball * np.float32(2 * radius * 0.74) * np.float32(stream.between(0.75, 1.1)) * seen
    thick = np.where(thick > 0.3, thick, np.float32(0))
    scene.dense[...] += thick
    return np.where(thick > 0, np.uint8(255), np.uint8(0))


def add_edema(scene: Scene, planned: Planned, stream: RandomStream) -> ByteArray:
    """Blur a lung around its hilum, thicken its vessels, and draw Kerley lines at its edge."""
    side, body = _side(planned), scene.body
    strength = {"mild": 0.34, "moderate": 0.48, "severe": 0.64}[planned.severity] * stream.between(0.93, 1.07)
    reach = {"mild": 0.42, "moderate": 0.5, "severe": 0.6}[planned.severity]
    u, v = hilum_of(body, side)
    height = body.dome[side] - body.top[side]
    at = (u + SIGN[side] * 1.6, v + 0.06 * height)
    away = _distance(scene, at, (reach * body.width[side] * 1.15, reach * height))
    fog = ramp(away + clouds(scene.frame, stream, size=2.4, layers=3) * np.float32(0.16), 1.15, 0.05)
    grain = 1 + clouds(scene.frame, stream, size=0.7) * np.float32(0.22)
    lines = share(_kerley(scene, side, stream)) * share(scene.lung[side])
    seen = scene.air[side] > 0
    scene.marks[side][...] *= 1 + np.minimum(fog * np.float32(0.7), 1)
    scene.marks[side][...] += lines * np.float32(0.9) * seen
    changed = displace(scene, side, _cut(fog) * grain * np.float32(strength))
    return np.maximum(changed, np.where((lines > 0.25) & seen, np.uint8(255), np.uint8(0)))


def _place(planned: Planned) -> tuple[Side, Zone]:
    if planned.side is None or planned.zone is None:
        raise ValueError(f"{planned.finding} needs a side and a zone")
    return planned.side, planned.zone


def _point(
    body: Anatomy, side: Side, zone: Zone, stream: RandomStream, *, out: tuple[float, float] = (0.46, 0.74)
) -> tuple[float, float]:
    """Choose a point in a zone; on the left further out, beside the heart."""
    height = body.dome[side] - body.top[side]
    v = body.top[side] + height * (_CENTERS[zone] + stream.between(-0.05, 0.05))
    share_out = stream.between(*out) + (0.08 if side == "left" and zone == "lower" else 0.0)
    return SIGN[side] * body.lateral_at(side, v) * share_out, v


def _distance(scene: Scene, at: tuple[float, float], radii: tuple[float, float]) -> FloatArray:
    """Return the square of the distance from a point, 1 on the ellipse around it."""
    across = (scene.u - np.float32(at[0])) * np.float32(1 / radii[0])
    down = (scene.v - np.float32(at[1])) * np.float32(1 / radii[1])
    return across * across + down * down


def _cloud(
    scene: Scene, stream: RandomStream, at: tuple[float, float], radii: tuple[float, float], *, rough: float
) -> FloatArray:
    """Return a patch with ragged edges, 0..1."""
    away = _distance(scene, at, radii) + clouds(scene.frame, stream, size=1.8) * np.float32(rough)
    return ramp(away, 1.15, 0.35)


def _cut(values: FloatArray) -> FloatArray:
    """Remove what is too faint to be visible, so that a finding has an end."""
    cut: FloatArray = np.maximum(values - np.float32(0.15), 0) * np.float32(1 / 0.85)
    return cut


def _bronchi(scene: Scene, side: Side, at: tuple[float, float], size: float, stream: RandomStream) -> ByteArray:
    """Draw open bronchi from the hilum to a point."""
    start = np.array(hilum_of(scene.body, side))
    lines: list[Points] = []
    for _ in range(stream.whole(3, 5)):
        end = np.array([at[0] + stream.between(-0.7, 0.7) * size, at[1] + stream.between(-0.7, 0.7) * size])
        bend = (start + end) / 2 + (stream.near(0, 0.5), stream.near(0, 0.5))
        lines.append(smooth(np.stack([start, bend, end]), steps=5))
    return soften(strokes(scene.frame, lines, width=0.28), 0.05 * scene.frame.scale)


def _plates(scene: Scene, planned: Planned, stream: RandomStream, side: Side) -> ByteArray:
    """Draw parallel plates above the diaphragm."""
    body = scene.body
    low = body.dome[side] - stream.between(1.8, 3.2)
    count = {"mild": 2, "moderate": 3, "severe": 4}[planned.severity]
    length = stream.between(0.42, 0.6) * body.width[side]
    start = stream.between(0.30, 0.42) * body.width[side]
    slope = stream.between(-0.25, 0.3)
    bands = []
    for number in range(count):
        v = low - number * stream.between(0.8, 1.25)
        first, last = start + stream.between(0.0, 0.3) * length, start + stream.between(0.75, 1.0) * length
        tilt = slope + stream.near(0, 0.2)
        line = smooth([(first, v), ((first + last) / 2, v + tilt + stream.near(0, 0.12)), (last, v + 2 * tilt)])
        bands.append(ribbon(line * (SIGN[side], 1), stream.between(0.3, 0.62)))
    drawn = share(soften(fill(scene.frame, bands), 0.12 * scene.frame.scale))
    return displace(scene, side, _cut(drawn) * np.float32(stream.between(0.35, 0.6)))


def _kerley(scene: Scene, side: Side, stream: RandomStream) -> ByteArray:
    """Draw short lines to the edge of a lung, above its angle."""
    body = scene.body
    lines = []
    for number in range(stream.whole(5, 9)):
        v = body.dome[side] + 0.5 - number * 0.75
        edge = body.lateral_at(side, v) - 0.35
        end = edge - stream.between(1.0, 1.9)
        lines.append(np.array([(edge * SIGN[side], v), (end * SIGN[side], v + stream.near(0, 0.1))]))
    return strokes(scene.frame, lines, width=0.13)


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
    """Return the airless share of a collapsed lung, 0..1, [row, column]: 1 from 3 cm inside its box."""
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
