"""Films as training shows them: another part, another exposure, sometimes mirrored; what is known of them goes along.

All boxes go through the same map as the pixels, those of regions with two boxes too (not so in the published training,
SPEC.md 1, BUG-1). A box that is out of sight is gone, and with it whatever was said about it: what remains is true.
"""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
from numpy.typing import NDArray

from models import boxes as unit_boxes
from models.training.catalog import Catalog, exchange_sides
from models.training.stages import Augmentation
from models.training.truths import BoolArray, FloatArray, OnSide, Said, Truth

Map = NDArray[np.float64]
"""[2, 3], from places in 0..1 of the stored film to places in 0..1 of the film that is shown."""


def augment(
    pixels: NDArray[np.uint8],
    truth: Truth,
    rule: Augmentation,
    rng: np.random.Generator,
    *,
    catalog: Catalog,
    size: int,
) -> tuple[FloatArray, Truth]:
    """Change a film [side, side] by the rule. Returns gray values [size, size], 0..1, and what is true of them."""
    flipped = bool(rng.random() < rule.flip)
    place = draw_map(rule, rng, flipped=flipped)
    shown = _expose(_cut(pixels, place, size=size), rule, rng)
    moved = move(mirror(truth, catalog) if flipped else truth, place, visibility=rule.visibility)
    return shown, moved


def draw_map(rule: Augmentation, rng: np.random.Generator, *, flipped: bool) -> Map:
    """Draw the part of the film that is cut out, mirror it, then turn, scale and shift it about its middle."""
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


def mirror(truth: Truth, catalog: Catalog) -> Truth:
    """Exchange left and right in all that is known, but for boxes, which move with the pixels.

    Regions of one side only, as the aortic arch, are not known on a mirrored film.
    """
    order = np.array([own if other is None else other for own, other in enumerate(catalog.mirrored)])
    named = np.array([other is not None for other in catalog.mirrored])
    return replace(
        truth,
        regions=truth.regions[order],
        seen=truth.seen[order] & named,
        region_present=truth.region_present[order],
        region_known=truth.region_known[order] & named[:, np.newaxis],
        said=tuple(
            replace(
                one,
                text=exchange_sides(one.text),
                regions=tuple(other for own in one.regions if (other := catalog.mirrored[own]) is not None),
            )
            for one in truth.said
        ),
        sides=tuple(replace(one, side=exchange_sides(one.side)) for one in truth.sides),
    )


def move(truth: Truth, place: Map, *, visibility: float) -> Truth:
    """Bring all boxes to their new places, and forget what has gone out of sight."""
    boxes, in_sight = move_boxes(truth.boxes, place, visibility=visibility)
    regions, regions_in_sight = move_boxes(truth.regions, place, visibility=visibility)
    valid, seen = truth.valid & in_sight, truth.seen & regions_in_sight
    hidden = truth.valid.any(axis=1) & ~valid.any(axis=1)
    return replace(
        truth,
        boxes=boxes,
        valid=valid,
        regions=regions,
        seen=seen,
        located=truth.located & ~hidden,
        # Of a finding that was cut off nobody can tell, nor of a film without it whether it is normal.
        known=truth.known & ~hidden & ~(hidden.any() & ~truth.located),
        region_known=truth.region_known & seen[:, np.newaxis] & ~hidden,
        said=tuple(said for one in truth.said if (said := _move_said(one, place, visibility)) is not None),
        sides=tuple(side for one in truth.sides if (side := _move_side(one, place, visibility)) is not None),
    )


def move_boxes(boxes: FloatArray, place: Map, *, visibility: float) -> tuple[FloatArray, BoolArray]:
    """Give the boxes around moved boxes [..., 4], clipped, and which of them [...] are in sight."""
    corners = unit_boxes.to_corners(boxes.astype(np.float64))
    xs, ys = corners[..., [0, 2, 0, 2]], corners[..., [1, 1, 3, 3]]
    moved = np.stack([row[0] * xs + row[1] * ys + row[2] for row in place], axis=-1)
    around = np.concatenate([moved.min(axis=-2), moved.max(axis=-2)], axis=-1)
    clipped = around.clip(0, 1)
    whole, left = (np.prod(one[..., 2:] - one[..., :2], axis=-1) for one in (around, clipped))
    in_sight = (left > 0) & (left >= visibility * whole)
    return unit_boxes.to_center_size(clipped).astype(np.float32), in_sight


def _move_said(one: Said, place: Map, visibility: float) -> Said | None:
    """Move what a sentence speaks of; without one of its boxes it is no longer true."""
    boxes, in_sight = move_boxes(one.boxes, place, visibility=visibility)
    return replace(one, boxes=boxes) if in_sight.all() else None


def _move_side(one: OnSide, place: Map, visibility: float) -> OnSide | None:
    box, in_sight = move_boxes(one.box, place, visibility=visibility)
    return replace(one, box=box) if in_sight else None


def _cut(pixels: NDArray[np.uint8], place: Map, *, size: int) -> NDArray[np.uint8]:
    """Show a film [side, side] through a map, [size, size]; what lies beyond it is black."""
    side = pixels.shape[0]
    # A pixel's center lies half a pixel from its edge, in both films.
    stored = np.array([[1 / side, 0, 0.5 / side], [0, 1 / side, 0.5 / side], [0, 0, 1]])
    whole = np.vstack([place, [0, 0, 1]])
    shown = np.array([[size, 0, -0.5], [0, size, -0.5], [0, 0, 1]])
    matrix = (shown @ whole @ stored)[:2]
    return np.asarray(cv2.warpAffine(pixels, matrix, (size, size), flags=cv2.INTER_LINEAR), dtype=np.uint8)


def _expose(pixels: NDArray[np.uint8], rule: Augmentation, rng: np.random.Generator) -> FloatArray:
    """Change brightness, then contrast about the film's mean, then blur. Returns 0..1."""
    brightness, contrast = 1 + rng.uniform(-1, 1, size=2) * (rule.brightness, rule.contrast)
    blurred, sigma = rng.random() < rule.blur, rng.uniform(0.1, max(0.1, rule.blur_sigma))
    gray = pixels.astype(np.float32) * np.float32(brightness / 255)
    gray = (gray - gray.mean()) * np.float32(contrast) + gray.mean()
    shown = np.asarray(cv2.GaussianBlur(gray, (3, 3), sigma) if blurred else gray, dtype=np.float32)
    return shown.clip(0, 1)
