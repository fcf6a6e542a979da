"""Draws a plan and computes its labels; joins anatomy, findings, film and words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass

import cv2
import numpy as np

from models.lab.phantoms import regions
from models.lab.phantoms.anatomy import SIDES, SIGN, Anatomy, Habit, anatomy
from models.lab.phantoms.bones import Break, add_bones, break_point, reach_of
from models.lab.phantoms.drawing import BodyFraming, ByteArray, Frame, ellipse, fill
from models.lab.phantoms.film import GrayArray, develop, exposure, finish, label, shut, shutters
from models.lab.phantoms.findings import lungs
from models.lab.phantoms.findings.devices import add_device, add_wires
from models.lab.phantoms.plan import FilmPlan, Planned, plan_of
from models.lab.phantoms.random_streams import RandomStream
from models.lab.phantoms.regions import ShutterWindow
from models.lab.phantoms.report import sentences_of
from models.lab.phantoms.scene import Scene, healthy
from models.lab.phantoms.truth import FindingInstance, FindingKey, Phantom, Severity, Side

_EXCESS: Mapping[Severity, tuple[float, float]] = {
    "mild": (0.03, 0.06),
    "moderate": (0.06, 0.10),
    "severe": (0.10, 0.17),
}
"""How much the cardiothoracic ratio exceeds 0.5."""
_HIDDEN = 100 + 155 * 0.95
"""The value returned by `scene.displace` from which too little is visible below a cover."""
_DRAWN: Mapping[FindingKey, Callable[[Scene, Planned, RandomStream], ByteArray]] = {
    "atelectasis": lungs.add_atelectasis,
    "consolidation": lungs.add_consolidation,
    "edema": lungs.add_edema,
    "lung_lesion": lungs.add_lesion,
    "lung_opacity": lungs.add_opacity,
    "pleural_effusion": lungs.add_effusion,
    "pneumothorax": lungs.add_pneumothorax,
    "support_devices": add_device,
}
"""By finding. An enlarged heart is part of the anatomy and fractures are part of the bones, so neither is here."""
_IN_LUNGS: Set[FindingKey] = {"atelectasis", "consolidation", "edema", "lung_lesion", "lung_opacity"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A plan drawn into a scene.

    masks: the part of the film that each finding changed, by its number; window: what the shutters leave visible
    """

    plan: FilmPlan
    scene: Scene
    masks: Mapping[int, ByteArray]
    window: ShutterWindow


def phantom(seed: int, side: int = 224) -> Phantom:
    """Make the frontal chest film of a seed, side x side pixels, with all its labels."""
    return phantom_of(plan_of(seed), side=side)


def phantom_of(plan: FilmPlan, *, side: int = 224) -> Phantom:
    """Make the film of a plan."""
    drawn = draw(plan, columns=side, rows=side)
    pixels = ((gray_of(drawn).astype(np.uint32) + 128) // 257).astype(np.uint8)
    return truth_of(drawn, pixels)


def draw(plan: FilmPlan, *, columns: int, rows: int, without: Set[int] = frozenset()) -> Drawn:
    """Draw a plan into a scene.

    without: numbers of findings to leave out; everything else stays the same, also what they displace
    """
    body = anatomy(plan.stream("anatomy"), _habit(plan, without))
    frame = Frame(columns=columns, rows=rows, framing=_framing(plan, body))
    scene = healthy(frame, body, plan.stream("tissue"))
    shown = [planned for planned in plan.findings if planned.number not in without]
    breaks = {planned.number: _break(plan, planned) for planned in shown if planned.finding == "fracture"}
    add_bones(scene, plan.stream("bones"), list(breaks.values()))
    masks = {}
    for planned in shown:
        if planned.finding in _DRAWN:
            masks[planned.number] = _DRAWN[planned.finding](scene, planned, plan.stream(f"finding {planned.number}"))
            _hide(shown, masks, planned)
        elif planned.finding == "fracture":
            around = ellipse(break_point(body, breaks[planned.number]), (reach_of(breaks[planned.number]),) * 2)
            masks[planned.number] = fill(frame, [around])
        else:
            masks[planned.number] = fill(frame, [body.heart])
    add_wires(scene, plan.stream("wires"))
    return Drawn(plan=plan, scene=scene, masks=masks, window=shutters(plan.stream("shutters")))


def gray_of(drawn: Drawn) -> GrayArray:
    """Make the film of a drawn scene: gray [row, column], 0..65535."""
    plan, frame = drawn.plan, drawn.scene.frame
    taken = exposure(plan.stream("exposure"), supine=plan.supine)
    gray = finish(develop(drawn.scene.attenuation, taken, frame, plan.stream("noise")), taken, frame)
    shut(gray, drawn.window, frame, plan.stream("shutters again"))
    label(gray, frame, plan.stream("labels"))
    return gray


def truth_of(drawn: Drawn, pixels: ByteArray) -> Phantom:
    """Return the labels of a film."""
    plan, scene = drawn.plan, drawn.scene
    boxes = regions.region_boxes(scene.body, scene.frame, drawn.window)
    instances = [
        FindingInstance(
            finding=planned.finding,
            kind=planned.kind,
            side=planned.side,
            zone=planned.zone,
            severity=planned.severity,
            box=box,
            regions=regions.holding(planned.finding, planned.side, drawn.masks[planned.number], boxes, scene.frame),
        )
        for planned in plan.findings
        if planned.number in drawn.masks and (box := _box(drawn, drawn.masks[planned.number])) is not None
    ]
    return Phantom(
        seed=plan.seed,
        pixels=pixels,
        view="AP" if plan.supine else "PA",
        is_chest=True,
        cardiothoracic_ratio=scene.body.ratio,
        instances=tuple(instances),
        regions=boxes,
        sentences=sentences_of(instances, boxes, plan.stream("report")),
    )


def _hide(shown: Sequence[Planned], masks: Mapping[int, ByteArray], cover: Planned) -> None:
    """Remove the parts under pleural air or fluid from masks of lung findings; a layering effusion hides nothing."""
    if cover.finding not in ("pneumothorax", "pleural_effusion") or cover.kind == "layering":
        return
    for planned in shown:
        if planned.finding in _IN_LUNGS and planned.side == cover.side:
            masks[planned.number][masks[cover.number] > _HIDDEN] = 0


def _box(drawn: Drawn, mask: ByteArray) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]] | None:
    """Return the box around a mask; None if too little of it is visible."""
    frame, window = drawn.scene.frame, drawn.window
    left, top, width, height = cv2.boundingRect((mask > 60).astype(np.uint8))
    if not width:
        return None
    corners = frame.unit_box(np.array([(left, top), (left + width, top + height)], dtype=np.float64))
    return regions.seen(corners, window, least=0.35)


def _habit(plan: FilmPlan, without: Set[int]) -> Habit:
    """Return the requirements of a plan's findings on the body around them."""
    stream = plan.stream("habit")
    excess, shift, raised = None, 0.0, {side: 0.0 for side in SIDES}
    degree = stream.between(0, 1)
    for planned in plan.findings:
        if planned.finding == "cardiomegaly" and planned.number not in without:
            low, high = _EXCESS[planned.severity]
            excess = low + (high - low) * degree
        if planned.side is None:
            continue
        away = -SIGN[planned.side]
        if planned.severity == "severe" and planned.finding in ("pneumothorax", "pleural_effusion"):
            shift += away * stream.between(0.0, 1.5)
        if planned.finding == "atelectasis" and planned.kind == "lobar":
            shift -= away * stream.between(0.2, 1.2)
            raised[planned.side] += stream.between(0.5, 2.0)
    return Habit(supine=plan.supine, large_heart=excess, shift=shift, raised=raised)


def _framing(plan: FilmPlan, body: Anatomy) -> BodyFraming:
    """Choose how a body is placed on its film: mostly centered as technicians do, sometimes too close or off center."""
    stream = plan.stream("framing")
    across = body.width["right"] + body.width["left"]
    # Some films show shoulders and flanks, some only the lungs, a few as much abdomen as chest.
    kind = stream.between(0, 1)
    middle, spread, lower = (0.78, 0.06, 0.0) if kind < 0.4 else (0.91, 0.07, 0.0) if kind < 0.88 else (0.7, 0.06, 0.1)
    width = across / min(max(stream.near(middle, spread), 0.55), 1.08)
    loose = 1.8 if stream.chance(0.2) else 1.0
    return BodyFraming(
        width=width,
        u=(body.width["left"] - body.width["right"]) / 2 + stream.near(0, 0.03) * width * loose,
        v=max(body.angle.values()) / 2 + (0.035 + lower * stream.between(0, 1) + stream.near(0, 0.045) * loose) * width,
        angle=stream.near(0, 0.045 if plan.supine else 0.02) * loose,
    )


def _break(plan: FilmPlan, planned: Planned) -> Break:
    stream = plan.stream(f"finding {planned.number}")
    side: Side = planned.side or "right"
    low, high = {"mild": (0.8, 1.0), "moderate": (1.0, 1.25), "severe": (1.25, 1.6)}[planned.severity]
    offset = stream.between(low, high) * stream.pick((-1, 1))
    if planned.kind == "clavicle":
        return Break(side=side, rib=None, place=stream.between(0.35, 0.68), offset=offset * 1.25)
    return Break(side=side, rib=stream.whole(3, 7), place=stream.between(0.2, 0.46), offset=offset)
