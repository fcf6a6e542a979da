"""A second reader of sentences, which shares nothing with `language`: a few expressions over whole clauses.

It is coarse on purpose. A clause that names a finding and holds a word of denial denies it; any other affirms it. Sides
and normal regions are compared with boxes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from models.contract import Box
from node.domain import Film, Finding

NAMES: Final[Mapping[str, str]] = {
    "atelectasis": r"atelecta|volume loss|collapse(?! of the lung)",
    "cardiomegaly": r"cardiomegaly|(heart|cardiac)[\w ]{0,24}enlarge|enlarge[\w ]{0,14}(heart|cardiac)",
    "consolidation": r"consolidat",
    "edema": r"edema",
    "enlarged_cardiomediastinum": r"(enlarged|widened|wide) (cardio)?mediastin|mediastin[\w ]{0,20}(enlarge|widen)",
    "fracture": r"fractur|broken",
    "lung_lesion": r"nodul|\bmass(es)?\b|lesion",
    "lung_opacity": r"opacit|opacification",
    "pleural_effusion": r"effusion|pleural fluid",
    "pleural_other": r"pleural (thickening|pathology|plaque)",
    "pneumonia": r"pneumonia",
    "pneumothorax": r"pneumothora",
    "support_devices": r"\b(tube|line|catheter|pacemaker|lead|wire|device)s?\b",
}
"""How each finding is named, by the key of its prompt."""

_DENIAL: Final = re.compile(r"\b(no|not|without|absent|absence|never|neither|nor|free|excluded|resolved)\b")
_NORMAL: Final = re.compile(r"\b(normal|clear|unremarkable|intact|well expanded|well aerated)\b")
_ZONE: Final = re.compile(r"\b(right|left) (upper|mid|middle|lower) (?:lung )?zone")
_CLAUSE: Final = re.compile(r"[.;:]|\bbut\b|\bhowever\b|\bwhile\b|, (?=there (?:is|are)\b)")
_SIDES: Final = {"left": re.compile(r"\bleft\b"), "right": re.compile(r"\bright\b")}
_BOTH: Final = re.compile(r"\b(bilateral|both|bibasilar)\b")
_NO_SIDE: Final = re.compile(r"\b(left|right) (atri|ventric|heart|main)\w*")
_IN_LUNGS: Final = frozenset(
    ("atelectasis", "consolidation", "edema", "lung_lesion", "lung_opacity", "pleural_effusion", "pneumonia")
)
_ACROSS: Final = 0.05
_LIES_IN: Final = 0.1


def contradictions_of(film: Film, regions: Mapping[str, Box]) -> list[str]:
    """Name every clause of a film's sentences that contradicts a state or a reported box.

    regions: the box of each region prompt, by its key; sides are compared as on an upright film that tells its sides
    """
    findings = {finding.prompt: finding for finding in film.findings}
    return [
        f"{sentence.prompt}: {objection}: {clause.strip()}"
        for sentence in film.sentences
        for clause in _CLAUSE.split(sentence.text.lower())
        for objection in (
            *_against_states(clause, findings),
            *_against_sides(clause, film, findings),
            *_against_regions(clause, film, regions),
            *_against_zones(clause, findings, regions),
        )
    ]


def _against_states(clause: str, findings: Mapping[str, Finding]) -> Iterator[str]:
    is_denied = bool(_DENIAL.search(clause))
    for key, finding in findings.items():
        if re.search(NAMES[key], clause) and is_denied == (finding.state.is_reported):
            yield f"{key} is {finding.state}"


def _against_sides(clause: str, film: Film, findings: Mapping[str, Finding]) -> Iterator[str]:
    """Object to an affirmed side that no box of the finding reaches."""
    if _DENIAL.search(clause):
        return
    for side in _sides_in(clause):
        for key, finding in findings.items():
            if finding.boxes and re.search(NAMES[key], clause) and not _reaches(finding, side, film):
                yield f"{key} has no box on the {side}"


def _against_regions(clause: str, film: Film, regions: Mapping[str, Box]) -> Iterator[str]:
    """Object to a region that is called normal and in which a reported box lies."""
    if not _NORMAL.search(clause) or _DENIAL.search(clause):
        return
    named = [key for key in regions if key.replace("_", " ") in clause]
    reported = [finding for finding in film.findings if finding.state.is_reported]
    for finding in reported:
        for key in named:
            if any(_share_inside(found.box, regions[key]) >= _LIES_IN for found in finding.boxes):
                yield f"{finding.prompt} lies in {key}"
        is_of_lungs = not named and finding.prompt in _IN_LUNGS and re.search(r"\blungs?\b", clause)
        if is_of_lungs and any(_reaches(finding, side, film) for side in _sides_in(clause) or _SIDES):
            yield f"{finding.prompt} is {finding.state}"
        if re.search(r"\b(heart|cardiac)\b", clause) and finding.prompt == "cardiomegaly":
            yield f"{finding.prompt} is {finding.state}"


def _against_zones(clause: str, findings: Mapping[str, Finding], regions: Mapping[str, Box]) -> Iterator[str]:
    """Object to an affirmed finding in a zone of one lung that none of its boxes touches."""
    if _DENIAL.search(clause):
        return
    for side, zone in _ZONE.findall(clause):
        region = regions.get(f"{side}_{'mid' if zone == 'middle' else zone}_lung_zone")
        for key, finding in findings.items():
            is_named = finding.boxes and key != "support_devices" and re.search(NAMES[key], clause)
            if region and is_named and all(_share_inside(found.box, region) == 0 for found in finding.boxes):
                yield f"{key} has no box in the {side} {zone} zone"


def _sides_in(clause: str) -> tuple[str, ...]:
    text = _NO_SIDE.sub(" ", clause)
    if _BOTH.search(text):
        return ("left", "right")
    return tuple(side for side, pattern in _SIDES.items() if pattern.search(text))


def _reaches(finding: Finding, side: str, film: Film) -> bool:
    """Say whether a box reaches a side of the patient; the patient's right is on the left of the film."""
    if film.analyzed is None:
        return False
    left, _, right, _ = film.analyzed.edges
    middle = left + (0.5 if film.middle is None else film.middle) * (right - left)
    slack = _ACROSS * (right - left)
    if side == "right":
        return any(found.box.left < middle - slack for found in finding.boxes)
    return any(found.box.right > middle + slack for found in finding.boxes)


def _share_inside(box: Box, region: Box) -> float:
    width = min(box.right, region.right) - max(box.left, region.left)
    height = min(box.bottom, region.bottom) - max(box.top, region.top)
    return max(width, 0) * max(height, 0) / ((box.right - box.left) * (box.bottom - box.top))
