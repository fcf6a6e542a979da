"""The place of a finding: which of its boxes are drawn, and whether its side is named. Numpy only.

No box of a finding of lung or pleura is drawn outside the lungs that the network finds on the film. On patient films
a box is drawn from the score that was chosen for its finding, else above the common `box_threshold`; no other box
stands in for it. A side is named there from a certainty that was chosen for the finding: the share that the best box of
the side has of the best boxes of both. Without such a rule neither side nor both are named. A finding without a box has
no place: no side, no zone and no region.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from models.boxes import iou, to_corners
from models.contract import Laterality, PromptKind, ReaderPrompt, Side, SideOf
from models.decisions import Decisions
from models.engines import FloatArray
from models.reading.decided_film import DecidedFilm
from models.reading.sentence_check import lies_in


def place_findings(film: DecidedFilm, decisions: Decisions) -> DecidedFilm:
    """Return a film whose reported findings keep only reliable boxes and sides.

    With a manifest without places, all boxes in the lungs stay, and their sides.
    """
    has_rules = bool(decisions.boxes or decisions.sides)
    parts = lungs(film.prompts, film.visible)
    visible, lateralities = list(film.visible), dict[int, Laterality]()
    for index in film.reported:
        key, (boxes, scores) = film.prompts[index].key, film.visible[index]
        is_drawn = where_possible(film.prompts[index], boxes, parts)
        if has_rules:
            is_drawn &= scores >= decisions.box_score(key)
        visible[index] = boxes[is_drawn], scores[is_drawn]
        if has_rules or not is_drawn.any():
            found = film.regions.boxes[0, index], film.regions.scores[0, index]
            lateralities[index] = laterality(key, boxes[is_drawn], found, decisions, film.side_of)
    return replace(film, visible=visible, lateralities=lateralities)


def lungs(prompts: Sequence[ReaderPrompt], visible: Sequence[tuple[FloatArray, FloatArray]]) -> FloatArray:
    """Return the best box of each part of the lungs [part, 4]; none if no prompt asks for a part.

    visible: boxes [box, 4] and scores [box] of each prompt
    """
    parts = [
        boxes[scores.argmax()]
        for prompt, (boxes, scores) in zip(prompts, visible, strict=True)
        if prompt.kind is PromptKind.REGION and prompt.is_of_lungs and len(boxes)
    ]
    return np.reshape(parts, (-1, 4))


def where_possible(prompt: ReaderPrompt, boxes: FloatArray, parts: FloatArray) -> NDArray[np.bool_]:
    """Return for each box [box, 4] of a finding whether it can be there: one of lung or pleura lies in the lungs.

    parts: of the lungs [part, 4]
    """
    return within(boxes, parts) if prompt.is_of_lungs else np.ones(len(boxes), dtype=bool)


def within(boxes: FloatArray, parts: FloatArray) -> NDArray[np.bool_]:
    """Return for each box [box, 4] whether it lies in one of some parts [part, 4]; true without parts."""
    return np.array([not len(parts) or lies_in(box, parts) for box in boxes], dtype=bool)


def shown_boxes(boxes: FloatArray, scores: FloatArray, decisions: Decisions) -> tuple[FloatArray, FloatArray]:
    """Return the boxes above the box threshold, merged as the manifest says, otherwise the best one.

    boxes: [box, 4], scores: [box], of one prompt
    """
    is_above = scores > decisions.box_threshold
    chosen = np.flatnonzero(is_above) if is_above.any() else np.argmax(scores, keepdims=True)
    boxes, scores = boxes[chosen], scores[chosen]
    if decisions.merge_overlap < 1:
        boxes, scores = fuse(boxes, scores, overlap=decisions.merge_overlap)
    best = np.sort(np.argsort(-scores, kind="stable")[: decisions.most_boxes])
    return boxes[best], scores[best]


def fuse(boxes: FloatArray, scores: FloatArray, *, overlap: float) -> tuple[FloatArray, FloatArray]:
    """Merge overlapping boxes by weighted boxes fusion (Solovyev et al. 2021), and return them, best first.

    Suppression would drop the worse of two boxes although it saw something; fusion takes the mean of both. There is one
    network, so a score is never rescaled by the number of models that agree.
    Each box, best first, joins the merged box that it overlaps most, if that is by more than `overlap`; otherwise it
    begins one of its own. A merged box is the mean of its boxes weighted by their scores; its score is their mean.
    boxes: [box, 4], center-size; scores: [box], above 0; overlap: an IoU, 0..1
    Returns the merged boxes [box, 4] with their scores [box].
    """
    groups: list[list[int]] = []
    exact, merged = boxes.astype(np.float64), np.empty((0, 4))
    for index in np.argsort(-scores, kind="stable").tolist():
        shared = iou(to_corners(exact[index : index + 1]), to_corners(merged))[0]
        if groups and shared.max() > overlap:
            place = int(shared.argmax())
            groups[place].append(index)
            merged[place] = np.average(exact[groups[place]], axis=0, weights=scores[groups[place]])
        else:
            groups.append([index])
            merged = np.vstack((merged, exact[index]))
    means = np.array([scores[group].mean() for group in groups])
    order = np.argsort(-means, kind="stable")
    return merged[order].astype(boxes.dtype), means[order].astype(scores.dtype)


def laterality(
    key: str,
    drawn: FloatArray,
    found: tuple[FloatArray, FloatArray],
    decisions: Decisions,
    side_of: SideOf | None,
) -> Laterality:
    """Return the rule for the side of a finding.

    drawn: [box, 4], the boxes that are drawn; found: all boxes of its prompt [box, 4] with their scores [box]
    side_of: None if the film does not name its sides
    No side is named without a rule of the finding's sides. Boxes on both were each drawn for their own score; one side
    needs its certainty.
    """
    rule = decisions.sides.get(key)
    if side_of is None or rule is None or not len(drawn):
        return "unknown"
    sides = {side_of(float(x), float(width)) for x, _, width, _ in drawn}
    if sides == {Side.LEFT, Side.RIGHT}:
        return "boxes" if key in decisions.boxes else "unknown"
    [side, *others] = sides
    if others or side is None:
        return "unknown"
    return "boxes" if side_certainty(*found, side_of=side_of)[side] >= rule.least else "unknown"


def side_certainty(boxes: FloatArray, scores: FloatArray, *, side_of: SideOf) -> Mapping[Side, float]:
    """Return the certainty of each side, 0..1: its best box's score over the sum of both sides' best scores.

    boxes: [box, 4], scores: [box], of one prompt. A box across the middle is on both; without any score both have half.
    """
    best = {Side.RIGHT: 0.0, Side.LEFT: 0.0}
    for (x, _, width, _), score in zip(boxes, scores, strict=True):
        side = side_of(float(x), float(width))
        for its_side in best if side is None else (side,):
            best[its_side] = max(best[its_side], float(score))
    whole = sum(best.values())
    return {side: score / whole if whole else 0.5 for side, score in best.items()}
