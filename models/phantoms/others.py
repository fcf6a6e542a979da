"""Films that are not frontal chest films: laterals, other parts of the body, blank films.

A reader of films must be able to reject them. Their only label is what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, get_args

import numpy as np

from models.phantoms import printing
from models.phantoms.drawing import blank, clouds, ellipse, fill, ribbon, rounded, share, smooth, soften, strokes
from models.phantoms.film import GrayArray, develop, exposure, finish
from models.phantoms.frame import BodyFraming, FloatArray, Frame, Points
from models.phantoms.random_streams import RandomStream
from models.phantoms.truth import Phantom

OtherKind = Literal["lateral", "hand", "skull", "abdomen", "blank"]
OTHER_KINDS: tuple[OtherKind, ...] = get_args(OtherKind)


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
    printing.label(gray, frame, stream)
    return gray


def _solid(frame: Frame, outlines: list[Points], *, thick: float, radius: float) -> FloatArray:
    return rounded(fill(frame, outlines), radius * frame.scale) * np.float32(thick)


def _lateral(frame: Frame, stream: RandomStream) -> FloatArray:
    """Draw a chest from its side: breastbone on the left of the picture, spine on the right."""
    trunk = smooth(
        [(-9, -3), (-12, 6), (-13, 16), (-12, 30), (13, 30), (13.5, 10), (9, -2), (5, -9), (-4, -9)], closed=True
    )
    lung = smooth(
        [(-2, -1), (-8, 5), (-10, 12), (-9, 17), (-3, 17.5), (4, 20), (9, 24), (9.5, 12), (6, 2)], closed=True
    )
    heart = smooth([(-3, 8), (-8, 12), (-9, 17.5), (-2, 18), (2, 15), (1, 10)], closed=True)
    spine = [np.array([(7.0 + s, v), (9.6 + s, v), (9.6 + s, v + 1.9), (7.0 + s, v + 1.9)]) for v, s in _bodies()]
    seen = _solid(frame, [trunk], thick=34, radius=6)
    air = np.maximum(_solid(frame, [lung], thick=22, radius=3) - _solid(frame, [heart], thick=13, radius=4), 0)
    ribs = [smooth([(9.5, v), (3, v + 3.0), (-5, v + 6.5), (-10, v + 7.5)]) for v in np.arange(-2, 20, 2.4)]
    bones = share(fill(frame, spine)) * np.float32(4) + share(strokes(frame, ribs, width=0.8)) * np.float32(1.2)
    texture = clouds(frame, stream, size=1.5) * np.float32(0.05) + 1
    water: FloatArray = np.maximum(seen - np.float32(0.76) * air * texture + bones, 0)
    return water


def _bodies() -> list[tuple[float, float]]:
    return [(float(v), 0.8 * float(np.sin(v / 8))) for v in np.arange(-8, 30, 2.4)]


def _hand(frame: Frame, stream: RandomStream) -> FloatArray:
    fingers = []
    for turn, length in ((-0.75, 7.0), (-0.25, 10.5), (0.0, 11.5), (0.22, 10.8), (0.45, 8.5)):
        turn += stream.near(0, 0.04)
        base = (np.sin(turn) * 7, 14 - np.cos(turn) * 5)
        fingers.append(
            smooth([(0.25 * base[0], 16.0), base, (base[0] + np.sin(turn) * length, base[1] - np.cos(turn) * length)])
        )
    palm = ellipse((0, 14), (5.2, 6.0))
    arm = ribbon(np.array([(0.0, 17.0), (0.5, 40.0)]), 6.5)
    flesh = _solid(frame, [palm, arm, *(ribbon(line, 2.3) for line in fingers)], thick=3.0, radius=1.5)
    bones = [part for line in fingers for part in (line[:5], line[6:9], line[10:])]
    forearm = [np.array([(-1.2, 19.0), (-1.0, 40.0)]), np.array([(1.4, 19.0), (1.6, 40.0)])]
    shafts = [ribbon(part, 0.95) for part in bones if len(part) > 1] + [ribbon(part, 1.5) for part in forearm]
    wrist = [ellipse((stream.between(-1.8, 1.8), stream.between(15.5, 18)), (0.85, 0.75)) for _ in range(7)]
    return flesh + share(fill(frame, [*shafts, *wrist])) * np.float32(2.2)


def _skull(frame: Frame, stream: RandomStream) -> FloatArray:
    wide = stream.between(7.2, 8.4)
    vault = ellipse((0, 9), (wide, 9.5))
    face = smooth([(-6, 11), (-5, 19), (-2.5, 23), (2.5, 23), (5, 19), (6, 11)], closed=True)
    inner = ellipse((0, 9), (wide - 0.7, 8.8))
    head = _solid(frame, [vault, face], thick=15, radius=6)
    shell = np.maximum(share(fill(frame, [vault, face])) - share(fill(frame, [inner])), 0) * np.float32(5)
    holes = [ellipse((sign * 3.1, 13.5), (1.9, 1.6)) for sign in (-1, 1)] + [ellipse((0, 16.5), (1.1, 1.7))]
    teeth = [ellipse((0.9 * number, 20.2), (0.4, 0.8)) for number in range(-4, 5)]
    neck = _solid(frame, [ribbon(np.array([(0.0, 20.0), (0.0, 40.0)]), 11.0)], thick=11, radius=5)
    bones = share(fill(frame, teeth)) * np.float32(4) - share(soften(fill(frame, holes), 3)) * np.float32(4)
    water: FloatArray = np.maximum(np.maximum(head, neck) + shell + bones, 0)
    return water


def _abdomen(frame: Frame, stream: RandomStream) -> FloatArray:
    half = stream.between(14, 17)
    seen = _solid(frame, [ribbon(np.array([(0.0, -20.0), (0.0, 50.0)]), 2 * half)], thick=24, radius=8)
    spine = [np.array([(-2.2, v), (2.2, v), (2.2, v + 2.6), (-2.2, v + 2.6)]) for v in np.arange(-8, 18, 3.1)]
    pelvis = [smooth([(s * 2, 19), (s * 8, 15), (s * 12, 18), (s * 9, 25), (s * 4, 28)], closed=True) for s in (-1, 1)]
    gas = [
        ellipse((stream.between(-11, 11), stream.between(-4, 24)), (stream.between(0.8, 3.4), stream.between(0.7, 2.0)))
        for _ in range(stream.whole(5, 14))
    ]
    bones = share(fill(frame, spine)) * np.float32(2.4) + share(fill(frame, pelvis)) * np.float32(3)
    water: FloatArray = np.maximum(seen + bones - _solid(frame, gas, thick=5, radius=1.2), 0)
    return water


def _blank(frame: Frame, stream: RandomStream) -> FloatArray:
    return blank(frame).astype(np.float32) + np.float32(stream.between(5, 20))


_DRAWN: Mapping[OtherKind, Callable[[Frame, RandomStream], FloatArray]] = {
    "lateral": _lateral,
    "hand": _hand,
    "skull": _skull,
    "abdomen": _abdomen,
    "blank": _blank,
}
