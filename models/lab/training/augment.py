"""Augment films for training: crop, turn, mirror, draw over, change the exposure; labels change with the pixels.

Boxes are mapped like the pixels, also those of regions that have two boxes (the published training does not, spec §1,
BUG-1). A box that leaves the picture is removed together with every label that depends on it, so the remaining labels
stay true.
"""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
from numpy.typing import NDArray

from models import boxes as unit_boxes
from models.lab.training.catalog import Catalog, exchange_sides
from models.lab.training.exposure import expose
from models.lab.training.labels import BoolArray, FilmLabels, FloatArray, OnSide, Said
from models.lab.training.overlays import overlay
from models.lab.training.stages import Augmentation

Map = NDArray[np.float64]
"""[2, 3], maps points of the stored film, in 0..1, to points of the augmented film, in 0..1."""


def augment(
    pixels: NDArray[np.uint8],
    labels: FilmLabels,
    rule: Augmentation,
    rng: np.random.Generator,
    *,
    catalog: Catalog,
    size: int,
) -> tuple[FloatArray, FilmLabels]:
    """Augment one film [side, side]. Returns gray values [size, size] in 0..1 and the labels of the augmented film."""
    flipped = bool(rng.random() < rule.flip)
    place = draw_map(rule, rng, flipped=flipped)
    shown = _shown(pixels, place, rule, rng, size=size)
    named = mirror(labels, catalog) if flipped and rule.exchange_sides else labels
    moved = move(named, place, visibility=rule.visibility, forget=rule.forget_cropped)
    return shown, moved


def vary(pixels: NDArray[np.uint8], rule: Augmentation, rng: np.random.Generator, *, size: int) -> FloatArray:
    """Augment a film [side, side] without labels. Returns gray values [size, size] in 0..1."""
    return _shown(pixels, draw_map(rule, rng, flipped=False), rule, rng, size=size)


def _shown(
    pixels: NDArray[np.uint8], place: Map, rule: Augmentation, rng: np.random.Generator, *, size: int
) -> FloatArray:
    return expose(overlay(_cut(pixels, place, size=size), rule, rng), rule, rng)


def draw_map(rule: Augmentation, rng: np.random.Generator, *, flipped: bool) -> Map:
    """Draw a random map: crop, mirror, then rotate, scale and shift about the center."""
    area = rng.uniform(*rule.area)
    aspect = np.exp(rng.uniform(-1, 1) * np.log(rule.aspect))
    width, height = min(1.0, np.sqrt(area * aspect)), min(1.0, np.sqrt(area / aspect))
    left, top = rng.uniform(0, 1 - width), rng.uniform(0, 1 - height)
    cut = np.array([[1 / width, 0, -left / width], [0, 1 / height, -top / height], [0, 0, 1]])
    if flipped:
        cut = np.array([[-1, 0, 1], [0, 1, 0], [0, 0, 1]]) @ cut
    turn, scale = np.deg2rad(rng.uniform(-1, 1) * rule.rotate), rng.uniform(*rule.scale)
    shift = rng.uniform(-1, 1, size=2) * rule.shift
    cosine, sine = np.cos(turn) * scale, np.sin(turn) * scale
    about = np.array([[cosine, -sine, 0], [sine, cosine, 0], [0, 0, 1]])
    about[:2, 2] = 0.5 + shift - about[:2, :2] @ [0.5, 0.5]
    moved: Map = (about @ cut)[:2]
    return moved


def mirror(labels: FilmLabels, catalog: Catalog) -> FilmLabels:
    """Exchange left and right in all labels except boxes, which move with the pixels.

    Regions that exist on one side only, such as the aortic arch, become unknown on a mirrored film.
    """
    order = np.array([own if other is None else other for own, other in enumerate(catalog.mirrored)])
    named = np.array([other is not None for other in catalog.mirrored])
    return replace(
        labels,
        regions=labels.regions[order],
        seen=labels.seen[order] & named,
        region_present=labels.region_present[order],
        region_known=labels.region_known[order] & named[:, np.newaxis],
        said=tuple(
            replace(
                sentence,
                text=exchange_sides(sentence.text),
                regions=tuple(other for own in sentence.regions if (other := catalog.mirrored[own]) is not None),
            )
            for sentence in labels.said
        ),
        sides=tuple(replace(finding, side=exchange_sides(finding.side)) for finding in labels.sides),
    )


def move(labels: FilmLabels, place: Map, *, visibility: float, forget: bool = True) -> FilmLabels:
    """Move all boxes to their new places, and remove labels of what left the picture, unless they are to stay."""
    boxes, in_sight = move_boxes(labels.boxes, place, visibility=visibility)
    regions, regions_in_sight = move_boxes(labels.regions, place, visibility=visibility)
    valid, seen = labels.valid & in_sight, labels.seen & regions_in_sight
    hidden = labels.valid.any(axis=1) & ~valid.any(axis=1) & forget
    return replace(
        labels,
        boxes=boxes,
        valid=valid,
        regions=regions,
        seen=seen,
        located=labels.located & ~hidden,
        # A finding that was cropped away is unknown, and so is whether the rest of the film is normal.
        known=labels.known & ~hidden & ~(hidden.any() & ~labels.located),
        region_known=labels.region_known & seen[:, np.newaxis] & ~hidden,
        said=tuple(
            said for sentence in labels.said if (said := _move_said(sentence, place, visibility, forget)) is not None
        ),
        sides=tuple(side for finding in labels.sides if (side := _move_side(finding, place, visibility)) is not None),
    )


def move_boxes(boxes: FloatArray, place: Map, *, visibility: float) -> tuple[FloatArray, BoolArray]:
    """Return the bounding boxes of moved boxes [..., 4], clipped, and which of them [...] are still visible."""
    corners = unit_boxes.to_corners(boxes.astype(np.float64))
    xs, ys = corners[..., [0, 2, 0, 2]], corners[..., [1, 1, 3, 3]]
    moved = np.stack([row[0] * xs + row[1] * ys + row[2] for row in place], axis=-1)
    around = np.concatenate([moved.min(axis=-2), moved.max(axis=-2)], axis=-1)
    clipped = around.clip(0, 1)
    whole, left = (np.prod(edges[..., 2:] - edges[..., :2], axis=-1) for edges in (around, clipped))
    in_sight = (left > 0) & (left >= visibility * whole)
    return unit_boxes.to_center_size(clipped).astype(np.float32), in_sight


def _move_said(sentence: Said, place: Map, visibility: float, forget: bool) -> Said | None:
    """Move the boxes of a sentence. Returns None if one of them is no longer visible: it may be wrong then."""
    boxes, in_sight = move_boxes(sentence.boxes, place, visibility=visibility)
    return None if forget and not in_sight.all() else replace(sentence, boxes=boxes[in_sight])


def _move_side(finding: OnSide, place: Map, visibility: float) -> OnSide | None:
    box, in_sight = move_boxes(finding.box, place, visibility=visibility)
    return replace(finding, box=box) if in_sight else None


def _cut(pixels: NDArray[np.uint8], place: Map, *, size: int) -> NDArray[np.uint8]:
    """Resample a film [side, side] through a map to [size, size]; everything outside the film is black."""
    side = pixels.shape[0]
    # A pixel's center lies half a pixel from its edge, in both films.
    stored = np.array([[1 / side, 0, 0.5 / side], [0, 1 / side, 0.5 / side], [0, 0, 1]])
    whole = np.vstack([place, [0, 0, 1]])
    shown = np.array([[size, 0, -0.5], [0, size, -0.5], [0, 0, 1]])
    matrix = (shown @ whole @ stored)[:2]
    return np.asarray(cv2.warpAffine(pixels, matrix, (size, size), flags=cv2.INTER_LINEAR), dtype=np.uint8)
