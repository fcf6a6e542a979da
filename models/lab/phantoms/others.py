"""Films that are not frontal chest films: laterals, other parts of the body, blank films and noise.

A reader of films must be able to reject them. Their only label is what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, get_args

import numpy as np

from models.lab.phantoms import parts, printing
from models.lab.phantoms.drawing import blank, clouds, fill, ribbon, share, smooth, solid, strokes
from models.lab.phantoms.film import GrayArray, develop, exposure, finish
from models.lab.phantoms.frame import BodyFraming, FloatArray, Frame, Points
from models.lab.phantoms.random_streams import RandomStream
from models.lab.phantoms.truth import Phantom

OtherKind = Literal["lateral", "hand", "skull", "abdomen", "blank", "foot", "knee", "shoulder", "spine", "noise"]
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
    "hand": parts.hand,
    "skull": parts.skull,
    "abdomen": parts.abdomen,
    "blank": _blank,
    "foot": parts.foot,
    "knee": parts.knee,
    "shoulder": parts.shoulder,
    "spine": parts.spine,
    "noise": _noise,
}
