"""Augment films for training: crop, turn, mirror, draw over, change the exposure; labels change with the pixels.

Boxes are mapped like the pixels, also those of regions that have two boxes (the published training does not, spec §1,
BUG-1). A box that leaves the picture is removed together with every label that depends on it, so the remaining labels
stay true.
"""

from __future__ import annotations

import string
from dataclasses import replace

import cv2
import numpy as np
from numpy.typing import ArrayLike, NDArray

from models import boxes as unit_boxes
from models.lab.training.catalog import Catalog, exchange_sides
from models.lab.training.labels import BoolArray, FilmLabels, FloatArray, OnSide, Said
from models.lab.training.stages import Augmentation

Film = NDArray[np.uint8]

_LETTERS = ("L", "R", "AP", "PA", "PORTABLE", "SUPINE", "UPRIGHT", "SEMI ERECT")
_FONTS = (cv2.FONT_HERSHEY_SIMPLEX, cv2.FONT_HERSHEY_DUPLEX, cv2.FONT_HERSHEY_PLAIN)
_WIDEST_MARGIN = 0.08
"""The widest dark margin of a collimated film, as a share of its side."""
_QUALITIES = (40, 96)
_RESOLUTIONS = (0.4, 0.95)
_LEAST_IN_SIGHT = 0.1
"""A box of which a smaller share stays in the picture is removed (spec §1)."""
Map = NDArray[np.float64]
"""[2, 3], maps points of the stored film, in 0..1, to points of the augmented film, in 0..1."""


def overlay(pixels: Film, rule: Augmentation, rng: np.random.Generator) -> Film:
    """Draw onto a film [side, side]; the given array is not changed."""
    shown = pixels.copy()
    if rng.random() < rule.leads:
        _leads(shown, rng)
    if rng.random() < rule.clips:
        _buttons_and_clips(shown, rng)
    if rng.random() < rule.margin:
        _margins(shown, rng)
    if rng.random() < rule.letters:
        _letters(shown, rng)
    return shown


def _leads(shown: Film, rng: np.random.Generator) -> None:
    """Draw one to four leads of an electrocardiogram: a thin wire, and an electrode at its end."""
    side = shown.shape[0]
    for _ in range(int(rng.integers(1, 5))):
        start = rng.uniform([0, 0.7], [1, 1]) if rng.random() < 0.5 else rng.uniform([0, 0], [1, 0.25])
        end = rng.uniform(0.12, 0.88, size=2)
        bend = (start + end) / 2 + rng.normal(0, 0.12, size=2)
        share = np.linspace(0, 1, 24)[:, np.newaxis]
        line = (1 - share) ** 2 * start + 2 * share * (1 - share) * bend + share**2 * end
        gray = _bright(shown, end, rng)
        cv2.polylines(shown, [np.round(line * side).astype(np.int32)], isClosed=False, color=gray, lineType=cv2.LINE_AA)
        cv2.circle(shown, _point(end, side), max(2, side // 75), gray, thickness=-1, lineType=cv2.LINE_AA)


def _buttons_and_clips(shown: Film, rng: np.random.Generator) -> None:
    """Draw a row of buttons, or a few short bright clips."""
    side = shown.shape[0]
    if rng.random() < 0.5:
        column, top, step = rng.uniform(0.35, 0.65), rng.uniform(0.1, 0.4), rng.uniform(0.08, 0.16)
        for number in range(int(rng.integers(2, 6))):
            center = np.array([column, top + number * step])
            thickness = -1 if rng.random() < 0.5 else 1
            cv2.circle(shown, _point(center, side), max(2, side // 90), _bright(shown, center, rng), thickness)
        return
    middle = rng.uniform(0.2, 0.8, size=2)
    for _ in range(int(rng.integers(1, 6))):
        center = (middle + rng.normal(0, 0.04, size=2)).clip(0, 0.99)
        turn, length = rng.uniform(0, np.pi), rng.uniform(0.008, 0.02)
        reach = np.array([np.cos(turn), np.sin(turn)]) * length
        ends = _point(center - reach, side), _point(center + reach, side)
        cv2.line(shown, *ends, color=_bright(shown, center, rng), thickness=1, lineType=cv2.LINE_AA)


def _margins(shown: Film, rng: np.random.Generator) -> None:
    """Darken or whiten up to four margins."""
    side, gray = shown.shape[0], 0 if rng.random() < 0.8 else 255
    left, top, right, bottom = (rng.uniform(0, _WIDEST_MARGIN, size=4) * (rng.random(4) < 0.5) * side).astype(int)
    shown[:top], shown[side - bottom :] = gray, gray
    shown[:, :left], shown[:, side - right :] = gray, gray


def _letters(shown: Film, rng: np.random.Generator) -> None:
    """Write a marker or a few characters near a corner."""
    side = shown.shape[0]
    text = str(rng.choice(_LETTERS)) if rng.random() < 0.7 else "".join(rng.choice([*string.digits], size=6))
    scale = float(rng.uniform(0.25, 0.6)) * side / 224
    where = rng.uniform(0.01, 0.12, size=2)
    if rng.random() < 0.5:
        where[0] = 0.97 - where[0] - 0.035 * len(text)
    if rng.random() < 0.4:
        where[1] = 1 - where[1]
    origin = _point(where.clip(0, 0.97) + np.array([0, 0.03]), side)
    font = int(rng.choice(_FONTS))
    cv2.putText(shown, text, origin, font, scale, int(rng.integers(190, 256)), thickness=1, lineType=cv2.LINE_AA)


def _bright(shown: Film, center: NDArray[np.float64], rng: np.random.Generator) -> int:
    """Return a gray value brighter than the film at a place."""
    column, row = _point(center.clip(0, 0.999), shown.shape[0])
    there = int(shown[min(row, len(shown) - 1), min(column, len(shown) - 1)])
    return min(255, there + int(rng.integers(25, 120)))


def _point(place: NDArray[np.float64], side: int) -> tuple[int, int]:
    """Return the column and row of a place given in 0..1."""
    column, row = (place * side).round().astype(int).tolist()
    return column, row


def expose(pixels: NDArray[np.uint8], rule: Augmentation, rng: np.random.Generator) -> FloatArray:
    """Change a film [side, side]. Returns values in 0..1."""
    gray = _window(_shares(pixels), rule, rng)
    gray = _sharpness(gray, rule, rng)
    if rule.noise:
        gray = gray + rng.standard_normal(gray.shape, dtype=np.float32) * np.float32(rng.uniform(0, rule.noise))
    gray = gray.clip(0, 1)
    return _stored(gray, rng) if rng.random() < rule.jpeg else gray


def _window(gray: FloatArray, rule: Augmentation, rng: np.random.Generator) -> FloatArray:
    """Exchange black and white, change the brightness, the contrast about the film's mean, and the curve between."""
    if rule.invert and rng.random() < rule.invert:
        gray = 1 - gray
    brightness, contrast = 1 + rng.uniform(-1, 1, size=2) * (rule.brightness, rule.contrast)
    gray = gray * np.float32(brightness)
    gray = (gray - gray.mean()) * np.float32(contrast) + gray.mean()
    if rule.gamma:
        gray = gray.clip(0, 1) ** np.float32(np.exp(rng.uniform(-1, 1) * rule.gamma))
    if rng.random() < rule.equalize:
        levels = cv2.createCLAHE(clipLimit=float(rng.uniform(1, 4)), tileGridSize=(8, 8)).apply(_bytes(gray))
        gray = _shares(levels)
    return np.asarray(gray, dtype=np.float32)


def _sharpness(gray: FloatArray, rule: Augmentation, rng: np.random.Generator) -> FloatArray:
    """Blur, or reduce the resolution and enlarge again."""
    blurred, sigma = rng.random() < rule.blur, rng.uniform(0.1, max(0.1, rule.blur_sigma))
    if blurred:
        gray = np.asarray(cv2.GaussianBlur(gray, (3, 3), sigma), dtype=np.float32)
    if rng.random() < rule.coarse:
        side = gray.shape[0]
        small = max(2, round(side * rng.uniform(*_RESOLUTIONS)))
        reduced = cv2.resize(gray, (small, small), interpolation=cv2.INTER_AREA)
        gray = np.asarray(cv2.resize(reduced, (side, side), interpolation=cv2.INTER_LINEAR), dtype=np.float32)
    return gray


def _stored(gray: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Encode as JPEG of some quality, and decode."""
    _, encoded = cv2.imencode(".jpg", _bytes(gray), [cv2.IMWRITE_JPEG_QUALITY, int(rng.integers(*_QUALITIES))])
    return _shares(np.asarray(cv2.imdecode(encoded, cv2.IMREAD_GRAYSCALE)))


def _shares(levels: ArrayLike) -> FloatArray:
    """Return bytes as shares of white."""
    return np.asarray(levels, dtype=np.float32) / np.float32(255)


def _bytes(gray: FloatArray) -> NDArray[np.uint8]:
    return (gray.clip(0, 1) * 255 + 0.5).astype(np.uint8)


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
    moved = move(named, place, forget=rule.forget_cropped)
    return shown, moved


def vary(pixels: NDArray[np.uint8], rule: Augmentation, rng: np.random.Generator, *, size: int) -> FloatArray:
    """Augment a film [side, side], 0..255, without labels. Returns gray values [size, size], 0..1."""
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


def move(labels: FilmLabels, place: Map, *, forget: bool = True) -> FilmLabels:
    """Move all boxes to their new places, and remove labels of what left the picture, unless they are to stay."""
    boxes, in_sight = move_boxes(labels.boxes, place)
    regions, regions_in_sight = move_boxes(labels.regions, place)
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
        said=tuple(said for sentence in labels.said if (said := _move_said(sentence, place, forget)) is not None),
        sides=tuple(side for finding in labels.sides if (side := _move_side(finding, place)) is not None),
    )


def move_boxes(boxes: FloatArray, place: Map) -> tuple[FloatArray, BoolArray]:
    """Return the bounding boxes of moved boxes [..., 4], clipped, and which of them [...] are still visible."""
    corners = unit_boxes.to_corners(boxes.astype(np.float64))
    xs, ys = corners[..., [0, 2, 0, 2]], corners[..., [1, 1, 3, 3]]
    moved = np.stack([row[0] * xs + row[1] * ys + row[2] for row in place], axis=-1)
    around = np.concatenate([moved.min(axis=-2), moved.max(axis=-2)], axis=-1)
    clipped = around.clip(0, 1)
    whole, left = (np.prod(edges[..., 2:] - edges[..., :2], axis=-1) for edges in (around, clipped))
    in_sight = (left > 0) & (left >= _LEAST_IN_SIGHT * whole)
    return unit_boxes.to_center_size(clipped).astype(np.float32), in_sight


def _move_said(sentence: Said, place: Map, forget: bool) -> Said | None:
    """Move the boxes of a sentence. Returns None if one of them is no longer visible: it may be wrong then."""
    boxes, in_sight = move_boxes(sentence.boxes, place)
    return None if forget and not in_sight.all() else replace(sentence, boxes=boxes[in_sight])


def _move_side(finding: OnSide, place: Map) -> OnSide | None:
    box, in_sight = move_boxes(finding.box, place)
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
