"""From a case to its film and its truth: the one place where anatomy, findings, film and words come together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import cv2
import numpy as np

from models.phantoms import printing, regions
from models.phantoms.anatomy import SIDES, SIGN, Anatomy, Habit, anatomy
from models.phantoms.bones import Break, add_bones, break_point, reach_of
from models.phantoms.drawing import ellipse, fill
from models.phantoms.film import GrayArray, develop, exposure, finish
from models.phantoms.findings import DRAWN, add_wires
from models.phantoms.frame import ByteArray, Frame, Framing
from models.phantoms.plan import Case, Planned, case_of
from models.phantoms.regions import Window
from models.phantoms.report import sentences_of
from models.phantoms.scene import Scene, healthy
from models.phantoms.truth import FindingKey, Instance, Phantom, Severity, Side

_EXCESS: Mapping[Severity, tuple[float, float]] = {
    "mild": (0.03, 0.06),
    "moderate": (0.06, 0.10),
    "severe": (0.10, 0.17),
}
"""Of the cardiothoracic ratio over 0.5."""
_HIDDEN = 100 + 155 * 0.95
"""From where on a cover leaves too little to be seen, in what `scene.displace` returns."""
_IN_LUNGS: Set[FindingKey] = {"atelectasis", "consolidation", "edema", "lung_lesion", "lung_opacity"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A case in the beam.

    masks: what of the film each finding changed, by its number; window: what the shutters leave
    """

    case: Case
    scene: Scene
    masks: Mapping[int, ByteArray]
    window: Window


def phantom(seed: int, side: int = 224) -> Phantom:
    """Make the frontal chest film of a seed, side x side pixels, with all that is true of it."""
    return phantom_of(case_of(seed), side=side)


def phantom_of(case: Case, *, side: int = 224) -> Phantom:
    """Make the film of a case."""
    drawn = draw(case, columns=side, rows=side)
    pixels = ((develop_case(drawn).astype(np.uint32) + 128) // 257).astype(np.uint8)
    return truth_of(drawn, pixels)


def draw(case: Case, *, columns: int, rows: int, without: Set[int] = frozenset()) -> Drawn:
    """Put a case into the beam.

    without: numbers of findings to leave out; all else stays as it is, what they push aside included
    """
    body = anatomy(case.dice("anatomy"), _habit(case, without))
    frame = Frame(columns=columns, rows=rows, framing=_framing(case, body))
    scene = healthy(frame, body, case.dice("tissue"))
    shown = [one for one in case.findings if one.number not in without]
    breaks = {one.number: _break(body, case, one) for one in shown if one.finding == "fracture"}
    add_bones(scene, case.dice("bones"), list(breaks.values()))
    masks = {}
    for one in shown:
        if one.finding in DRAWN:
            masks[one.number] = DRAWN[one.finding](scene, one, case.dice(f"finding {one.number}"))
            _hide(shown, masks, one)
        elif one.finding == "fracture":
            around = ellipse(break_point(body, breaks[one.number]), (reach_of(breaks[one.number]),) * 2)
            masks[one.number] = fill(frame, [around])
        else:
            masks[one.number] = fill(frame, [body.heart])
    add_wires(scene, case.dice("wires"))
    return Drawn(case=case, scene=scene, masks=masks, window=printing.shutters(case.dice("shutters")))


def develop_case(drawn: Drawn) -> GrayArray:
    """Make the film of what is in the beam: gray [row, column], 0..65535."""
    case, frame = drawn.case, drawn.scene.frame
    taken = exposure(case.dice("exposure"), supine=case.supine)
    gray = finish(develop(drawn.scene.attenuation, taken, frame, case.dice("noise")), taken, frame)
    printing.shut(gray, drawn.window, frame, case.dice("shutters again"))
    printing.label(gray, frame, case.dice("labels"))
    return gray


def truth_of(drawn: Drawn, pixels: ByteArray) -> Phantom:
    """Say what is true of a film."""
    case, scene = drawn.case, drawn.scene
    boxes = regions.region_boxes(scene.body, scene.frame, drawn.window)
    instances = [
        Instance(
            finding=one.finding,
            kind=one.kind,
            side=one.side,
            zone=one.zone,
            severity=one.severity,
            box=box,
            regions=regions.holding(one.finding, one.side, drawn.masks[one.number], boxes, scene.frame),
        )
        for one in case.findings
        if one.number in drawn.masks and (box := _box(drawn, drawn.masks[one.number])) is not None
    ]
    return Phantom(
        seed=case.seed,
        pixels=pixels,
        view="AP" if case.supine else "PA",
        is_chest=True,
        cardiothoracic_ratio=scene.body.ratio,
        instances=tuple(instances),
        regions=boxes,
        sentences=sentences_of(instances, boxes, case.dice("report")),
    )


def _hide(shown: Sequence[Planned], masks: Mapping[int, ByteArray], cover: Planned) -> None:
    """Take out of what lies in a lung where air or fluid of the pleura lies instead; a veil of fluid hides nothing."""
    if cover.finding not in ("pneumothorax", "pleural_effusion") or cover.kind == "layering":
        return
    for one in shown:
        if one.finding in _IN_LUNGS and one.side == cover.side:
            masks[one.number][masks[cover.number] > _HIDDEN] = 0


def _box(drawn: Drawn, mask: ByteArray) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]] | None:
    """Give the box around a mask, None where the film shows too little of it."""
    frame, window = drawn.scene.frame, drawn.window
    left, top, width, height = cv2.boundingRect((mask > 60).astype(np.uint8))
    if not width:
        return None
    corners = frame.unit_box(np.array([(left, top), (left + width, top + height)], dtype=np.float64))
    return regions.seen(corners, window, least=0.35)


def _habit(case: Case, without: Set[int]) -> Habit:
    """Say what the findings of a case do to the body around them."""
    dice = case.dice("habit")
    excess, shift, raised = None, 0.0, {side: 0.0 for side in SIDES}
    degree = dice.between(0, 1)
    for one in case.findings:
        if one.finding == "cardiomegaly" and one.number not in without:
            low, high = _EXCESS[one.severity]
            excess = low + (high - low) * degree
        if one.side is None:
            continue
        away = -SIGN[one.side]
        if one.severity == "severe" and one.finding in ("pneumothorax", "pleural_effusion"):
            shift += away * dice.between(0.0, 1.5)
        if one.finding == "atelectasis" and one.kind == "lobar":
            shift -= away * dice.between(0.2, 1.2)
            raised[one.side] += dice.between(0.5, 2.0)
    return Habit(supine=case.supine, large_heart=excess, shift=shift, raised=raised)


def _framing(case: Case, body: Anatomy) -> Framing:
    """Choose how a body lies on its film: mostly as technicians center it, at times too close or beside it."""
    dice = case.dice("framing")
    across = body.width["right"] + body.width["left"]
    # Some are shown with shoulders and flanks, some are cut to the lungs, a few show as much belly as chest.
    kind = dice.between(0, 1)
    middle, spread, lower = (0.78, 0.06, 0.0) if kind < 0.4 else (0.91, 0.07, 0.0) if kind < 0.88 else (0.7, 0.06, 0.1)
    width = across / min(max(dice.near(middle, spread), 0.55), 1.08)
    loose = 1.8 if dice.chance(0.2) else 1.0
    return Framing(
        width=width,
        u=(body.width["left"] - body.width["right"]) / 2 + dice.near(0, 0.03) * width * loose,
        v=max(body.angle.values()) / 2 + (0.035 + lower * dice.between(0, 1) + dice.near(0, 0.045) * loose) * width,
        angle=dice.near(0, 0.045 if case.supine else 0.02) * loose,
    )


def _break(body: Anatomy, case: Case, planned: Planned) -> Break:
    dice = case.dice(f"finding {planned.number}")
    side: Side = planned.side or "right"
    low, high = {"mild": (0.8, 1.0), "moderate": (1.0, 1.25), "severe": (1.25, 1.6)}[planned.severity]
    offset = dice.between(low, high) * dice.pick((-1, 1))
    if planned.kind == "clavicle":
        return Break(side=side, rib=None, place=dice.between(0.35, 0.68), offset=offset * 1.25)
    return Break(side=side, rib=dice.whole(3, 7), place=dice.between(0.2, 0.46), offset=offset)
