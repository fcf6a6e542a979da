"""A healthy body in the beam: how many centimeters of water the ray of each pixel passes.

Lungs are air subtracted from the trunk; heart, vessels and findings displace air. So structures overlap as on a real
film, and what has no air around it is hard to see.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from models.lab.phantoms.anatomy import SIDES, SIGN, Anatomy
from models.lab.phantoms.drawing import (
    ByteArray,
    FloatArray,
    Frame,
    Points,
    blank,
    clouds,
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
from models.lab.phantoms.truth import Side

_AIR = 0.76
"""How much less than water a cm of lung attenuates, in cm of water."""
_HIGHEST, _LOWEST = -9, 32
"""Heights v in cm between which the trunk changes its shape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A body on a film; findings change its arrays [row, column] in place, all in cm.

    u, v: coordinates of every pixel; trunk: tissue as if there were no lungs; lung: each lung's area, bytes
    room: the air of each healthy lung; air: the air that is left in it; marks: vessels in it
    dense: everything else in the beam
    """

    frame: Frame
    body: Anatomy
    u: FloatArray
    v: FloatArray
    trunk: FloatArray
    lung: Mapping[Side, ByteArray]
    room: Mapping[Side, FloatArray]
    air: Mapping[Side, FloatArray]
    marks: Mapping[Side, FloatArray]
    dense: FloatArray

    @property
    def attenuation(self) -> FloatArray:
        """The cm of water that the ray of each pixel passes, at least 0."""
        air = self.air["right"] + self.air["left"]
        marks = self.marks["right"] + self.marks["left"]
        water: FloatArray = np.maximum(self.trunk - np.float32(_AIR) * air + marks + self.dense, 0)
        return water


def healthy(frame: Frame, body: Anatomy, stream: RandomStream) -> Scene:
    """Return the scene of a body without bones, devices or findings."""
    u, v = frame.grid()
    trunk = _trunk(frame, body, u, v)
    lung = {side: fill(frame, [body.lungs[side]]) for side in SIDES}
    solid = _mediastinum(frame, body)
    texture = clouds(frame, stream, size=1.6) * np.float32(0.035) + 1
    air = {side: _air(frame, body, lung=lung[side], trunk=trunk, solid=solid) * texture for side in SIDES}
    scene = Scene(
        frame=frame,
        body=body,
        u=u,
        v=v,
        trunk=trunk,
        lung=lung,
        room=air,
        air={side: air[side].copy() for side in SIDES},
        # Behind the heart there is little lung, so few of its vessels are visible.
        marks={
            side: _lung_vessels(frame, body, side, stream) * np.minimum(air[side] * np.float32(0.2), 1)
            for side in SIDES
        },
        dense=np.zeros_like(trunk),
    )
    _add_airways(scene)
    _add_abdomen(scene, stream)
    if body.breast:
        _add_breasts(scene, stream)
    return scene


def displace(scene: Scene, side: Side, opacity: FloatArray) -> ByteArray:
    """Fill a share of a lung's air, 0..1, and hide its vessels by the same share.

    Returns where that changes the film: from 100, a little, to 255, no air left.
    """
    filled = np.minimum(opacity, 1) * share(scene.lung[side])
    changed = filled * scene.air[side] > 0.3
    filled = np.where(changed, filled, np.float32(0))
    scene.air[side][...] *= 1 - filled
    scene.marks[side][...] *= 1 - filled
    return np.where(changed, (100 + 155 * filled).astype(np.uint8), np.uint8(0))


def hilum_of(body: Anatomy, side: Side) -> tuple[float, float]:
    """Return the position of a lung's hilum; the left one is higher."""
    return SIGN[side] * 3.4 + body.shift, body.hilum - (0.8 if side == "left" else 0.0)


def _trunk(frame: Frame, body: Anatomy, u: FloatArray, v: FloatArray) -> FloatArray:
    """Return neck, shoulders, chest and abdomen: an ellipse at every height, with arms beside it."""
    half = max(body.width.values())
    heights = (-9.0, -5.5, -4.0, -2.6, -1.2, 0.8, 4.0, 9.0, 16.0, 24.0, 32.0)
    chest = half + body.fat
    widths = (5.6, 6.0, 7.2, 9.5, 12.5, chest + 1.5, chest + 0.8, chest, chest, chest - 0.2, chest + 0.3)
    depths = (0.5, 0.52, 0.55, 0.6, 0.7, 0.82, 0.92, 1.0, 1.0, 1.08, 1.12)
    # Taken from a table in steps of 1/16 cm, which is less than a pixel.
    steps = np.arange(16 * (_LOWEST - _HIGHEST)) / 16 + _HIGHEST
    place = np.clip((v - np.float32(_HIGHEST)) * np.float32(16), 0, len(steps) - 1).astype(np.int32)
    width = np.interp(steps, heights, widths).astype(np.float32)[place]
    depth = (np.interp(steps, heights, depths) * body.depth).astype(np.float32)[place]
    trunk: FloatArray = depth * np.sqrt(np.maximum(1 - (u / width) ** 2, 0))
    reach = body.fat * 0.4
    arms = []
    for side in SIDES:
        spread = 3.5 if body.supine else 5.5
        arm = smooth([(half + 0.5, 1.5), (half + 3.2, 2.2), (half + spread + 1.5, 10.0), (half + spread + 4.0, 26.0)])
        arms.append(ribbon(arm * (SIGN[side], 1), 7.0 + reach))
    limb = rounded(fill(frame, arms), 3.4 * frame.scale) * np.float32(7.5 + reach)
    whole: FloatArray = np.maximum(trunk, limb) + np.float32(0.25) * np.minimum(trunk, limb)
    return whole


def _mediastinum(frame: Frame, body: Anatomy) -> FloatArray:
    """Return the thickness of heart and great vessels."""
    heart = rounded(fill(frame, [body.heart]), 3.6 * frame.scale) * np.float32(15)
    vessels = rounded(fill(frame, [body.vessels]), 2.4 * frame.scale) * np.float32(13)
    # Esophagus, great veins and descending aorta separate the lungs below.
    low = {side: body.dome[side] + 5 for side in SIDES}
    strip = np.array([(-2.0, body.hilum), (2.3, body.hilum), (2.6, low["left"]), (-2.2, low["right"])])
    strip[:, 0] += body.middle(body.hilum) + 0.4 * body.shift
    spine = rounded(fill(frame, [strip]), 1.8 * frame.scale)
    u, v, radius = body.knob
    knob = rounded(fill(frame, [ellipse((u - radius, v), (radius, radius * 1.1))]), radius * frame.scale)
    solid: FloatArray = np.maximum(np.maximum(heart, vessels), np.maximum(knob * np.float32(9), spine * np.float32(9)))
    return solid


def _air(frame: Frame, body: Anatomy, *, lung: ByteArray, trunk: FloatArray, solid: FloatArray) -> FloatArray:
    """Return the air of one lung: the trunk without its walls, thinner toward the lung's edge, without the heart."""
    deep = np.maximum(trunk - np.float32(body.wall), trunk * np.float32(0.3))
    air = deep * rounded(lung, 3.0 * frame.scale) * (np.float32(0.3) + np.float32(0.7) * share(lung))
    left: FloatArray = np.maximum(air - solid, 0)
    return left


def _lung_vessels(frame: Frame, body: Anatomy, side: Side, stream: RandomStream) -> FloatArray:
    """Draw the vessels of one lung from its hilum, branch by branch, and the hilum itself."""
    hilum = np.array(hilum_of(body, side))
    sign = SIGN[side]
    root = fill(frame, [ellipse((hilum[0] - sign * 0.2, hilum[1] + 0.7), (1.2, 2.4))], value=stream.whole(110, 220))
    layer = blank(frame)
    count = 8
    angles = np.linspace(-1.25, 1.35, count) + (stream.units(count) - 0.5) * 0.35
    starts = np.tile(hilum, (count, 1)) + np.stack([np.zeros(count), np.sin(angles) * 1.4], axis=1)
    lengths = 2.2 + 1.8 * stream.units(count)
    for width, value in ((0.52, 170), (0.38, 140), (0.28, 115), (0.20, 95), (0.15, 80)):
        bend = (stream.units(len(angles)) - 0.5) * 1.2
        lines = _branches(starts, angles, bend, lengths, sign=sign)
        strokes(frame, lines, width=width, onto=layer, value=value)
        spread = 0.18 + 0.45 * stream.units(len(angles))
        starts = np.repeat(lines[:, -1], 2, axis=0)
        angles = np.repeat(angles + bend, 2) + np.stack([-spread, spread], axis=1).reshape(-1)
        lengths = np.repeat(lengths, 2) * (0.55 + 0.4 * stream.units(len(angles)))
    vessels = share(soften(layer, 0.05 * frame.scale)) * np.float32(stream.between(1.4, 3.4))
    return vessels + share(soften(root, 0.6 * frame.scale)) * np.float32(2.5)


def _branches(starts: Points, angles: Points, bend: Points, lengths: Points, *, sign: int) -> Points:
    """Draw one generation of vessels, [branch, 3 points, 2]; angle 0 points outward, and angles grow downward."""
    steps = np.arange(3)[np.newaxis, :] / 2
    course = angles[:, np.newaxis] + bend[:, np.newaxis] * steps
    moves = np.stack([np.cos(course) * sign, np.sin(course)], axis=-1) * (lengths / 2)[:, np.newaxis, np.newaxis]
    moves[:, 0] = 0
    return starts[:, np.newaxis] + np.cumsum(moves, axis=1)


def _add_airways(scene: Scene) -> None:
    """Add the trachea and the main bronchi, which lack water inside the mediastinum."""
    frame, body = scene.frame, scene.body
    at = body.shift + body.middle(body.carina) * 0.5
    pipe = smooth([(body.middle(-9), -9.0), (body.middle(0), 0.0), (at - 0.3, body.arch), (at, body.carina)])
    layer = fill(frame, [ribbon(pipe, 1.7)], value=205)
    right = smooth([(at, body.carina - 0.6), (at - 1.6, body.carina + 1.1), (at - 3.2, body.carina + 3.0)])
    left = smooth([(at, body.carina - 0.6), (at + 2.2, body.carina + 1.1), (at + 4.2, body.carina + 2.0)])
    fill(frame, [ribbon(right, 1.2), ribbon(left, 1.1)], onto=layer, value=120)
    scene.dense[...] -= share(soften(layer, 0.12 * frame.scale)) * np.float32(2.3)


def _add_abdomen(scene: Scene, stream: RandomStream) -> None:
    """Add what is below the diaphragm: liver and abdomen, gas in stomach and bowel."""
    frame, body = scene.frame, scene.body
    scene.trunk[...] += ramp(scene.v, body.dome["right"], body.dome["right"] + 9) * (scene.trunk > 0) * np.float32(3)
    gas: list[Points] = []
    if stream.chance(0.65):
        wide, tall = stream.between(1.4, 4.2), stream.between(0.9, 2.4)
        at = (stream.between(4.0, 7.5), body.dome["left"] + tall + stream.between(0.5, 1.3))
        bubble = ellipse(at, (wide, tall))
        if not body.supine:
            bubble[:, 1] = np.minimum(bubble[:, 1], at[1] + tall * stream.between(0.1, 0.9))
        gas.append(bubble)
    if stream.chance(0.5):
        for _ in range(stream.whole(2, 7)):
            at = (stream.between(-9, 11), body.angle["left"] + stream.between(2.0, 12))
            gas.append(ellipse(at, (stream.between(0.8, 2.8), stream.between(0.7, 1.5))))
    if gas:
        bubbles = rounded(fill(frame, gas), 1.3 * frame.scale) * np.float32(stream.between(2.0, 6.0))
        # Gas is visible below the lungs only; higher up the stomach is behind the edge of the diaphragm.
        below = (scene.lung["left"] < 128) & (scene.lung["right"] < 128)
        scene.dense[...] -= bubbles * below


def _add_breasts(scene: Scene, stream: RandomStream) -> None:
    """Add breasts: thickest toward their lower edges, which are sharp."""
    body = scene.body
    size = body.breast
    for side in SIDES:
        u, v = (
            SIGN[side] * (body.width[side] * stream.between(0.56, 0.68)),
            body.dome["right"] + stream.between(-4.0, 2.5),
        )
        wide, tall = 5.0 + 2.6 * size, 4.8 + 3.2 * size
        radius = ((scene.u - np.float32(u)) / np.float32(wide)) ** 2 + (
            (scene.v - np.float32(v)) / np.float32(tall)
        ) ** 2
        thick = np.sqrt(np.maximum(1 - radius, 0)) * ramp(scene.v, v - tall, v + 0.5 * tall)
        scene.dense[...] += thick * np.float32(1.0 + 3.6 * size)
