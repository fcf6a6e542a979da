"""Ribs, clavicles, scapulae and spine: their lines in centimeters, intact or broken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from models.lab.phantoms.anatomy import SIDES, SIGN, Anatomy
from models.lab.phantoms.drawing import (
    ByteArray,
    FloatArray,
    Frame,
    Points,
    blank,
    ellipse,
    fill,
    ramp,
    ribbon,
    rounded,
    share,
    smooth,
    soften,
    strokes,
)
from models.lab.phantoms.random_streams import RandomStream
from models.lab.phantoms.scene import Scene
from models.lab.phantoms.truth import Side

RIBS = 11
_POINTS = 26
"""Of a rib's line, 14 of them behind."""
_GAP = 0.36
_REACH = 1.4
"""How far from a break, in cm along the bone, its ends are displaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """A broken bone.

    rib: 1 to 11, None for the clavicle; place: position on its line, 0..1; offset: displacement of its ends, in cm
    """

    side: Side
    rib: int | None
    place: float
    offset: float


def rib_courses(body: Anatomy, side: Side) -> Points:
    """Return the lines of a side's ribs [rib, point, 2]: outward from the spine behind, then inward again in front."""
    number = np.arange(1, RIBS + 1)[:, np.newaxis]
    start = -1.2 + (number - 1) * body.spacing
    drop = (1.9 + 0.36 * np.minimum(number, 8)) * body.spacing
    reach = body.lateral(side, np.maximum(start + 0.45 * drop, 0.6)) + 0.45
    inner = 0.7
    turn = np.linspace(0.04, 0.86, _POINTS) * np.pi
    out = inner + (reach - inner) * np.sin(turn) ** 0.95
    down = start + drop * (1 - np.cos(turn)) / 2 - 0.12 * body.spacing * np.sin(2 * turn)
    front = np.clip((turn / np.pi - 0.5) / 0.4, 0, 1)
    out = out * (1 - 0.14 * front) + 0.10 * reach * front
    return np.stack([SIGN[side] * out + body.turn * front, down], axis=-1)


def collarbone(body: Anatomy, side: Side) -> Points:
    """Return the line of a clavicle from the breastbone outward."""
    half = body.width[side]
    rise = -1.6 if body.supine else 0.0
    line = smooth(
        [
            (1.7, 3.3 + 0.4 * rise),
            (0.30 * half, 2.7 + 0.6 * rise),
            (0.58 * half, 1.1 + rise),
            (0.84 * half, -0.2 + rise),
            (1.10 * half, -0.4 + rise),
        ],
        steps=5,
    )
    return line * (SIGN[side], 1) + (body.turn * 0.8, 0)


def break_point(body: Anatomy, broken: Break) -> tuple[float, float]:
    """Return the point where a bone is broken."""
    line = collarbone(body, broken.side) if broken.rib is None else rib_courses(body, broken.side)[broken.rib - 1]
    place = broken.place * (len(line) - 1)
    u, v = (float(np.interp(place, np.arange(len(line)), axis)) for axis in line.T)
    return u, v


def reach_of(broken: Break) -> float:
    """Return the distance from a break, in cm, within which the film differs from that of an intact bone."""
    return _REACH + 0.45 + 0.35 * abs(broken.offset)


def add_bones(scene: Scene, stream: RandomStream, breaks: Sequence[Break]) -> None:
    """Add all bones to a scene."""
    calcium = stream.between(0.75, 1.35)
    scene.dense[...] += _spine(scene.frame, scene.body, calcium)
    scene.dense[...] += _shoulders(scene.frame, scene.body, calcium)
    _add_ribs(scene, calcium, breaks)
    layer = blank(scene.frame)
    bones = []
    for side in SIDES:
        broken = [fracture for fracture in breaks if fracture.side == side and fracture.rib is None]
        bones += _pieces(collarbone(scene.body, side), broken)
    _shells(scene.frame, bones, onto=layer, widths=(1.1, 0.66), values=(235, 150))
    scene.dense[...] += share(layer) * np.float32(2.3 * calcium)


def _add_ribs(scene: Scene, calcium: float, breaks: Sequence[Break]) -> None:
    behind, before = blank(scene.frame), blank(scene.frame)
    half = _POINTS * 13 // 25
    for side in SIDES:
        courses = rib_courses(scene.body, side)
        backs: list[Points] = []
        for rib, course in enumerate(courses, 1):
            broken = [fracture for fracture in breaks if (fracture.side, fracture.rib) == (side, rib)]
            # Ribs break behind only: in front there is cartilage.
            backs += _pieces(course, broken, end=half)
        fronts = list(courses[:, half - 1 :])
        _shells(scene.frame, backs, onto=behind, widths=(0.95, 0.52), values=(230, 165))
        _shells(scene.frame, fronts, onto=before, widths=(1.15, 0.75), values=(200, 150))
    _fade_in_front(scene, before)
    _fade_at_spine(scene, behind)
    scene.dense[...] += share(behind) * np.float32(1.55 * calcium) + share(before) * np.float32(1.35 * calcium)


def _fade_in_front(scene: Scene, before: ByteArray) -> None:
    """Fade the anterior ribs into cartilage, which casts no shadow."""
    half = max(scene.body.width.values())
    away = np.abs(scene.u - np.float32(scene.body.turn))
    before[...] = (before * ramp(away, 0.42 * half, 0.72 * half)).astype(np.uint8)


def _fade_at_spine(scene: Scene, behind: ByteArray) -> None:
    """Fade the posterior ribs toward the spine, where they turn away from the film."""
    behind[...] = (behind * (np.float32(0.12) + np.float32(0.88) * ramp(np.abs(scene.u), 0.6, 5.5))).astype(np.uint8)


def _shells(
    frame: Frame, lines: Sequence[Points], *, onto: ByteArray, widths: tuple[float, float], values: tuple[int, int]
) -> None:
    """Draw bones as a shell around a core."""
    for width, value in zip(widths, values, strict=True):
        whole = [line for line in lines if len(line) == len(lines[0])]
        pieces = [ribbon(line, width) for line in lines if len(line) != len(lines[0])]
        fill(frame, [*ribbon(np.stack(whole), width), *pieces], onto=onto, value=value)


def _pieces(line: Points, breaks: Sequence[Break], *, end: int | None = None) -> list[Points]:
    """Break a line at the first break before its end: the two ends leave a gap and are displaced sideways."""
    if not breaks:
        return [line[:end]]
    broken = breaks[0]
    # Far from the break the line keeps its points, so that the bone is unchanged there.
    own = np.arange(len(line), dtype=np.float64)
    place = broken.place * own[-1]
    along = np.concatenate([[0.0], np.cumsum(np.sqrt((np.diff(line, axis=0) ** 2).sum(axis=1)))])
    at = float(np.interp(place, own, along))
    low, high = np.interp([at - _REACH, at + _REACH], along, own)
    places = np.union1d(own, np.linspace(low, high, 40))
    fine = np.stack([np.interp(places, own, axis) for axis in line.T], axis=1)
    away = np.interp(places, own, along) - at
    near = np.clip(1 - np.abs(away) / _REACH, 0, 1) ** 1.5
    direction = fine[-1] - fine[0] if broken.rib is None else np.array([0.6, 1.0]) * (SIGN[broken.side], 1)
    across = np.array([-direction[1], direction[0]]) / np.sqrt((direction**2).sum())
    moved = fine + across * (near * np.sign(away) * broken.offset / 2)[:, np.newaxis]
    kept = places <= (len(line) - 1 if end is None else end - 1)
    parts = [moved[(away < -_GAP / 2) & kept], moved[(away > _GAP / 2) & kept]]
    return [part for part in parts if len(part) > 2]


def _spine(frame: Frame, body: Anatomy, calcium: float) -> FloatArray:
    """Draw the vertebrae, their arches and the faint edges of the breastbone."""
    layer = blank(frame)
    tall = body.spacing * 0.97
    number = np.arange(-5, 15)
    v = -1.2 + number * tall
    u = np.array([body.middle(height) for height in v])
    wide = 1.35 + 0.045 * np.maximum(number, 0)
    at = np.stack([u, v], axis=1)[:, np.newaxis]
    size = np.stack([wide, np.full(len(v), tall)], axis=1)[:, np.newaxis]
    corners = np.array([(-1, 0), (-0.88, 0.5), (-1, 0.86), (1, 0.86), (0.88, 0.5), (1, 0)])
    bodies = at + corners * size
    discs = at + ellipse((0, tall * 0.52), (0.28, 0.62), steps=10)
    arch = ellipse((0, tall * 0.35), (0.3, 0.42), steps=10)
    arches = np.concatenate([at + arch + size * (sign * 0.62, 0) for sign in (-1, 1)])
    fill(frame, bodies, onto=layer, value=150)
    fill(frame, arches, onto=layer, value=215)
    fill(frame, discs, onto=layer, value=200)
    return share(soften(layer, 0.06 * frame.scale)) * np.float32(2.0 * calcium)


def _shoulders(frame: Frame, body: Anatomy, calcium: float) -> FloatArray:
    """Draw scapulae and upper arms."""
    blades, edges, arms, heads = blank(frame), blank(frame), [], []
    for side in SIDES:
        sign, half = SIGN[side], body.width[side]
        inward = 0.72 if body.supine else 0.93
        tip = ((inward + 0.1) * half, 12.5)
        corners = [(half + 2.2, 1.2), (0.80 * half, -0.6), (inward * half, 3.0), tip, (half + 1.6, 5.0)]
        blade = smooth(corners, closed=True)
        fill(frame, [blade * (sign, 1)], onto=blades, value=95)
        strokes(frame, [blade * (sign, 1)], width=0.35, onto=edges, value=90)
        crest = smooth([(0.8 * half, 2.0), (half, 0.6), (half + 3.3, -0.8)])
        strokes(frame, [crest * (sign, 1)], width=0.7, onto=edges, value=120)
        arm = smooth([(half + 4.2, 1.6), (half + 5.0, 8.0), (half + (6.0 if body.supine else 9.0), 24.0)])
        arms.append(ribbon(arm * (sign, 1), 2.2))
        heads.append(ellipse((sign * (half + 3.9), 1.6), (2.3, 2.4)))
    limb = rounded(fill(frame, [*arms, *heads]), 1.2 * frame.scale)
    flat = share(blades) * np.float32(1.5) + share(edges) * np.float32(1.7)
    shoulders: FloatArray = (flat + limb * np.float32(3.4)) * np.float32(calcium)
    return shoulders
