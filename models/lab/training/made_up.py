"""Films with made-up labels, to measure a run whose films are not there: drawn pictures, labels drawn at random.

Each film has labels of one class set of the run, in turn, about as many as a film of that data set has. Nothing is
learned from them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import cv2
import numpy as np

from models.lab.phantoms.picture import phantom
from models.lab.training.catalog import Catalog
from models.lab.training.labels import Line, SaidLine
from models.lab.training.random_streams import stream
from models.lab.training.runfile import Data

_PICTURES: Final = 8
_BOXED: Final = 3
"""Classes with a box on a film."""
_SENTENCES: Final = 8


def write_made_up(folder: Path, data: Data, catalog: Catalog, *, count: int) -> Path:
    """Write a file of films, and the pictures that they share, at the size that the run stores. Returns its path."""
    for number in range(min(count, _PICTURES)):
        cv2.imwrite(str(folder / f"{number}.png"), phantom(number, side=data.side).pixels)
    path = folder / "made_up.jsonl"
    lines = (
        {"file": f"{number % _PICTURES}.png", "patient": str(number), "truth": _line(data, catalog, number)}
        for number in range(count)
    )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def _line(data: Data, catalog: Catalog, number: int) -> Line:
    """Draw the labels of a film; films with labels of regions, and those of CheXpert's classes, have a report."""
    rng = stream(number, "made up")
    place = number % len(data.classes)
    names = [catalog.classes[own].name for own in catalog.sets[place]]
    if data.classes[place] == "cig":
        regions = {name: _box(rng) for name in catalog.regions}
        holding = [str(name) for name in rng.choice(catalog.regions, 8, replace=False)]
        return {
            "regions": regions,
            "region_present": {name: _some(rng, names) for name in holding},
            "region_known": names,
            "said": [_sentence(rng, names, holding) for _ in range(_SENTENCES)],
        }
    found = _some(rng, names)
    line: Line = {
        "present": {name: name in found for name in names},
        "boxes": {name: [_box(rng)] for name in found},
        "located": names,
    }
    if data.classes[place] == "chexpert":
        line["said"] = [_sentence(rng, names, list(catalog.regions)) for _ in range(_SENTENCES)]
    return line


def _sentence(rng: np.random.Generator, names: list[str], regions: list[str]) -> SaidLine:
    region = str(rng.choice(regions))
    text = f"There is a small {rng.choice(names)} in the {region}, which has not changed since the last film."
    return {"text": text, "positive": True, "findings": [], "regions": [region], "boxes": [_box(rng)]}


def _some(rng: np.random.Generator, names: list[str]) -> list[str]:
    return [str(name) for name in rng.choice(names, min(_BOXED, len(names)), replace=False)]


def _box(rng: np.random.Generator) -> list[float]:
    """Draw a box within the film: center and size."""
    return [*rng.uniform(0.3, 0.7, 2).tolist(), *rng.uniform(0.1, 0.5, 2).tolist()]
