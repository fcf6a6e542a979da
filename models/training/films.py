"""Real films for training: a file with one film to a line, beside the pictures that it names.

Of a line count `file`, relative to the file of lines; `boxes`, a list of {label, xyxy} in pixels of that picture;
`nih_labels`, those of ChestX-ray14; `patient`. Or it holds `truth`, as `truths` keeps it: then nothing is translated.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, NotRequired, TypedDict, cast

import cv2
import numpy as np
from numpy.typing import NDArray

from models import boxes as unit_boxes
from models.errors import ModelError
from models.tasks.prompts import region_prompts
from models.training.runfile import Films
from models.training.truths import Line

NIH_LABELS: Mapping[str, str] = {
    "Atelectasis": "atelectasis",
    "Cardiomegaly": "cardiomegaly",
    "Consolidation": "consolidation",
    "Edema": "edema",
    "Effusion": "pleural_effusion",
    "Mass": "lung_lesion",
    "No Finding": "no_finding",
    "Nodule": "lung_lesion",
    "Pleural_Thickening": "pleural_other",
    "Pneumonia": "pneumonia",
    "Pneumothorax": "pneumothorax",
}
"""Labels of ChestX-ray14 by the keys of CheXpert; what neither names is not known."""
_PARTS = 1000


class _Box(TypedDict):
    label: str
    xyxy: list[float]


class _Film(TypedDict):
    file: str
    patient: NotRequired[str]
    boxes: NotRequired[list[_Box]]
    nih_labels: NotRequired[list[str]]
    truth: NotRequired[Line]


class Film(NamedTuple):
    """A film: its central square, bytes [side, side], and what is known of it."""

    pixels: NDArray[np.uint8]
    line: Line


def is_held_out(patient: str, share: float) -> bool:
    """Say whether a patient is kept for tests: by the name alone, so that nobody changes sides."""
    part = int.from_bytes(hashlib.sha256(patient.encode()).digest()[:8], "big") % _PARTS
    return part < share * _PARTS


def patient_of(film: Mapping[str, object]) -> str:
    """Name the patient of a line; the names of pictures of ChestX-ray14 begin with it."""
    return str(film["patient"]) if "patient" in film else Path(str(film["file"])).stem.split("_")[0]


def read_films(films: Films, *, side: int) -> Iterator[Film]:
    """Read the films that training may see. Raises ModelError where the file, a line or a picture is not right."""
    path = Path(films.file)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror}); correct data.films.file") from error
    names = frozenset(region.name for region in region_prompts() if not region.members)
    for number, text in enumerate(lines, 1):
        try:
            film = cast("_Film", json.loads(text))
            if not is_held_out(patient_of(film), films.held_out):
                yield _read(film, path.parent / film["file"], side=side, names=names)
        except (KeyError, TypeError, ValueError) as error:
            raise ModelError(
                f"{path}, line {number}: not a film as expected ({error!r}); correct or remove it"
            ) from error


def _read(film: _Film, path: Path, *, side: int, names: Collection[str]) -> Film:
    """Read one film; names: of the regions."""
    gray = cv2.imread(str(path), cv2.IMREAD_GRAYSCALE)
    if gray is None:
        raise ModelError(f"{path} cannot be read as a picture; restore it, or remove its line")
    rows, columns = gray.shape
    short = min(rows, columns)
    left, top = (columns - short) // 2, (rows - short) // 2
    square = gray[top : top + short, left : left + short]
    pixels = np.asarray(cv2.resize(square, (side, side), interpolation=cv2.INTER_AREA), dtype=np.uint8)
    offset = np.array([left, top, left, top], dtype=np.float32)
    line = film.get("truth") or _line(film, offset, short, names=names)
    return Film(pixels=pixels, line=line)


def _line(film: _Film, offset: NDArray[np.float32], short: int, *, names: Collection[str]) -> Line:
    """Translate labels and boxes."""
    regions: dict[str, list[float]] = {}
    boxes: dict[str, list[list[float]]] = {}
    for one in film.get("boxes", []):
        corners = ((np.array(one["xyxy"], dtype=np.float32) - offset) / short).clip(0, 1)
        box = unit_boxes.to_center_size(corners).tolist()
        if min(box[2:]) <= 0:
            continue
        if one["label"].lower() in names:
            regions[one["label"].lower()] = box
        elif one["label"] in NIH_LABELS:
            boxes.setdefault(NIH_LABELS[one["label"]], []).append(box)
    line: Line = {"regions": regions, "boxes": boxes, "located": list(boxes)}
    if "nih_labels" in film:
        labels = set(film["nih_labels"])
        line["present"] = {key: False for key in NIH_LABELS.values()}
        line["present"] |= {NIH_LABELS[label]: True for label in labels if label in NIH_LABELS}
        if "No Finding" in labels:
            line["located"] = sorted(set(NIH_LABELS.values()) - {"no_finding", "pneumonia", "pleural_other"})
    return line
