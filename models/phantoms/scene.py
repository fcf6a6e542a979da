"""A healthy body in the beam: how many centimeters of water each pixel's ray has to pass.

Lungs are air that a trunk lacks; heart, vessels and all that is ill displace air. So everything overlaps as it does on
a real film, and what has no air around it is hard to see.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from models.phantoms.anatomy import SIDES, SIGN, Anatomy
from models.phantoms.dice import Dice
from models.phantoms.drawing import blank, clouds, ellipse, fill, ramp, ribbon, rounded, share, smooth, soften, strokes
from models.phantoms.frame import ByteArray, FloatArray, Frame, Points
from models.phantoms.truth import Side

_AIR = 0.76
"""What a cm of lung lacks of a cm of water."""
_HIGHEST, _LOWEST = -9, 32
"""Cm of v between which a trunk changes its shape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One body on one film; findings change its arrays [row, column] in place, all in cm.

    u, v: of every pixel; trunk: tissue as if there were no lungs; lung: each lung's whole area, bytes
    room: for air in each lung, were it healthy; air: what is there of it; marks: vessels in it
    dense: what else lies in the beam, wherever it lies
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
        """Cm of water that each pixel's ray passes, 0 or more."""
        air = self.air["right"] + self.air["left"]
        marks = self.marks["right"] + self.marks["left"]
        water: FloatArray = np.maximum(self.trunk - np.float32(_AIR) * air + marks + self.dense, 0)
        return water


def healthy(frame: Frame, body: Anatomy, dice: Dice) -> Scene:
    """Put a body without bones, devices or findings into the beam."""
    u, v = frame.grid()
    trunk = _trunk(frame, body, u, v)
    lung = {side: fill(frame, [body.lungs[side]]) for side in SIDES}
    solid = _mediastinum(frame, body)
    texture = clouds(frame, dice, size=1.6) * np.float32(0.035) + 1
    air = {side: _air(frame, body, side, lung=lung[side], trunk=trunk, solid=solid) * texture for side in SIDES}
    scene = Scene(
        frame=frame,
        body=body,
        u=u,
        v=v,
        trunk=trunk,
        lung=lung,
        room=air,
        air={side: air[side].copy() for side in SIDES},
        # Behind the heart there is little lung, and little of its vessels is seen.
        marks={
            side: _lung_vessels(frame, body, side, dice) * np.minimum(air[side] * np.float32(0.2), 1) for side in SIDES
        },
        dense=np.zeros_like(trunk),
    )
    _add_airways(scene)
    _add_abdomen(scene, dice)
    if body.breast:
        _add_breasts(scene, dice)
    return scene


def displace(scene: Scene, side: Side, opacity: FloatArray) -> ByteArray:
    """Fill a share of a lung's air, 0..1, and hide its vessels as far.

    Returns where that changes the film: from 100 where it does a little to 255 where it leaves no air.
    """
    filled = np.minimum(opacity, 1) * share(scene.lung[side])
    changed = filled * scene.air[side] > 0.3
    filled = np.where(changed, filled, np.float32(0))
    scene.air[side][...] *= 1 - filled
    scene.marks[side][...] *= 1 - filled
    return np.where(changed, (100 + 155 * filled).astype(np.uint8), np.uint8(0))


def hilum_of(body: Anatomy, side: Side) -> tuple[float, float]:
    """Say where a lung's vessels enter it; the left hilum is higher."""
    return SIGN[side] * 3.4 + body.shift, body.hilum - (0.8 if side == "left" else 0.0)


def _trunk(frame: Frame, body: Anatomy, u: FloatArray, v: FloatArray) -> FloatArray:
    """Give neck, shoulders, chest and belly: an ellipse at every height, and arms beside it."""
    half = max(body.width.values())
    heights = (-9.0, -5.5, -4.0, -2.6, -1.2, 0.8, 4.0, 9.0, 16.0, 24.0, 32.0)
    chest = half + body.fat
    widths = (5.6, 6.0, 7.2, 9.5, 12.5, chest + 1.5, chest + 0.8, chest, chest, chest - 0.2, chest + 0.3)
    depths = (0.5, 0.52, 0.55, 0.6, 0.7, 0.82, 0.92, 1.0, 1.0, 1.08, 1.12)
    # Looked up in steps of a sixteenth of a cm, which is less than a pixel.
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
    """Give the thickness of heart and great vessels."""
    heart = rounded(fill(frame, [body.heart]), 3.6 * frame.scale) * np.float32(15)
    vessels = rounded(fill(frame, [body.vessels]), 2.4 * frame.scale) * np.float32(13)
    # Gullet, great veins and the aorta that descends keep the lungs apart below.
    low = {side: body.dome[side] + 5 for side in SIDES}
    strip = np.array([(-2.0, body.hilum), (2.3, body.hilum), (2.6, low["left"]), (-2.2, low["right"])])
    strip[:, 0] += body.middle(body.hilum) + 0.4 * body.shift
    spine = rounded(fill(frame, [strip]), 1.8 * frame.scale)
    u, v, radius = body.knob
    knob = rounded(fill(frame, [ellipse((u - radius, v), (radius, radius * 1.1))]), radius * frame.scale)
    solid: FloatArray = np.maximum(np.maximum(heart, vessels), np.maximum(knob * np.float32(9), spine * np.float32(9)))
    return solid


def _air(
    frame: Frame, body: Anatomy, side: Side, *, lung: ByteArray, trunk: FloatArray, solid: FloatArray
) -> FloatArray:
    """Give the air of one lung: the trunk without its walls, thinner where the lung is round, without the heart."""
    deep = np.maximum(trunk - np.float32(body.wall), trunk * np.float32(0.3))
    air = deep * rounded(lung, 3.0 * frame.scale) * (np.float32(0.3) + np.float32(0.7) * share(lung))
    left: FloatArray = np.maximum(air - solid, 0)
    return left


def _lung_vessels(frame: Frame, body: Anatomy, side: Side, dice: Dice) -> FloatArray:
    """Grow the vessels of one lung from its hilum, branch by branch, and the hilum itself."""
    hilum = np.array(hilum_of(body, side))
    sign = SIGN[side]
    root = fill(frame, [ellipse((hilum[0] - sign * 0.2, hilum[1] + 0.7), (1.2, 2.4))], value=dice.whole(110, 220))
    layer = blank(frame)
    count = 8
    angles = np.linspace(-1.25, 1.35, count) + (dice.units(count) - 0.5) * 0.35
    starts = np.tile(hilum, (count, 1)) + np.stack([np.zeros(count), np.sin(angles) * 1.4], axis=1)
    lengths = 2.2 + 1.8 * dice.units(count)
    for width, value in ((0.52, 170), (0.38, 140), (0.28, 115), (0.20, 95), (0.15, 80)):
        bend = (dice.units(len(angles)) - 0.5) * 1.2
        lines = _branches(starts, angles, bend, lengths, sign=sign)
        strokes(frame, lines, width=width, onto=layer, value=value)
        spread = 0.18 + 0.45 * dice.units(len(angles))
        starts = np.repeat(lines[:, -1], 2, axis=0)
        angles = np.repeat(angles + bend, 2) + np.stack([-spread, spread], axis=1).reshape(-1)
        lengths = np.repeat(lengths, 2) * (0.55 + 0.4 * dice.units(len(angles)))
    vessels = share(soften(layer, 0.05 * frame.scale)) * np.float32(dice.between(1.4, 3.4))
    return vessels + share(soften(root, 0.6 * frame.scale)) * np.float32(2.5)


def _branches(starts: Points, angles: Points, bend: Points, lengths: Points, *, sign: int) -> Points:
    """Draw one generation of vessels, [branch, 3 points, 2]; angles are 0 outwards and grow downwards."""
    steps = np.arange(3)[np.newaxis, :] / 2
    course = angles[:, np.newaxis] + bend[:, np.newaxis] * steps
    moves = np.stack([np.cos(course) * sign, np.sin(course)], axis=-1) * (lengths / 2)[:, np.newaxis, np.newaxis]
    moves[:, 0] = 0
    return starts[:, np.newaxis] + np.cumsum(moves, axis=1)


def _add_airways(scene: Scene) -> None:
    """Add the windpipe and the main bronchi, which lack water where they run through the mediastinum."""
    frame, body = scene.frame, scene.body
    at = body.shift + body.middle(body.carina) * 0.5
    pipe = smooth([(body.middle(-9), -9.0), (body.middle(0), 0.0), (at - 0.3, body.arch), (at, body.carina)])
    layer = fill(frame, [ribbon(pipe, 1.7)], value=205)
    right = smooth([(at, body.carina - 0.6), (at - 1.6, body.carina + 1.1), (at - 3.2, body.carina + 3.0)])
    left = smooth([(at, body.carina - 0.6), (at + 2.2, body.carina + 1.1), (at + 4.2, body.carina + 2.0)])
    fill(frame, [ribbon(right, 1.2), ribbon(left, 1.1)], onto=layer, value=120)
    scene.dense[...] -= share(soften(layer, 0.12 * frame.scale)) * np.float32(2.3)


def _add_abdomen(scene: Scene, dice: Dice) -> None:
    """Add what lies below the diaphragm: liver and belly, gas in stomach and bowel."""
    frame, body = scene.frame, scene.body
    scene.trunk[...] += ramp(scene.v, body.dome["right"], body.dome["right"] + 9) * (scene.trunk > 0) * np.float32(3)
    gas: list[Points] = []
    if dice.chance(0.65):
        wide, tall = dice.between(1.4, 4.2), dice.between(0.9, 2.4)
        at = (dice.between(4.0, 7.5), body.dome["left"] + tall + dice.between(0.5, 1.3))
        bubble = ellipse(at, (wide, tall))
        if not body.supine:
            bubble[:, 1] = np.minimum(bubble[:, 1], at[1] + tall * dice.between(0.1, 0.9))
        gas.append(bubble)
    if dice.chance(0.5):
        for _ in range(dice.whole(2, 7)):
            at = (dice.between(-9, 11), body.angle["left"] + dice.between(2.0, 12))
            gas.append(ellipse(at, (dice.between(0.8, 2.8), dice.between(0.7, 1.5))))
    if gas:
        bubbles = rounded(fill(frame, gas), 1.3 * frame.scale) * np.float32(dice.between(2.0, 6.0))
        # Gas shows below the lungs alone: above them the stomach lies behind the diaphragm's edge.
        below = (scene.lung["left"] < 128) & (scene.lung["right"] < 128)
        scene.dense[...] -= bubbles * below


def _add_breasts(scene: Scene, dice: Dice) -> None:
    """Add breasts: thick towards their lower edges, which are sharp."""
    body = scene.body
    size = body.breast
    for side in SIDES:
        u, v = SIGN[side] * (body.width[side] * dice.between(0.56, 0.68)), body.dome["right"] + dice.between(-4.0, 2.5)
        wide, tall = 5.0 + 2.6 * size, 4.8 + 3.2 * size
        radius = ((scene.u - np.float32(u)) / np.float32(wide)) ** 2 + (
            (scene.v - np.float32(v)) / np.float32(tall)
        ) ** 2
        thick = np.sqrt(np.maximum(1 - radius, 0)) * ramp(scene.v, v - tall, v + 0.5 * tall)
        scene.dense[...] += thick * np.float32(1.0 + 3.6 * size)
