"""Films that are not frontal chest films: laterals, other parts of the body, blank films and noise.

A reader of films must be able to reject them. Their only label is what they are. The functions of parts of the body
draw the material in the beam, in cm of water, [row, column]; the origin of the body's frame lies where that of a chest
would have the top of the lungs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, get_args

import numpy as np

from models.lab.phantoms.drawing import (
    BodyFraming,
    FloatArray,
    Frame,
    Points,
    blank,
    clouds,
    ellipse,
    fill,
    ribbon,
    share,
    smooth,
    soften,
    solid,
    strokes,
)
from models.lab.phantoms.film import GrayArray, develop, exposure, finish, label
from models.lab.phantoms.random_streams import RandomStream
from models.lab.phantoms.truth import Phantom

OtherKind = Literal["lateral", "hand", "skull", "abdomen", "blank", "foot", "knee", "shoulder", "spine", "noise"]
OTHER_KINDS: tuple[OtherKind, ...] = get_args(OtherKind)


def hand(frame: Frame, stream: RandomStream) -> FloatArray:
    """Draw a hand with its wrist."""
    fingers = []
    for turn, length in ((-0.75, 7.0), (-0.25, 10.5), (0.0, 11.5), (0.22, 10.8), (0.45, 8.5)):
        turn += stream.near(0, 0.04)
        base = (np.sin(turn) * 7, 14 - np.cos(turn) * 5)
        fingers.append(
            smooth([(0.25 * base[0], 16.0), base, (base[0] + np.sin(turn) * length, base[1] - np.cos(turn) * length)])
        )
    palm = ellipse((0, 14), (5.2, 6.0))
    arm = ribbon(np.array([(0.0, 17.0), (0.5, 40.0)]), 6.5)
    flesh = solid(frame, [palm, arm, *(ribbon(line, 2.3) for line in fingers)], thick=3.0, radius=1.5)
    bones = [part for line in fingers for part in (line[:5], line[6:9], line[10:])]
    forearm = [np.array([(-1.2, 19.0), (-1.0, 40.0)]), np.array([(1.4, 19.0), (1.6, 40.0)])]
    shafts = [ribbon(part, 0.95) for part in bones if len(part) > 1] + [ribbon(part, 1.5) for part in forearm]
    wrist = [ellipse((stream.between(-1.8, 1.8), stream.between(15.5, 18)), (0.85, 0.75)) for _ in range(7)]
    return flesh + share(fill(frame, [*shafts, *wrist])) * np.float32(2.2)


def foot(frame: Frame, stream: RandomStream) -> FloatArray:
    """Draw a foot from its side: shin, heel, arch, toes."""
    tall = stream.between(0.9, 1.15)
    sole = smooth([(-9, 22), (-8, 18), (-3, 15), (4, 19), (13, 23), (13, 25.5), (2, 25), (-6, 26)], closed=True)
    shin = ribbon(np.array([(-4.5, 20.0), (-4.0, -20.0 * tall)]), 7.5)
    flesh = solid(frame, [sole, shin], thick=6.5, radius=2.5)
    heel = smooth([(-8.5, 23), (-7.5, 19.5), (-3, 19), (-2, 23)], closed=True)
    ankle = ellipse((-3.5, 17.5), (2.8, 1.9))
    tarsals = [ellipse((0.5 + 2.2 * number, 20 + 0.5 * number), (1.4, 1.3)) for number in range(3)]
    toes = [ribbon(np.array([(6.0, 21.0 + 0.6 * number), (11.5, 22.8 + 0.45 * number)]), 0.9) for number in range(5)]
    legs = [ribbon(np.array([(-4.6, 16.0), (-4.4, -20.0)]), 2.4), ribbon(np.array([(-6.6, 18.0), (-6.2, -20.0)]), 1.1)]
    return flesh + share(fill(frame, [heel, ankle, *tarsals, *toes, *legs])) * np.float32(2.6)


def knee(frame: Frame, stream: RandomStream) -> FloatArray:
    """Draw a knee from the front, now and then both."""
    gap, wide = stream.between(0.35, 0.7), stream.between(4.0, 5.0)
    middles = (-9.0, 9.0) if stream.chance(0.35) else (0.0,)
    flesh, bones = [], []
    for middle in middles:
        flesh.append(ribbon(np.array([(middle, -30.0), (middle, 60.0)]), 2.6 * wide))
        thigh = smooth(
            [(-1.5, -30), (-1.6, 4), (-wide, 9), (-wide, 12), (0, 11), (wide, 12), (wide, 9), (1.6, 4), (1.5, -30)]
        )
        top = 12 + gap
        shin = smooth(
            [(-wide, top), (wide, top), (wide, top + 2), (1.6, top + 8), (1.4, 60), (-1.4, 60), (-wide, top + 2)]
        )
        fibula = ribbon(np.array([(wide - 0.6, top + 2.5), (3.0, 60.0)]), 1.2)
        bones += [part + np.array((middle, 0.0)) for part in (thigh, shin, fibula)]
    water = solid(frame, flesh, thick=10, radius=4)
    return water + share(fill(frame, bones)) * np.float32(stream.between(2.4, 3.4))


def shoulder(frame: Frame, stream: RandomStream) -> FloatArray:
    """Draw one shoulder: head and shaft of the humerus, shoulder blade, collarbone, and the edge of the chest."""
    side = stream.pick((-1.0, 1.0))
    chest = smooth([(8, 0), (6, 8), (7, 24), (9, 40), (34, 40), (34, -4)], closed=True)
    arm = smooth([(10, -6), (0, -5), (-7, 1), (-9, 12), (-9, 40), (0, 40), (4, 14), (12, 4)], closed=True)
    lung = smooth([(13, 4), (11, 12), (12, 40), (34, 40), (34, 2), (20, 0)], closed=True)
    blade = smooth([(-1, 2), (3, 3), (9, 2), (10, 18), (6, 14), (2, 8)], closed=True)
    shaft = ribbon(np.array([(-4.0, 5.0), (-5.0, 40.0)]), 2.6)
    collarbone = ribbon(smooth([(-2, 0.5), (6, -1.5), (14, -0.5), (24, 2)]), 1.4)
    ribs = [ribbon(smooth([(12, v), (18, v - 2), (30, v + 2)]), 1.0) for v in np.arange(5, 36, 3.2)]

    def at(outlines: list[Points]) -> list[Points]:
        return [outline * (side, 1.0) for outline in outlines]

    water = np.maximum(
        solid(frame, at([arm]), thick=9, radius=4), solid(frame, at([chest]), thick=20, radius=6)
    ) - solid(frame, at([lung]), thick=9, radius=4)
    bones = share(fill(frame, at([ellipse((-4, 4), (2.7, 2.7)), shaft, blade, collarbone]))) * np.float32(2.4)
    thin = share(fill(frame, at(ribs))) * np.float32(1.2)
    seen: FloatArray = np.maximum(water, 0) + bones + thin
    return seen


def skull(frame: Frame, stream: RandomStream) -> FloatArray:
    """Draw a skull from the front."""
    wide = stream.between(7.2, 8.4)
    vault = ellipse((0, 9), (wide, 9.5))
    face = smooth([(-6, 11), (-5, 19), (-2.5, 23), (2.5, 23), (5, 19), (6, 11)], closed=True)
    inner = ellipse((0, 9), (wide - 0.7, 8.8))
    head = solid(frame, [vault, face], thick=15, radius=6)
    shell = np.maximum(share(fill(frame, [vault, face])) - share(fill(frame, [inner])), 0) * np.float32(5)
    holes = [ellipse((sign * 3.1, 13.5), (1.9, 1.6)) for sign in (-1, 1)] + [ellipse((0, 16.5), (1.1, 1.7))]
    teeth = [ellipse((0.9 * number, 20.2), (0.4, 0.8)) for number in range(-4, 5)]
    neck = solid(frame, [ribbon(np.array([(0.0, 20.0), (0.0, 40.0)]), 11.0)], thick=11, radius=5)
    bones = share(fill(frame, teeth)) * np.float32(4) - share(soften(fill(frame, holes), 3)) * np.float32(4)
    water: FloatArray = np.maximum(np.maximum(head, neck) + shell + bones, 0)
    return water


def spine(frame: Frame, stream: RandomStream) -> FloatArray:
    """Draw a lumbar spine from its side: a column of bodies, with the spines behind them."""
    way, bend = stream.pick((-1.0, 1.0)), stream.between(2.0, 5.0)
    heights = np.arange(-22, 46, 4.0)
    middles = [(way * bend * float(np.sin(v / 11)), float(v)) for v in heights]
    bodies = [np.array([(u - 2.3, v), (u + 2.3, v + 0.3), (u + 2.3, v + 3.2), (u - 2.3, v + 3.0)]) for u, v in middles]
    behind = [ribbon(np.array([(u + way * 3.5, v + 1.0), (u + way * 7.0, v + 3.0)]), 1.6) for u, v in middles]
    trunk = ribbon(np.array([(way * 2.0, -40.0), (way * 2.0, 70.0)]), stream.between(22, 30))
    edges = [np.concatenate([body, body[:1]]) for body in bodies]
    water = solid(frame, [trunk], thick=26, radius=9)
    bones = share(fill(frame, bodies)) * np.float32(3.4) + share(fill(frame, behind)) * np.float32(1.8)
    return water + bones + share(strokes(frame, edges, width=0.35)) * np.float32(1.6)


def abdomen(frame: Frame, stream: RandomStream) -> FloatArray:
    """Draw a belly with spine, pelvis and gas."""
    half = stream.between(14, 17)
    seen = solid(frame, [ribbon(np.array([(0.0, -20.0), (0.0, 50.0)]), 2 * half)], thick=24, radius=8)
    column = [np.array([(-2.2, v), (2.2, v), (2.2, v + 2.6), (-2.2, v + 2.6)]) for v in np.arange(-8, 18, 3.1)]
    pelvis = [smooth([(s * 2, 19), (s * 8, 15), (s * 12, 18), (s * 9, 25), (s * 4, 28)], closed=True) for s in (-1, 1)]
    gas = [
        ellipse((stream.between(-11, 11), stream.between(-4, 24)), (stream.between(0.8, 3.4), stream.between(0.7, 2.0)))
        for _ in range(stream.whole(5, 14))
    ]
    bones = share(fill(frame, column)) * np.float32(2.4) + share(fill(frame, pelvis)) * np.float32(3)
    water: FloatArray = np.maximum(seen + bones - solid(frame, gas, thick=5, radius=1.2), 0)
    return water


def other_film(seed: int, kind: OtherKind, side: int = 224) -> Phantom:
    """Make a film that must not be read, side x side pixels."""
    gray = other_gray(seed, kind, columns=side, rows=side)
    return Phantom(
        seed=seed,
        pixels=((gray.astype(np.uint32) + 128) // 257).astype(np.uint8),
        view="LATERAL" if kind == "lateral" else "NONE",
        is_chest=kind == "lateral",
        cardiothoracic_ratio=0.0,
        instances=(),
        regions={},
        sentences=(),
    )


def other_gray(seed: int, kind: OtherKind, *, columns: int, rows: int) -> GrayArray:
    """Make the gray values [row, column] of such a film, 0..65535."""
    stream = RandomStream(seed, kind)
    frame = Frame(
        columns=columns, rows=rows, framing=BodyFraming(stream.between(32, 40), 0.0, 12.0, stream.near(0, 0.05))
    )
    taken = exposure(RandomStream(seed, "exposure"), supine=False)
    gray = finish(develop(_DRAWN[kind](frame, stream), taken, frame, stream), taken, frame)
    label(gray, frame, stream)
    return gray


def _lateral(frame: Frame, stream: RandomStream) -> FloatArray:
    """Draw a chest from its side, facing either side of the picture: breastbone in front, spine behind."""
    facing, deep, tall = stream.pick((-1.0, 1.0)), stream.between(0.85, 1.25), stream.between(0.88, 1.15)
    back, heart_size = stream.near(0, 0.8), stream.between(0.85, 1.3)

    def at(points: list[tuple[float, float]] | Points, *, bend: float = 0.0) -> Points:
        body = np.asarray(points, dtype=np.float64)
        return np.stack([facing * (deep * body[:, 0] + bend * np.sin(body[:, 1] / 9)), tall * body[:, 1]], axis=1)

    trunk = smooth(
        at([(-9, -3), (-12, 6), (-13, 16), (-12, 30), (13, 30), (13.5, 10), (9, -2), (5, -9), (-4, -9)]), closed=True
    )
    lung = smooth(
        at([(-2, -1), (-8, 5), (-10, 12), (-9, 17), (-3, 17.5), (4, 20), (9, 24), (9.5, 12), (6, 2)]), closed=True
    )
    apex = np.array((-4.0, 14.0))
    outline = np.array([(-3, 8), (-8, 12), (-9, 17.5), (-2, 18), (2, 15), (1, 10)])
    heart = smooth(at(apex + (outline - apex) * heart_size), closed=True)
    spine = [
        at(np.array([(7.0 + s, v), (9.6 + s, v), (9.6 + s, v + 1.9), (7.0 + s, v + 1.9)]), bend=back)
        for v, s in _bodies()
    ]
    seen = solid(frame, [trunk], thick=34, radius=6)
    if stream.chance(0.6):  # the arms are not always held out of the beam
        arm = at([(-2, 1), (-9, -6), (-16, -14)] if stream.chance(0.5) else [(2, 2), (0, 14), (-3, 30)])
        seen = seen + solid(frame, [ribbon(smooth(arm), 8.0)], thick=7, radius=3)
    air = np.maximum(solid(frame, [lung], thick=22, radius=3) - solid(frame, [heart], thick=13, radius=4), 0)
    ribs = [smooth(at([(9.5, v), (3, v + 3.0), (-5, v + 6.5), (-10, v + 7.5)])) for v in np.arange(-2, 20, 2.4)]
    bones = share(fill(frame, spine)) * np.float32(4) + share(strokes(frame, ribs, width=0.8)) * np.float32(1.2)
    texture = clouds(frame, stream, size=1.5) * np.float32(0.05) + 1
    water: FloatArray = np.maximum(seen - np.float32(0.76) * air * texture + bones, 0)
    return water


def _bodies() -> list[tuple[float, float]]:
    return [(float(v), 0.8 * float(np.sin(v / 8))) for v in np.arange(-8, 30, 2.4)]


def _blank(frame: Frame, stream: RandomStream) -> FloatArray:
    return blank(frame).astype(np.float32) + np.float32(stream.between(5, 20))


def _noise(frame: Frame, stream: RandomStream) -> FloatArray:
    """Draw what a detector without a patient or a broken cable may give: clouds, grain, stripes."""
    grain = stream.bytes(frame.rows, frame.columns).astype(np.float32) * np.float32(stream.between(0, 12) / 255)
    seen = clouds(frame, stream, size=stream.between(1.0, 12.0)) * np.float32(stream.between(1, 6)) + grain + 12
    if stream.chance(0.4):
        step = stream.whole(3, 24)
        seen[::step] += np.float32(stream.between(2, 8))
    water: FloatArray = np.maximum(seen, 0)
    return water


_DRAWN: Mapping[OtherKind, Callable[[Frame, RandomStream], FloatArray]] = {
    "lateral": _lateral,
    "hand": hand,
    "skull": skull,
    "abdomen": abdomen,
    "blank": _blank,
    "foot": foot,
    "knee": knee,
    "shoulder": shoulder,
    "spine": spine,
    "noise": _noise,
}
