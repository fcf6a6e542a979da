"""Further readings of films of ChestX-ray14, joined to the lines of the films that they are of.

SOURCE holds `nih_512.jsonl`, the films, and `nih_512_readings.jsonl`, one object for each film that has a reading:

    file: the picture, as the line of the film names it
    det10: [{label, xyxy}], the boxes of ten findings by three radiologists; an empty list says that they found none
    google: {fracture, pneumothorax, airspace_opacity, nodule_or_mass: true or false}, by four radiologists
    chexnet: {label of ChestX-ray14 in lower case: probability}, by another network

The boxes are those of ChestX-Det10 (Liu et al. 2020), the labels those of Majkowska et al. (Radiology 2020), the
probabilities those of a network that learned from mined labels (jrzech/reproduce-chexnet). A reading goes before a
label that was mined from a report; a probability is no reading. Two readings of a film agree on a finding if either
has found it. What the RSNA's radiologists said of opacities stays.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypedDict, cast

from language.labels import NO_FINDING
from models.errors import ModelError
from models.lab.datasets.preparation import Listing, Made, Published, relative
from models.lab.film_lines import BoxLine, FilmLine, read_line
from models.lab.tasks.labels import NIH_LABELS

_FILMS: Final = "nih_512.jsonl"
_READINGS: Final = "nih_512_readings.jsonl"
_OPACITY: Final = "lung_opacity"
_BOXED: Final = {
    "Atelectasis": "atelectasis",
    "Consolidation": "consolidation",
    "Effusion": "pleural_effusion",
    "Fracture": "fracture",
    "Mass": "lung_lesion",
    "Nodule": "lung_lesion",
    "Pneumothorax": "pneumothorax",
}
"""The class of each label of ChestX-Det10 that has one; Calcification, Emphysema and Fibrosis have none."""
_WITHOUT_CLASS: Final = ("Calcification", "Emphysema", "Fibrosis")
_LABELLED: Final = {
    "fracture": "fracture",
    "pneumothorax": "pneumothorax",
    "airspace_opacity": _OPACITY,
    "nodule_or_mass": "lung_lesion",
}

_OF_NETWORK: Final = {label.lower(): key for label, key in NIH_LABELS.items() if key != NO_FINDING}
_OF_NETWORK_WITHOUT_CLASS: Final = ("emphysema", "fibrosis", "hernia", "infiltration")

PUBLISHED: Final = (
    Published(what="films with boxes of three radiologists", count=86, source="data set"),
    Published(what="films with labels of four radiologists", count=32, source="data set"),
    Published(what="films with probabilities of another network", count=157, source="data set"),
    Published(what="boxes of Consolidation", count=95, source="data set"),
    Published(what="boxes of Effusion", count=57, source="data set"),
)


class _Reading(TypedDict, total=False):
    file: str
    det10: list[BoxLine]
    google: dict[str, bool]
    chexnet: dict[str, float]


class _Film(TypedDict):
    folder: str
    line: FilmLine
    reading: _Reading


def listing(source: Path) -> Listing[_Film]:
    """List all films, those without a further reading too: films.jsonl.

    Raises ModelError that names file and line of what is missing or wrong.
    """
    readings = {reading["file"]: reading for reading in _readings(source / _READINGS)}
    films: list[_Film] = []
    for number, text in enumerate(_texts(source / _FILMS), 1):
        line = read_line(text, where=f"{source / _FILMS}, line {number}")
        films.append({"folder": str(source), "line": line, "reading": readings.pop(line["file"], {})})
    if readings:
        raise ModelError(f"{source / _READINGS} has a reading of {min(readings)}, which {_FILMS} does not list")
    return Listing(films=[("films", film) for film in films], make=make, published=PUBLISHED)


def make(film: _Film, out: Path) -> Made:
    """Make the line of a film with the labels of its further readings."""
    line, reading, counts = film["line"].copy(), film["reading"], Counter[str]()
    line["file"] = relative(Path(film["folder"]) / line["file"], out)
    found = _found(reading, has_opacity_reading="rsna" in line)
    if any(found.values()):
        found[NO_FINDING] = False
    if found:
        line["labels"] = {**line.get("labels", {}), **found}
    if "det10" in reading:
        line["boxes"] = [*line.get("boxes", []), *(box for box in reading["det10"] if box["label"] in _BOXED)]
        line["located"] = sorted({*line.get("located", []), *_BOXED.values()})
        counts.update(f"boxes of {box['label']}" for box in reading["det10"])
        counts["films with boxes of three radiologists"] += 1
    counts["films with labels of four radiologists"] += "google" in reading
    if "chexnet" in reading:
        line["probabilities"] = {}
        for label, probability in reading["chexnet"].items():
            if key := _OF_NETWORK.get(label):
                line["probabilities"][key] = max(probability, line["probabilities"].get(key, 0))
        counts["films with probabilities of another network"] += 1
    return Made(line, counts)


def _found(reading: _Reading, *, has_opacity_reading: bool) -> dict[str, bool]:
    """Return presence by class, for the classes that were read."""
    found: dict[str, bool] = {}
    if "det10" in reading:
        labels = {box["label"] for box in reading["det10"]}
        for label, key in _BOXED.items():
            found[key] = found.get(key, False) or label in labels
        if found["consolidation"]:
            found[_OPACITY] = True
    for name, there in reading.get("google", {}).items():
        found[_LABELLED[name]] = found.get(_LABELLED[name], False) or there
    if has_opacity_reading:
        found.pop(_OPACITY, None)
    return found


def _readings(path: Path) -> Iterator[_Reading]:
    for number, text in enumerate(_texts(path), 1):
        where = f"{path}, line {number}"
        try:
            reading = cast("_Reading", json.loads(text))
            unknown = {box["label"] for box in reading.get("det10", [])} - _BOXED.keys() - {*_WITHOUT_CLASS}
            unknown |= reading.get("google", {}).keys() - _LABELLED.keys()
            unknown |= reading.get("chexnet", {}).keys() - _OF_NETWORK.keys() - {*_OF_NETWORK_WITHOUT_CLASS}
            Path(reading["file"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ModelError(f"{where}: not a reading as expected ({error!r}); correct or remove it") from error
        if unknown:
            raise ModelError(f"{where}: {min(unknown)!r} is no label of these readings; correct or remove it")
        yield reading


def _texts(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{path} cannot be read ({error}); name the folder that holds it") from error
