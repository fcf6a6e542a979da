"""A random body: sizes and outlines in centimeters, before anything is drawn.

Sizes are correlated as in people: ribs are counted from the top, so a deep breath moves the diaphragm below more of
them; a rotated patient has one lung wider than the other and the breastbone beside the spine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from models.lab.phantoms.drawing import Points, smooth
from models.lab.phantoms.random_streams import RandomStream
from models.lab.phantoms.truth import Side

SIDES: tuple[Side, Side] = ("right", "left")
SIGN: Mapping[Side, int] = {"right": -1, "left": 1}
"""The sign of u on each side of the patient."""

# The lung's lateral extent as a share of its greatest half width, by its height from its top, 0, to its angle, 1.
_LATERAL = (
    (0.0, 0.33),
    (0.01, 0.42),
    (0.045, 0.53),
    (0.12, 0.67),
    (0.24, 0.80),
    (0.40, 0.89),
    (0.58, 0.95),
    (0.78, 0.985),
    (0.93, 1.0),
    (1.0, 0.985),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Habit:
    """The requirements of a plan on its body.

    large_heart: how far the cardiothoracic ratio exceeds 0.5, None for a normal heart
    shift: displacement of the mediastinum in u, cm; raised: elevation of each hemidiaphragm, cm
    """

    supine: bool
    large_heart: float | None
    shift: float
    raised: Mapping[Side, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Anatomy:
    """One body.

    width: greatest half width of each lung; top: v of each lung's top; dome, angle: v of each hemidiaphragm's top and
    angle; spacing: distance of ribs; hilum, arch, carina: their v; ratio: cardiothoracic ratio
    shift, turn: displacement in u of the mediastinum, and of anterior structures; curve: spine's amplitude and phase
    depth: depth of the trunk, front to back; wall: its part outside the lungs; fat: beyond the ribs; breast: 0 for none
    """

    supine: bool
    width: Mapping[Side, float]
    top: Mapping[Side, float]
    dome: Mapping[Side, float]
    angle: Mapping[Side, float]
    spacing: float
    hilum: float
    arch: float
    carina: float
    ratio: float
    shift: float
    turn: float
    curve: tuple[float, float]
    depth: float
    wall: float
    fat: float
    breast: float
    lungs: Mapping[Side, Points]
    heart: Points
    vessels: Points
    knob: tuple[float, float, float]

    def middle(self, v: float) -> float:
        """Return u of the spine's center."""
        amplitude, phase = self.curve
        return amplitude * math.sin(v / 9 + phase)

    def lateral(self, side: Side, v: Points) -> Points:
        """Return the lateral extent of a side's lung at these heights, unsigned; beyond its ends that of the end."""
        share = (v - self.top[side]) / (self.angle[side] - self.top[side])
        heights, widths = zip(*_LATERAL, strict=True)
        reach: Points = self.width[side] * np.interp(share, heights, widths)
        return reach

    def lateral_at(self, side: Side, v: float) -> float:
        """Return the lateral extent at one height."""
        return float(self.lateral(side, np.array([v]))[0])


def anatomy(stream: RandomStream, habit: Habit) -> Anatomy:
    """Draw a body."""
    half = stream.near(13.3, 0.9)
    turn = stream.near(0, 0.7)
    spacing = half * stream.between(0.158, 0.182)
    ribs = stream.between(6.6, 9.2) if habit.supine else stream.between(7.8, 10.6)
    top = {side: stream.near(0, 0.35) for side in SIDES}
    width = {side: half * (1 - SIGN[side] * turn * 0.025) + stream.near(0, 0.25) for side in SIDES}
    lower = {"right": 0.0, "left": stream.between(0.2, 1.6)}
    dome = {side: spacing * ribs + lower[side] - habit.raised[side] for side in SIDES}
    angle = {side: dome[side] + stream.between(2.0, 5.4) + 0.3 * habit.raised[side] for side in SIDES}
    height = spacing * ribs
    hilum = height * stream.between(0.42, 0.5)
    excess, normal = stream.between(0, 1), stream.between(0.37, 0.485)
    ratio = normal if habit.large_heart is None else 0.5 + habit.large_heart * (0.9 + 0.2 * excess)
    curve = (stream.near(0, 0.35) * (3 if stream.chance(0.12) else 1), stream.between(0, 6.28))
    shift = habit.shift + 0.5 * turn
    arch = height * stream.between(0.23, 0.3)
    knob = (2.9 + stream.between(-0.6, 1.1) + shift, arch, stream.between(1.3, 2.1))
    lungs = {
        side: _lung(stream, SIGN[side], width=width[side], top=top[side], dome=dome[side], angle=angle[side])
        for side in SIDES
    }
    return Anatomy(
        supine=habit.supine,
        width=width,
        top=top,
        dome=dome,
        angle=angle,
        spacing=spacing,
        hilum=hilum,
        arch=arch,
        carina=hilum - stream.between(0.6, 1.6),
        ratio=ratio,
        shift=shift,
        turn=turn,
        curve=curve,
        depth=stream.between(18, 25),
        wall=stream.between(5.0, 9.5),
        fat=stream.between(1.4, 5.0) * (1.5 if stream.chance(0.2) else 1),
        breast=stream.between(0.3, 1.0) if stream.chance(0.45) else 0.0,
        lungs=lungs,
        heart=_heart(stream, ratio * (width["right"] + width["left"]), shift=shift, hilum=hilum, dome=dome),
        vessels=_great_vessels(stream, knob, shift=shift, arch=arch, hilum=hilum),
        knob=knob,
    )


def _lung(stream: RandomStream, sign: int, *, width: float, top: float, dome: float, angle: float) -> Points:
    """Draw a lung's outline: down its lateral edge, along the diaphragm, up beside the spine."""
    height, deep = angle - top, angle - dome
    inner = stream.between(0.2, 0.9)
    peak = stream.between(0.38, 0.5)
    outer = smooth([(share * width, top + height * level) for level, share in _LATERAL], steps=4)
    base = smooth(
        [
            (0.985 * width, angle),
            (0.90 * width, angle - deep * stream.between(0.5, 0.64)),
            (0.70 * width, dome + deep * 0.14),
            (peak * width, dome),
            (0.2 * width, dome + deep * stream.between(0.1, 0.3)),
            (inner, dome + deep * stream.between(0.25, 0.55)),
        ],
        steps=4,
    )
    medial = smooth(
        [
            (inner, dome),
            (inner + 0.2, dome - 0.35 * height),
            (1.7, top + 0.3 * height),
            (2.0, top + 0.1 * height),
            (0.2 * width, top + 0.02 * height),
            (0.33 * width, top),
        ],
        steps=4,
    )
    outline = np.concatenate([outer, base[1:], medial[1:-1]])
    outline[:, 0] *= sign
    return outline


def _heart(stream: RandomStream, across: float, *, shift: float, hilum: float, dome: Mapping[Side, float]) -> Points:
    """Draw the outline of a heart with exactly this width in cm."""
    right = across * stream.between(0.27, 0.36)
    left = across - right
    bottom = dome["left"] + stream.between(0.4, 1.6)
    floor = dome["right"] + stream.between(0.2, 1.2)
    tall, deep = bottom - hilum, floor - hilum
    droop = stream.between(0.16, 0.34)
    outline = smooth(
        [
            (-0.42 * right, hilum - 1.0),
            (-0.80 * right, hilum + 0.25 * deep),
            (-1.00 * right, hilum + 0.58 * deep),
            (-0.90 * right, hilum + 0.9 * deep),
            (-0.50 * right, floor + 0.3),
            (0.30 * left, bottom + 0.5),
            (0.75 * left, bottom + 0.2),
            (0.97 * left, bottom - droop * 0.5 * tall),
            (0.97 * left, bottom - droop * 1.3 * tall),
            (0.76 * left, hilum + 0.33 * tall),
            (0.52 * left, hilum + 0.08 * tall),
            (0.30 * left, hilum - 1.3),
        ],
        closed=True,
    )
    low, high = outline[:, 0].min(), outline[:, 0].max()
    outline[:, 0] = (outline[:, 0] - low) * (across / (high - low)) - right + shift
    return outline


def _great_vessels(
    stream: RandomStream, knob: tuple[float, float, float], *, shift: float, arch: float, hilum: float
) -> Points:
    """Draw the outline of the upper mediastinum: cava on the right, pulmonary trunk on the left, without the arch."""
    wide = stream.between(0.85, 1.25)
    edge = knob[0] - shift
    outline = smooth(
        [
            (-1.6 * wide, -5.0),
            (-2.0 * wide, 0.5),
            (-2.4 * wide, arch),
            (-2.6 * wide, hilum - 1.0),
            (-2.2 * wide, hilum + 2.5),
            (2.2 * wide, hilum + 2.5),
            (2.9 * wide, hilum - 0.2),
            (2.3 * wide, 0.6 * hilum + 0.4 * arch),
            (edge - 0.4, arch),
            (2.2 * wide, arch - 2.0),
            (1.9 * wide, 0.5),
            (1.6 * wide, -5.0),
        ],
        closed=True,
    )
    outline[:, 0] += shift * np.clip((outline[:, 1] + 4) / 8, 0, 1)
    return outline
