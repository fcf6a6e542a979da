"""The 29 regions of Chest ImaGenome in a body, as boxes, and which findings each of them may hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from models.boxes import to_center_size
from models.lab.phantoms.anatomy import SIDES, SIGN, Anatomy
from models.lab.phantoms.bones import collarbone
from models.lab.phantoms.drawing import ByteArray, Frame, Points
from models.lab.phantoms.scene import hilum_of
from models.lab.phantoms.truth import FindingKey, Side, UnitBox

_LEAST_SIDE = 0.02
_LEAST_SEEN = 0.3
_LEAST_SHARE_OF_FINDING = 0.2
_LEAST_SHARE_OF_REGION = 0.3

_LUNG = ("lung", "upper lung zone", "mid lung zone", "lower lung zone", "apical zone")
_IN_LUNG = (*_LUNG, "hilar structures", "costophrenic angle")
_HOLDERS: Mapping[FindingKey, tuple[str, ...]] = {
    "atelectasis": _IN_LUNG,
    "cardiomegaly": ("cardiac silhouette", "mediastinum"),
    "consolidation": _IN_LUNG,
    "edema": _IN_LUNG,
    "fracture": (*_LUNG, "clavicle"),
    "lung_lesion": _IN_LUNG,
    "lung_opacity": _IN_LUNG,
    "pleural_effusion": (*_LUNG, "costophrenic angle", "hemidiaphragm"),
    "pneumothorax": (*_LUNG, "costophrenic angle"),
    "support_devices": (
        *_LUNG,
        "trachea",
        "carina",
        "svc",
        "cavoatrial junction",
        "right atrium",
        "cardiac silhouette",
        "mediastinum",
        "upper mediastinum",
        "abdomen",
        "clavicle",
    ),
}
"""The regions that can hold each finding; regions of a side are named without the side."""


class ShutterWindow(NamedTuple):
    """The part of the square that shows the patient, 0..1; the rest is collimated away."""

    left: float = 0.0
    top: float = 0.0
    right: float = 1.0
    bottom: float = 1.0


def region_boxes(body: Anatomy, frame: Frame, window: ShutterWindow) -> dict[str, UnitBox]:
    """Return the regions that are sufficiently visible on a film, as center-size boxes."""
    names, outlines = zip(*_outlines(body, frame), strict=True)
    pixels = np.split(frame.to_pixels(np.concatenate(outlines)), np.cumsum([len(points) for points in outlines])[:-1])
    boxes = {}
    for name, points in zip(names, pixels, strict=True):
        endless = name in ("spine", "abdomen")
        box = seen(frame.unit_box(points), window, least=0 if endless else _LEAST_SEEN)
        if box is not None:
            boxes[name] = box
    return boxes


def seen(corners: Points, window: ShutterWindow, *, least: float = _LEAST_SEEN) -> UnitBox | None:
    """Clip corners to the visible part; None if too small a share of them, or of the film, remains."""
    left, top, right, bottom = corners.tolist()
    whole = (right - left) * (bottom - top)
    left, right = max(left, window.left), min(right, window.right)
    top, bottom = max(top, window.top), min(bottom, window.bottom)
    if min(right - left, bottom - top) < _LEAST_SIDE or (right - left) * (bottom - top) < least * whole:
        return None
    return to_center_size(np.array([left, top, right, bottom])).astype(np.float32)


def holding(
    key: FindingKey, side: Side | None, mask: ByteArray, regions: Mapping[str, UnitBox], frame: Frame
) -> tuple[str, ...]:
    """Name the regions that hold a finding: much of it is inside the region, or it covers much of the region."""
    left, top = (frame.columns - frame.side) // 2, (frame.rows - frame.side) // 2
    square = mask[top : top + frame.side, left : left + frame.side] > 60
    whole = int(np.count_nonzero(square))
    names = []
    for name, (x, y, width, height) in regions.items():
        if not _may_hold(key, side, name):
            continue
        rows = slice(round((y - height / 2) * frame.side), round((y + height / 2) * frame.side))
        columns = slice(round((x - width / 2) * frame.side), round((x + width / 2) * frame.side))
        inside = square[rows, columns]
        common = int(np.count_nonzero(inside))
        if common > _LEAST_SHARE_OF_FINDING * whole or common > _LEAST_SHARE_OF_REGION * max(inside.size, 1):
            names.append(name)
    return tuple(names)


def _may_hold(key: FindingKey, side: Side | None, name: str) -> bool:
    own, _, rest = name.partition(" ")
    if own in SIDES and rest != "atrium":
        return rest in _HOLDERS[key] and side in (own, None)
    return name in _HOLDERS[key]


def _outlines(body: Anatomy, frame: Frame) -> Iterator[tuple[str, Points]]:
    """Yield the name of every region with points of its outline, in the published order."""
    reach = 0.6 * frame.framing.width
    above, below = frame.framing.v - reach, frame.framing.v + reach
    for side in SIDES:
        yield from _of_lung(body, side)
    hilum, carina, shift = body.hilum, body.carina, body.shift
    at = body.middle(carina) * 0.5 + shift
    yield "trachea", _box(min(at, body.middle(-6)) - 1.3, -6.5, max(at, body.middle(-6)) + 1.3, carina)
    bends = [body.middle(v) for v in (-6, 0, 6, 12, 18, 24, 30)]
    yield "spine", _box(min(bends) - 2.3, above, max(bends) + 2.3, below)
    for side in SIDES:
        line = collarbone(body, side)
        yield f"{side} clavicle", np.concatenate([line - 0.5, line + 0.5])
    u, v, radius = body.knob
    yield "aortic arch", _box(u - 2 * radius - 0.6, v - 1.3 * radius, u + 0.4, v + 1.3 * radius)
    upper = body.vessels[body.vessels[:, 1] > -2]
    yield "mediastinum", np.concatenate([upper, body.heart])
    yield "upper mediastinum", upper[upper[:, 1] < carina + 1.0]
    yield "svc", _box(-3.0 + shift, body.arch - 1.0, -0.9 + shift, hilum + 0.8)
    yield "cardiac silhouette", body.heart
    yield "cavoatrial junction", _box(-3.9 + shift, hilum + 0.4, -1.2 + shift, hilum + 3.2)
    yield "right atrium", body.heart[body.heart[:, 0] < shift - 0.6]
    yield "carina", _box(at - 1.8, carina - 1.2, at + 1.8, carina + 1.4)
    half = max(body.width.values())
    yield "abdomen", _box(-1.06 * half, min(body.dome.values()) + 0.6, 1.06 * half, below)


def _of_lung(body: Anatomy, side: Side) -> Iterator[tuple[str, Points]]:
    top, dome, angle = body.top[side], body.dome[side], body.angle[side]
    height = body.dome["right"] - top
    outline = body.lungs[side]
    first, second = body.hilum - 0.08 * height, body.hilum + 0.2 * height
    half, sign = body.width[side], SIGN[side]
    u, v = hilum_of(body, side)
    yield f"{side} lung", outline
    yield f"{side} upper lung zone", _between(body, side, top, first)
    yield f"{side} mid lung zone", _between(body, side, first, second)
    yield f"{side} lower lung zone", _between(body, side, second, angle)
    yield f"{side} hilar structures", _box(u - 2.4, v - 2.8, u + 2.4, v + 3.4)
    yield f"{side} apical zone", _between(body, side, top, top + 0.15 * height)
    yield f"{side} costophrenic angle", _box(sign * 0.7 * half, angle - 0.15 * height, sign * 1.01 * half, angle + 0.3)
    yield f"{side} hemidiaphragm", _box(sign * 0.6, dome - 0.2, sign * half, angle)


def _between(body: Anatomy, side: Side, low: float, high: float) -> Points:
    """Cut a lung's outline at two heights."""
    outline, sign = body.lungs[side], SIGN[side]
    inside = outline[(outline[:, 1] >= low) & (outline[:, 1] <= high)]
    edges = [(sign * body.lateral_at(side, v), v) for v in (max(low, body.top[side]), min(high, body.angle[side]))]
    medial = outline[len(outline) * 2 // 3 :]
    order = np.argsort(medial[:, 1])
    inner = [(float(np.interp(v, medial[order, 1], medial[order, 0])), v) for v in (low, high) if v < body.dome[side]]
    return np.concatenate([inside, np.array(edges + inner)])


def _box(left: float, top: float, right: float, bottom: float) -> Points:
    return np.array([(left, top), (right, top), (right, bottom), (left, bottom)])
