"""Films of one step as tensors, and the questions in words that are asked about each of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from models.training.catalog import Catalog, hint_text
from models.training.stages import Drawing
from models.training.truths import MOST_BOXES, FloatArray, Said, Truth

# Not asked for by side: what phantoms show in the middle.
_UNSIDED = frozenset({"cardiomegaly", "support_devices", None})


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A question in words. boxes: [n, 4], all that answer it, be it none; is_sentence: it stands in the report."""

    text: str
    boxes: FloatArray
    is_sentence: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """F films and what is known of them; see `truths.Truth` for the arrays.

    pixels: [F, side, side], normalized; asked: drawn questions of each film; said: all sentences of each film
    """

    pixels: Tensor
    present: Tensor
    known: Tensor
    boxes: Tensor
    valid: Tensor
    located: Tensor
    regions: Tensor
    seen: Tensor
    region_present: Tensor
    region_known: Tensor
    asked: tuple[tuple[Asked, ...], ...]
    said: tuple[tuple[Said, ...], ...]

    def asked_boxes(self) -> tuple[Tensor, Tensor, Tensor]:
        """Give the boxes of questions [F, S, MOST_BOXES, 4], which of them are there, and which questions are padding.

        S is at least 2: a film's only question must not be padding that sees nothing at all (SPEC.md 4.2).
        """
        most = max(2, *(len(asked) for asked in self.asked))
        boxes = torch.zeros(len(self.asked), most, MOST_BOXES, 4)
        valid = torch.zeros(len(self.asked), most, MOST_BOXES, dtype=torch.bool)
        padding = torch.ones(len(self.asked), most, dtype=torch.bool)
        for film, asked in enumerate(self.asked):
            padding[film, : len(asked)] = False
            for place, one in enumerate(asked):
                rows = one.boxes[:MOST_BOXES]
                boxes[film, place, : len(rows)] = torch.from_numpy(rows)
                valid[film, place, : len(rows)] = True
        device = self.pixels.device
        return boxes.to(device), valid.to(device), padding.to(device)


def collate(
    films: Sequence[tuple[FloatArray, Truth]],
    *,
    catalog: Catalog,
    drawing: Drawing,
    rng: np.random.Generator,
    mean: float,
    std: float,
    device: str,
) -> Batch:
    """Join films, gray values 0..1, and draw the questions about each."""
    truths = [truth for _, truth in films]
    pixels = (np.stack([gray for gray, _ in films]) - np.float32(mean)) / np.float32(std)

    def joined(name: str) -> Tensor:
        return torch.from_numpy(np.stack([getattr(truth, name) for truth in truths])).to(device)

    return Batch(
        pixels=torch.from_numpy(pixels).to(device),
        present=joined("present"),
        known=joined("known"),
        boxes=joined("boxes"),
        valid=joined("valid"),
        located=joined("located"),
        regions=joined("regions"),
        seen=joined("seen"),
        region_present=joined("region_present"),
        region_known=joined("region_known"),
        asked=tuple(_questions(truth, catalog, drawing, rng) for truth in truths),
        said=tuple(truth.said for truth in truths),
    )


def _questions(truth: Truth, catalog: Catalog, drawing: Drawing, rng: np.random.Generator) -> tuple[Asked, ...]:
    """Draw sentences of the report, those that find something first, and questions about one side."""
    order = rng.permutation(len(truth.said))
    found = [place for place in order if truth.said[place].positive]
    # Half of the room is for what is there, so that denials do not crowd it out.
    first = found[: (drawing.sentences + 1) // 2]
    chosen = [*first, *(place for place in order if place not in first)][: drawing.sentences]
    sentences = (truth.said[place] for place in chosen)
    asked = [Asked(text=one.text, boxes=one.boxes, is_sentence=True) for one in sentences]
    hints = list(_hints(truth, catalog, rng)) if drawing.hints else []
    asked += [hints[place] for place in rng.permutation(len(hints))[: drawing.hints]]
    return tuple(asked)


def _hints(truth: Truth, catalog: Catalog, rng: np.random.Generator) -> Iterator[Asked]:
    """Ask for each finding on each side where it is, and once where it is not."""
    absent = []
    for number, one in enumerate(catalog.classes):
        if one.finding in _UNSIDED or not truth.located[number]:
            continue
        for side in ("right", "left"):
            here = [found for found in truth.sides if (found.finding, found.side) == (number, side)]
            if not here:
                absent.append((number, side))
                continue
            zones = sorted({found.zone for found in here if found.zone is not None})
            zone = str(rng.choice(zones)) if zones else ""
            wordings = [wording for wording in catalog.hints if zone or "{zone}" not in wording]
            wording = str(rng.choice(wordings))
            meant = [found.box for found in here if "{zone}" not in wording or found.zone == zone]
            text = hint_text(wording, str(rng.choice(one.positive)), side=side, zone=zone)
            yield Asked(text=text, boxes=np.stack(meant), is_sentence=False)
    if absent:
        number, side = absent[int(rng.integers(len(absent)))]
        wording = str(rng.choice([wording for wording in catalog.hints if "{zone}" not in wording]))
        text = hint_text(wording, str(rng.choice(catalog.classes[number].positive)), side=side, zone="")
        yield Asked(text=text, boxes=np.zeros((0, 4), dtype=np.float32), is_sentence=False)
