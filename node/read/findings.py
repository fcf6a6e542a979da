"""Turn the network's answers into findings: codes from the prompt set, a side and a tracking UID for each box.

What is not reported has no box, and neither has its sentence: a box says where something is. Where the network looked
for what is absent is kept apart (`Finding.searched`).

Pure functions. A finding is made from a pathology prompt's key, never from generated text or from a region prompt. If
the prompt states a side, every box has that side. Otherwise the side follows from the position of the box, for a paired
site on a film that states its sides, if the network's answer lets it (`Laterality`). What has no certain side is in no
zone either, for a zone has one. Zone and extent come from the network's own region boxes of the same reading: they say
where the network points, and are no measurement of the patient.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from language.check import words_severity
from models.contract import Box, FilmReading, FindingState, PromptKind, Sentence, Side
from node.domain import (
    Code,
    Evidence,
    Finding,
    FindingBox,
    GroundedSentence,
    KnownPlace,
    ModelIdentity,
    derive_uid,
)
from node.prompt_set import HILUM, LUNG, LUNG_ZONES, PLEURA, Prompt, PromptSet
from node.read.decoding import side_of
from node.read.framing import Framing

if TYPE_CHECKING:
    from models.contract import PromptReading

_OPPOSITE: Final[Mapping[Side | None, Side]] = {Side.RIGHT: Side.LEFT, Side.LEFT: Side.RIGHT}

PARTS: Final[Mapping[str, Collection[str]]] = {
    LUNG: (*LUNG_ZONES, HILUM),
    PLEURA: LUNG_ZONES,  # those that it covers
    "80891009": ("80891009",),  # heart
    "72410000": ("72410000", "80891009", HILUM),  # mediastinum: with heart and hilum
}
"""The sites of regions in which a finding of a site may lie, by SNOMED CT code. A site that is not here: in any."""
_ZONES_OF_PLEURA: Final = {
    "upper_lung_zone": "upper zone",
    "mid_lung_zone": "mid zone",
    "lower_lung_zone": "lower zone",
    "apical_zone": "apex",
}
ZONES: Final[Mapping[str, Mapping[str, str]]] = {
    LUNG: {**_ZONES_OF_PLEURA, "hilar_structures": "hilum"},
    PLEURA: _ZONES_OF_PLEURA,
}
"""The name of a zone, by the code of the finding's site (lung or pleura) and the region's key without its side."""
_DIFFUSE: Final = ("19242006",)
"""Findings that lie in no one zone: pulmonary edema."""
_MOST: Final = 2 / 3
"""A box belongs to a region that holds at least this share of the box's area within all regions."""


def find(
    reading: FilmReading, prompts: PromptSet, *, source: str, framing: Framing, model: ModelIdentity, sides_known: bool
) -> tuple[Finding, ...]:
    """Code the answers to the pathology prompts of one film.

    source: SOP Instance UID of the film
    sides_known: whether the film states its sides (`decoding.sides_known`)
    Raises ValueError for an answer to any other prompt.
    """
    regions = reading.regions
    found = []
    for answer in reading.pathologies:
        finding = _finding(answer, prompts[answer.key], source, framing if sides_known else None, model)
        if finding.state.is_reported and answer.laterality == "boxes":
            finding = _located(finding, regions, prompts, sides_known=sides_known)
        found.append(finding)
    return tuple(found)


def zone_of(finding: Finding) -> str | None:
    """Return the zone in which a finding on one side lies, in words: "lower zone", "apex".

    None if its boxes lie in several zones or in no one, or its evidence is of the other side. Impression, sentences and
    answers name no other.
    """
    return _zone_name(
        finding.code, finding.site, finding.side, finding.evidence, [box.evidence for box in finding.boxes]
    )


def zone_of_boxes(
    prompt: Prompt, boxes: Sequence[Box], regions: Mapping[str, Box], prompts: PromptSet, *, framing: Framing | None
) -> str | None:
    """Return the same of a finding that has these boxes, before it is one.

    regions: by prompt key; framing: None on a film that does not state its sides
    """
    sides = [_side_of(prompt, box, framing) for box in boxes]
    side = prompt.side or together(sides)
    locate_in = partial(_evidence, prompt.site, regions, prompts, sides_known=framing is not None)
    each = [locate_in([box], own) for box, own in zip(boxes, sides, strict=True)]
    return (
        None if prompt.finding is None else _zone_name(prompt.finding, prompt.site, side, locate_in(boxes, side), each)
    )


def _zone_name(
    code: Code, site: Code | None, side: Side | None, evidence: Evidence | None, of_boxes: Iterable[Evidence | None]
) -> str | None:
    if evidence is None or evidence.zone is None or site is None or code.value in _DIFFUSE or side is None:
        return None
    if any(own is not None and own.zone != evidence.zone for own in of_boxes):
        return None
    return ZONES.get(site.value, {}).get(evidence.zone.removeprefix(f"{side}_"))


def ground(reading: FilmReading) -> tuple[GroundedSentence, ...]:
    """Return the sentences of a film; a sentence made for a finding that is not reported keeps no box."""
    reported = {answer.key for answer in reading.pathologies if answer.state is not None and answer.state.is_reported}
    silent = {answer.key for answer in reading.pathologies} - reported
    return tuple(
        GroundedSentence(
            text=sentence.text,
            prompt=sentence.prompt,
            score=sentence.score,
            boxes=() if sentence.prompt in silent else sentence.boxes,
            by=sentence.by,
        )
        for sentence in reading.sentences
    )


def is_severity_worded(sentences: Iterable[Sentence]) -> bool:
    """Return whether a sentence of the network names a size or a severity, which nothing measured."""
    return any(words_severity(said.text) for said in sentences if said.by.startswith("network"))


def _finding(
    answer: PromptReading, prompt: Prompt, source: str, framing: Framing | None, model: ModelIdentity
) -> Finding:
    if (
        prompt.kind is not PromptKind.PATHOLOGY
        or prompt.finding is None
        or answer.probability is None
        or answer.state is None
    ):
        raise ValueError(f"prompt {prompt.key} asks for no pathology with a code")
    place = _place(answer, prompt, is_film_sided=framing is not None)
    boxes = tuple(
        FindingBox(
            box=scored.box,
            score=scored.score,
            tracking_uid=_tracking_uid(source, prompt.key, scored.box, model),
            side=_side_of(prompt, scored.box, framing if answer.laterality == "boxes" else None),
            lies=_side_of(prompt, scored.box, framing) if place == "no_side" else None,
        )
        for scored in (answer.boxes if answer.state.is_reported else ())
    )
    return Finding(
        prompt=prompt.key,
        code=prompt.finding,
        site=prompt.site,
        side=prompt.side or together([box.side for box in boxes]),
        probability=None if answer.state is FindingState.LEFT_OUT else answer.probability,
        state=answer.state,
        boxes=boxes,
        sentence=answer.sentence,
        contradiction=answer.contradiction,
        near=answer.near,
        thresholds=answer.thresholds,
        place=place,
        searched=answer.boxes if answer.state is FindingState.ABSENT else (),
    )


def _side_of(prompt: Prompt, box: Box, framing: Framing | None) -> Side | None:
    """Return the side of a box; framing: None if boxes do not determine sides."""
    return prompt.side or (side_of(box, framing) if prompt.paired and framing is not None else None)


def _place(answer: PromptReading, prompt: Prompt, *, is_film_sided: bool) -> KnownPlace:
    """Return the `place` of a finding; is_film_sided: whether the film names its sides."""
    if answer.state is None or not answer.state.is_reported:
        return "told"
    if not answer.boxes:
        return "no_place" if answer.laterality == "unknown" else "told"
    if not prompt.paired or prompt.side is not None:
        return "told"
    if not is_film_sided:
        return "film_unsided"
    return "no_side" if answer.laterality == "unknown" else "told"


def _located(finding: Finding, regions: Mapping[str, Box], prompts: PromptSet, *, sides_known: bool) -> Finding:
    """Locate a finding, and each of its boxes, among the parts of its site that are not on the patient's other side."""
    locate_in = partial(_evidence, finding.site, regions, prompts, sides_known=sides_known)
    boxes = tuple(replace(box, evidence=locate_in([box.box], box.side)) for box in finding.boxes)
    evidence = locate_in([box.box for box in finding.boxes], finding.side)
    return replace(finding, boxes=boxes, evidence=evidence)


def _evidence(
    site: Code | None,
    regions: Mapping[str, Box],
    prompts: PromptSet,
    boxes: Sequence[Box],
    side: Side | None,
    *,
    sides_known: bool,
) -> Evidence:
    """Locate boxes among the parts of a site that are not on the patient's other side."""
    parts = PARTS.get(site.value) if site else None

    def may_hold(region: Prompt) -> bool:
        is_part = parts is None or (region.site is not None and region.site.value in parts)
        return is_part and (side not in _OPPOSITE or region.side is not _OPPOSITE[side])

    found = locate(boxes, {key: box for key, box in regions.items() if may_hold(prompts[key])})
    if found.zone is None:
        return found
    region = prompts[found.zone]
    return replace(found, site=region.site, side=region.side if sides_known else None)


def together(sides: list[Side | None]) -> Side | None:
    """Return the side of a finding from the sides of its boxes: both if there is a box on each, or the side of all."""
    known = set(sides)
    if known >= {Side.RIGHT, Side.LEFT}:
        return Side.BILATERAL
    return known.pop() if len(known) == 1 else None


def _tracking_uid(source: str, key: str, box: Box, model: ModelIdentity) -> str:
    edges = [f"{edge:.3f}" for edge in box.edges]
    return derive_uid("tracking", source, key, *edges, model.name, model.version, model.weights_sha256)


def locate(boxes: Sequence[Box], regions: Mapping[str, Box]) -> Evidence:
    """Return the region with the highest IoU with one of the boxes, and the share of it that all boxes cover.

    IoU, not the common area alone: a small region that fits says more than a large one that contains everything. A box
    that reaches far into other regions, such as that of a whole lung, lies in no one region.
    regions: box by prompt key; of equal ones the first counts
    """
    overlap = {
        key: max((iou(box, region) for box in boxes if _lies_in(box, region, regions)), default=0.0)
        for key, region in regions.items()
    }
    zone = max(overlap, key=lambda key: overlap[key], default=None)
    if zone is None or overlap[zone] == 0:
        return Evidence(zone=None, extent=0.0)
    return Evidence(zone=zone, extent=covered(regions[zone], boxes))


def _lies_in(box: Box, region: Box, regions: Mapping[str, Box]) -> bool:
    return covered(box, [region]) >= _MOST * covered(box, tuple(regions.values()))


def covered(region: Box, boxes: Sequence[Box]) -> float:
    """Return the share of a region, 0..1, that lies in any of the boxes."""
    inside = [common for box in boxes if (common := _common(region, box)) is not None]
    columns = sorted({edge for box in inside for edge in (box.left, box.right)})
    rows = sorted({edge for box in inside for edge in (box.top, box.bottom)})
    area = sum(
        (right - left) * (bottom - top)
        for left, right in pairwise(columns)
        for top, bottom in pairwise(rows)
        if any(box.left <= left and right <= box.right and box.top <= top and bottom <= box.bottom for box in inside)
    )
    return min(area / _area(region), 1.0)


def iou(first: Box, second: Box) -> float:
    """Return the IoU of two boxes, 0..1."""
    common = _common(first, second)
    if common is None:
        return 0.0
    return _area(common) / (_area(first) + _area(second) - _area(common))


def _common(first: Box, second: Box) -> Box | None:
    """Return the part that two boxes have in common; None if there is none."""
    left, top = max(first.left, second.left), max(first.top, second.top)
    right, bottom = min(first.right, second.right), min(first.bottom, second.bottom)
    return Box(left=left, top=top, right=right, bottom=bottom) if left < right and top < bottom else None


def _area(box: Box) -> float:
    return (box.right - box.left) * (box.bottom - box.top)
