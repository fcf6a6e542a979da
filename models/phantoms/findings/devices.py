"""Tubes, lines and pacemakers: what was put into the patient, and what only lies on the skin and is no finding."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from models.phantoms.anatomy import SIGN, Anatomy
from models.phantoms.dice import Dice
from models.phantoms.drawing import blank, ellipse, fill, share, smooth, soften, strokes
from models.phantoms.frame import ByteArray, Points
from models.phantoms.plan import Planned
from models.phantoms.scene import Scene

_Course = Callable[[Anatomy, Planned, Dice], Points]


def add_device(scene: Scene, planned: Planned, dice: Dice) -> ByteArray:
    """Lay one device into a patient."""
    if planned.kind == "pacemaker":
        layer = _pacemaker(scene, planned, dice)
    else:
        course, width, is_hollow = _TUBES[planned.kind]
        line = course(scene.body, planned, dice)
        layer = strokes(scene.frame, [line], width=width, value=dice.whole(150, 230))
        if is_hollow:
            strokes(scene.frame, [line], width=width * 0.5, onto=layer, value=90)
    scene.dense[...] += share(layer) * np.float32(dice.between(1.8, 3.8))
    return layer


def add_wires(scene: Scene, dice: Dice) -> None:
    """Lay cables over the patient, with their electrodes or clips; on some films, and never a finding."""
    layer = blank(scene.frame)
    if dice.chance(0.35):
        _electrodes(scene, dice, layer)
    if dice.chance(0.07):
        middle = scene.body.turn * 0.6
        rings = [ellipse((middle + dice.near(0, 0.15), 3.5 + 2.3 * number), (0.75, 0.45)) for number in range(5)]
        strokes(scene.frame, [np.concatenate([ring, ring[:1]]) for ring in rings], width=0.14, onto=layer, value=230)
    if dice.chance(0.08):
        clips = [_short(dice.between(-10, 10), dice.between(2, 22), dice) for _ in range(dice.whole(2, 7))]
        strokes(scene.frame, clips, width=0.2, onto=layer, value=230)
    scene.dense[...] += share(layer) * np.float32(dice.between(2.5, 6.0))


def _electrodes(scene: Scene, dice: Dice, layer: ByteArray) -> None:
    wires: list[Points] = []
    for _ in range(dice.whole(2, 5)):
        u, v = dice.between(-13, 13), dice.between(0, 22)
        away = dice.pick(((-20.0, v + 9), (20.0, v + 9), (u + dice.between(-4, 4), 36.0), (u * 1.2, -12.0)))
        bend = ((u + away[0]) / 2 + dice.near(0, 2.5), (v + away[1]) / 2 + dice.near(0, 2.5))
        wires.append(smooth([(u, v), bend, away], steps=10))
        fill(scene.frame, [ellipse((u, v), (0.75, 0.75), steps=14)], onto=layer, value=90)
        fill(scene.frame, [ellipse((u, v), (0.38, 0.38), steps=10)], onto=layer, value=240)
    strokes(scene.frame, wires, width=dice.between(0.14, 0.3), onto=layer, value=dice.whole(70, 140))


def _short(u: float, v: float, dice: Dice) -> Points:
    return np.array([(u, v), (u + dice.between(-0.6, 0.6), v + dice.between(-0.6, 0.6))])


def _tracheal(body: Anatomy, planned: Planned, dice: Dice) -> Points:
    end = body.carina - dice.between(1.5, 4.5)
    path = [(body.middle(-9) + 0.4, -11.0), (body.middle(-4), -4.0), (body.middle(end) * 0.5 + body.shift * 0.5, end)]
    return smooth(path)


def _central(body: Anatomy, planned: Planned, dice: Dice) -> Points:
    """Run from the neck or from below the collarbone into the superior vena cava."""
    sign = SIGN[planned.side or "right"]
    end = (-2.1 + body.shift, body.hilum + dice.between(-1.0, 3.5))
    cava = (-2.3 + body.shift, body.arch + 0.5)
    if dice.chance(0.5):
        path = [(sign * 4.4, -9.0), (sign * 3.4, -3.0), (sign * 2.2, 1.2)]
    else:
        path = [(sign * 13.5, 3.0), (sign * 9.0, 0.9), (sign * 4.5, 1.4)]
    if sign > 0:
        path.append((0.6 + body.shift, body.arch - 1.2))
    return smooth([*path, cava, end])


def _feeding(body: Anatomy, planned: Planned, dice: Dice) -> Points:
    low = body.dome["left"]
    end = (dice.between(2.5, 7.0), low + dice.between(4.0, 6.5))
    return smooth(
        [(0.6, -11.0), (0.8, 0.0), (0.9 + body.shift * 0.5, body.hilum), (1.2, low + 1.0), (4.2, low + 3.2), end]
    )


def _drain(body: Anatomy, planned: Planned, dice: Dice) -> Points:
    side = planned.side or "right"
    sign, half = SIGN[side], body.width[side]
    height = body.dome[side] - body.top[side]
    entry = body.top[side] + height * dice.between(0.55, 0.8)
    tip = (0.42 * half, body.top[side] + height * dice.between(0.12, 0.3))
    line = smooth([(half + 5, entry + 2.5), (half + 0.3, entry), (0.74 * half, entry - 0.22 * height), tip])
    return line * (sign, 1)


_TUBES: Mapping[str, tuple[_Course, float, bool]] = {
    "tracheal tube": (_tracheal, 0.85, True),
    "central line": (_central, 0.26, False),
    "feeding tube": (_feeding, 0.34, False),
    "chest tube": (_drain, 0.75, True),
}
"""By kind: course, width in cm, and whether both walls show."""


def _pacemaker(scene: Scene, planned: Planned, dice: Dice) -> ByteArray:
    """Draw the can below a collarbone and its leads into the right atrium and the right ventricle."""
    body = scene.body
    sign = SIGN[planned.side or "left"]
    u, v = sign * dice.between(8.5, 10.5), dice.between(3.2, 6.0)
    wide, tall = dice.between(1.9, 2.5), dice.between(2.0, 2.7)
    corners = np.array([(-1, -0.8), (-0.6, -1), (0.7, -1), (1, -0.6), (1, 0.6), (0.5, 1), (-0.5, 1), (-1, 0.5)])
    can = smooth(corners * (wide, tall) + (u, v), steps=3, closed=True)
    layer = fill(scene.frame, [can], value=235)
    scene.dense[...] += share(layer) * np.float32(6)
    start = (u - sign * 1.2, v - tall * 0.8)
    vein = [(sign * 4.6, 1.3), (0.4 + body.shift, body.arch - 0.8)] if sign > 0 else [(sign * 4.0, 1.3)]
    cava = (-2.2 + body.shift, body.arch + 1.0)
    low = body.dome["left"]
    atrium = (-2.9 + body.shift, body.hilum + 0.55 * (low - body.hilum))
    ventricle = (dice.between(3.0, 5.5) + body.shift, low - dice.between(0.2, 1.4))
    leads = [
        smooth([start, *vein, cava, atrium, (-1.2 + body.shift, low - 0.8), ventricle]),
        smooth([start, *vein, cava, (-2.6 + body.shift, body.hilum + 2.0), (atrium[0] - 0.9, atrium[1] - 1.4)]),
    ]
    strokes(scene.frame, leads[: dice.whole(1, 2)], width=0.24, onto=layer, value=190)
    return soften(layer, 0.03 * scene.frame.scale)
