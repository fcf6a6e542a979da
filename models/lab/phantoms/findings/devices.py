"""Tubes, lines and pacemakers inside the patient, and cables on the skin, which are no finding."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from models.lab.phantoms.anatomy import SIGN, Anatomy
from models.lab.phantoms.drawing import ByteArray, Points, blank, ellipse, fill, share, smooth, soften, strokes
from models.lab.phantoms.plan import Planned
from models.lab.phantoms.random_streams import RandomStream
from models.lab.phantoms.scene import Scene

_Course = Callable[[Anatomy, Planned, RandomStream], Points]


def add_device(scene: Scene, planned: Planned, stream: RandomStream) -> ByteArray:
    """Draw one device into a patient."""
    if planned.kind == "pacemaker":
        layer = _pacemaker(scene, planned, stream)
    else:
        course, width, is_hollow = _TUBES[planned.kind]
        line = course(scene.body, planned, stream)
        layer = strokes(scene.frame, [line], width=width, value=stream.whole(150, 230))
        if is_hollow:
            strokes(scene.frame, [line], width=width * 0.5, onto=layer, value=90)
    scene.dense[...] += share(layer) * np.float32(stream.between(1.8, 3.8))
    return layer


def add_wires(scene: Scene, stream: RandomStream) -> None:
    """Draw cables over the patient, with their electrodes or clips, on some films; they are never a finding."""
    layer = blank(scene.frame)
    if stream.chance(0.35):
        _electrodes(scene, stream, layer)
    if stream.chance(0.07):
        middle = scene.body.turn * 0.6
        rings = [ellipse((middle + stream.near(0, 0.15), 3.5 + 2.3 * number), (0.75, 0.45)) for number in range(5)]
        strokes(scene.frame, [np.concatenate([ring, ring[:1]]) for ring in rings], width=0.14, onto=layer, value=230)
    if stream.chance(0.08):
        clips = [_short(stream.between(-10, 10), stream.between(2, 22), stream) for _ in range(stream.whole(2, 7))]
        strokes(scene.frame, clips, width=0.2, onto=layer, value=230)
    scene.dense[...] += share(layer) * np.float32(stream.between(2.5, 6.0))


def _electrodes(scene: Scene, stream: RandomStream, layer: ByteArray) -> None:
    wires: list[Points] = []
    for _ in range(stream.whole(2, 5)):
        u, v = stream.between(-13, 13), stream.between(0, 22)
        away = stream.pick(((-20.0, v + 9), (20.0, v + 9), (u + stream.between(-4, 4), 36.0), (u * 1.2, -12.0)))
        bend = ((u + away[0]) / 2 + stream.near(0, 2.5), (v + away[1]) / 2 + stream.near(0, 2.5))
        wires.append(smooth([(u, v), bend, away], steps=10))
        fill(scene.frame, [ellipse((u, v), (0.75, 0.75), steps=14)], onto=layer, value=90)
        fill(scene.frame, [ellipse((u, v), (0.38, 0.38), steps=10)], onto=layer, value=240)
    strokes(scene.frame, wires, width=stream.between(0.14, 0.3), onto=layer, value=stream.whole(70, 140))


def _short(u: float, v: float, stream: RandomStream) -> Points:
    return np.array([(u, v), (u + stream.between(-0.6, 0.6), v + stream.between(-0.6, 0.6))])


def _tracheal(body: Anatomy, planned: Planned, stream: RandomStream) -> Points:
    end = body.carina - stream.between(1.5, 4.5)
    path = [(body.middle(-9) + 0.4, -11.0), (body.middle(-4), -4.0), (body.middle(end) * 0.5 + body.shift * 0.5, end)]
    return smooth(path)


def _central(body: Anatomy, planned: Planned, stream: RandomStream) -> Points:
    """Run from the neck or from below the clavicle into the superior vena cava."""
    sign = SIGN[planned.side or "right"]
    end = (-2.1 + body.shift, body.hilum + stream.between(-1.0, 3.5))
    cava = (-2.3 + body.shift, body.arch + 0.5)
    if stream.chance(0.5):
        path = [(sign * 4.4, -9.0), (sign * 3.4, -3.0), (sign * 2.2, 1.2)]
    else:
        path = [(sign * 13.5, 3.0), (sign * 9.0, 0.9), (sign * 4.5, 1.4)]
    if sign > 0:
        path.append((0.6 + body.shift, body.arch - 1.2))
    return smooth([*path, cava, end])


def _feeding(body: Anatomy, planned: Planned, stream: RandomStream) -> Points:
    low = body.dome["left"]
    end = (stream.between(2.5, 7.0), low + stream.between(4.0, 6.5))
    return smooth(
        [(0.6, -11.0), (0.8, 0.0), (0.9 + body.shift * 0.5, body.hilum), (1.2, low + 1.0), (4.2, low + 3.2), end]
    )


def _drain(body: Anatomy, planned: Planned, stream: RandomStream) -> Points:
    side = planned.side or "right"
    sign, half = SIGN[side], body.width[side]
    height = body.dome[side] - body.top[side]
    entry = body.top[side] + height * stream.between(0.55, 0.8)
    tip = (0.42 * half, body.top[side] + height * stream.between(0.12, 0.3))
    line = smooth([(half + 5, entry + 2.5), (half + 0.3, entry), (0.74 * half, entry - 0.22 * height), tip])
    return line * (sign, 1)


_TUBES: Mapping[str, tuple[_Course, float, bool]] = {
    "tracheal tube": (_tracheal, 0.85, True),
    "central line": (_central, 0.26, False),
    "feeding tube": (_feeding, 0.34, False),
    "chest tube": (_drain, 0.75, True),
}
"""By kind: the course, the width in cm, and whether both walls are visible."""


def _pacemaker(scene: Scene, planned: Planned, stream: RandomStream) -> ByteArray:
    """Draw the can below a clavicle and its leads into the right atrium and the right ventricle."""
    body = scene.body
    sign = SIGN[planned.side or "left"]
    u, v = sign * stream.between(8.5, 10.5), stream.between(3.2, 6.0)
    wide, tall = stream.between(1.9, 2.5), stream.between(2.0, 2.7)
    corners = np.array([(-1, -0.8), (-0.6, -1), (0.7, -1), (1, -0.6), (1, 0.6), (0.5, 1), (-0.5, 1), (-1, 0.5)])
    can = smooth(corners * (wide, tall) + (u, v), steps=3, closed=True)
    layer = fill(scene.frame, [can], value=235)
    scene.dense[...] += share(layer) * np.float32(6)
    start = (u - sign * 1.2, v - tall * 0.8)
    vein = [(sign * 4.6, 1.3), (0.4 + body.shift, body.arch - 0.8)] if sign > 0 else [(sign * 4.0, 1.3)]
    cava = (-2.2 + body.shift, body.arch + 1.0)
    low = body.dome["left"]
    atrium = (-2.9 + body.shift, body.hilum + 0.55 * (low - body.hilum))
    ventricle = (stream.between(3.0, 5.5) + body.shift, low - stream.between(0.2, 1.4))
    leads = [
        smooth([start, *vein, cava, atrium, (-1.2 + body.shift, low - 0.8), ventricle]),
        smooth([start, *vein, cava, (-2.6 + body.shift, body.hilum + 2.0), (atrium[0] - 0.9, atrium[1] - 1.4)]),
    ]
    strokes(scene.frame, leads[: stream.whole(1, 2)], width=0.24, onto=layer, value=190)
    return soften(layer, 0.03 * scene.frame.scale)
