"""VinDr-CXR: 18,000 DICOM films, 22 local and 6 global labels, boxes of three readers (train) or of a consensus (test).

A film's labels are the majority of its readers, its boxes those of any reader, fused, as published. So a class may have
a box and be labeled absent; such boxes are counted. A class that no reader voted on has no label.

A picture is made as the published ones were (spec §1): the stored values, inverted for MONOCHROME1, stretched from the
smallest to the largest, and equalized as scikit-image does, here on a table of the 256 values.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

import cv2
import imagecodecs
import numpy as np
from ensemble_boxes import weighted_boxes_fusion
from numpy.typing import NDArray
from pydicom import Dataset, dcmread
from pydicom.encaps import get_frame
from pydicom.uid import JPEG2000TransferSyntaxes, JPEGLSTransferSyntaxes, JPEGTransferSyntaxes

from models.errors import ModelError
from models.files import replacing
from models.lab.datasets.preparation import Listing, Made, Published, picture_size
from models.lab.datasets.tables import rows_of
from models.lab.film_lines import AS_STORED, FilmLine
from models.lab.tasks.prompts import trained_prompts

_BINS = 256
Boxes = Sequence[Sequence[float]]

_OVERLAP: Final = 0.1
_LEAST_SCORE: Final = 0.0001
_PREFIX: Final = "vindrcxr/"
_LOCAL: Final = tuple(prompt.name.removeprefix(_PREFIX) for prompt in trained_prompts("vindr"))
_GLOBAL: Final = ("Lung tumor", "Pneumonia", "Tuberculosis", "Other disease", "COPD", "No finding")
_SPELLINGS: Final = {"Other diseases": "Other disease"}
"""The table of the training films has another name than that of the test films."""
_NOTHING: Final = "No finding"
_EDGES: Final = ("x_min", "y_min", "x_max", "y_max")
_SEED: Final = 12345

PUBLISHED: Final = (
    Published(what="films in train.jsonl", count=15_000, source="data set"),
    Published(what="films in validate.jsonl", count=1_500, source="paper"),
    Published(what="films in test.jsonl", count=1_500, source="paper"),
)

_Split = Literal["train", "test"]


def read_equalized(path: Path) -> NDArray[np.uint8]:
    """Return the picture of a film, [row, column]. Raises ModelError that names the file if it cannot be read."""
    try:
        film = dcmread(path)
        stored = _stored(film)
        is_inverted = film.PhotometricInterpretation == "MONOCHROME1"
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror or error}); download it again") from error
    except Exception as error:  # a damaged file meets many kinds of errors in pydicom and in the decoders
        raise ModelError(f"{path} is no film that can be decoded ({error}); download it again") from error
    if stored.ndim != 2:
        raise ModelError(f"{path} has {stored.ndim} dimensions of pixels instead of rows and columns")
    if stored.min() == stored.max():
        raise ModelError(f"{path} is blank; download it again")
    return equalized(eight_bits(stored, is_inverted=is_inverted))


def eight_bits(stored: NDArray[np.integer], *, is_inverted: bool) -> NDArray[np.uint8]:
    """Stretch stored values to 0..255, rounded down; a film of unsigned 8 bits is not stretched, as published."""
    least, most = int(stored.min()), int(stored.max())
    if stored.dtype == np.uint8:
        return np.asarray(most - stored if is_inverted else stored, dtype=np.uint8)
    values = np.arange(least, most + 1, dtype=np.int64)
    table = ((most - values if is_inverted else values - least) * 1.0 / (most - least) * 255).astype(np.uint8)
    return table[stored.astype(np.int64) - least]


def equalized(eight: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Equalize the histogram as scikit-image's `equalize_hist` does, in steps of 1/255, rounded down."""
    values = np.arange(_BINS) / 255.0
    counts = np.bincount(eight.ravel(), minlength=_BINS)
    bounds = (float(eight.min()) / 255.0, float(eight.max()) / 255.0)
    histogram, edges = np.histogram(values, bins=_BINS, range=bounds, weights=counts)
    shares = histogram.cumsum() / histogram.sum()
    table: NDArray[np.uint8] = (255 * np.interp(values, (edges[:-1] + edges[1:]) / 2, shares)).astype(np.uint8)
    return table[eight]


def _stored(film: Dataset) -> NDArray[np.integer]:
    """Decode the stored values: compressed ones by imagecodecs, which needs no plug-in of pydicom."""
    syntax = film.file_meta.TransferSyntaxUID
    frame = get_frame(film.PixelData, 0, number_of_frames=1) if syntax.is_encapsulated else b""
    if syntax in JPEG2000TransferSyntaxes:
        return np.asarray(imagecodecs.jpeg2k_decode(frame))
    if syntax in JPEGLSTransferSyntaxes:
        return np.asarray(imagecodecs.jpegls_decode(frame))
    if syntax in JPEGTransferSyntaxes:
        return np.asarray(imagecodecs.jpeg8_decode(frame))
    return np.asarray(film.pixel_array)


def fused(found: Mapping[str, Boxes]) -> dict[str, list[list[float]]]:
    """Fuse the boxes of each class, left, top, right, bottom in pixels; a single box stays as it is."""
    several = {name: np.array(boxes, dtype=np.float64) for name, boxes in found.items() if len(boxes) > 1}
    fused = {name: [list(box) for box in boxes] for name, boxes in found.items() if len(boxes) == 1}
    if not several:
        return fused
    least = min(boxes.min() for boxes in several.values())
    most = max(boxes.max() for boxes in several.values())
    names = list(several)
    boxes, _, classes = weighted_boxes_fusion(
        [((own - least) / (most - least)).tolist() for own in several.values()],
        [[1.0] * len(own) for own in several.values()],
        [[number] * len(own) for number, own in enumerate(several.values())],
        weights=[1] * len(several),
        iou_thr=_OVERLAP,
        skip_box_thr=_LEAST_SCORE,
    )
    for box, number in zip((boxes * (most - least) + least).round(3).tolist(), classes.astype(int), strict=True):
        fused.setdefault(names[number], []).append(box)
    return fused


class _Film(NamedTuple):
    dicom: str
    labels: dict[str, bool]
    boxes: dict[str, list[list[float]]]
    several: bool


def listing(source: Path) -> Listing[_Film]:
    """List the films: train.jsonl, and the halves of the test set, validate.jsonl and test.jsonl.

    Raises ModelError that names file, line and column of what is missing or wrong.
    """
    counts = Counter[str]()
    train, test = _films(source, "train", counts), _films(source, "test", counts)
    order = np.random.RandomState(_SEED).permutation(len(test)).tolist()
    middle = len(test) // 2
    films = [("train", film) for film in train]
    films += [("validate", test[number]) for number in order[:middle]]
    films += [("test", test[number]) for number in order[middle:]]
    return Listing(films=films, make=make, counts=counts, published=PUBLISHED)


def make(film: _Film, out: Path) -> Made:
    """Make the picture of a film, unless it is there, and its line."""
    dicom, counts = Path(film.dicom), Counter[str]()
    picture = out / "pictures" / f"{dicom.stem}.png"
    if not picture.exists():
        picture.parent.mkdir(exist_ok=True)
        _, encoded = cv2.imencode(".png", read_equalized(dicom))
        with replacing(picture) as file:
            file.write(encoded.tobytes())
    labels, boxes = film.labels, fused(film.boxes) if film.several else film.boxes
    counts["boxes as drawn"] = sum(map(len, film.boxes.values()))
    counts["boxes"] = sum(map(len, boxes.values()))
    counts["boxes of classes that the majority did not see"] = sum(
        len(own) for name, own in boxes.items() if not labels.get(name)
    )
    counts["labels without a vote, left out"] = len(_LOCAL) + len(_GLOBAL) - len(labels)
    line: FilmLine = {
        "file": f"pictures/{picture.name}",
        "size": picture_size(picture),
        "patient": dicom.stem,
        "gray": AS_STORED,
        "boxes": [{"label": _PREFIX + name, "xyxy": box} for name in _LOCAL if name in boxes for box in boxes[name]],
        "located": [_PREFIX + name for name in _LOCAL],
        "labels": {_PREFIX + name: label for name, label in labels.items()},
    }
    return Made(line, counts)


def _films(source: Path, split: _Split, counts: Counter[str]) -> list[_Film]:
    """Return the films of a part in the order of the table of labels."""
    folder = source / "annotations"
    votes = _votes(folder / f"image_labels_{split}.csv")
    boxes = _boxes(folder / f"annotations_{split}.csv", votes, counts)
    films = []
    for name, cast in votes.items():
        path = source / split / f"{name}.dicom"
        if not path.is_file():
            raise ModelError(f"{path} is missing, which {folder / f'image_labels_{split}.csv'} names; download it")
        labels = {label: 2 * sum(own) > len(own) for label, own in cast.items() if own}
        films.append(_Film(dicom=str(path), labels=labels, boxes=boxes.get(name, {}), several=split == "train"))
    return films


def _votes(path: Path) -> dict[str, dict[str, list[int]]]:
    """Return the readers' votes on each class of each film; an empty cell is no vote."""
    votes: dict[str, dict[str, list[int]]] = {}
    for row in rows_of(path, ("image_id",)):
        spelled = {_SPELLINGS.get(column, column): column for column in row.cells}
        own = votes.setdefault(row.text("image_id"), {label: [] for label in (*_LOCAL, *_GLOBAL)})
        for label, said in own.items():
            if (column := spelled.get(label)) is None:
                raise row.refused(label, "is missing; restore the file as it was published")
            if cell := row.cells[column].strip():
                if (vote := row.number(column)) not in (0, 1):
                    raise row.refused(column, f"{cell!r} is neither 0 nor 1")
                said.append(int(vote))
    return votes


def _boxes(path: Path, films: Mapping[str, object], counts: Counter[str]) -> dict[str, dict[str, list[list[float]]]]:
    """Return the boxes of each film by class, the class with the most boxes first, as published."""
    boxes: dict[str, dict[str, list[list[float]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows_of(path, ("image_id", "class_name", *_EDGES)):
        if (name := row.text("image_id")) not in films:
            raise row.refused("image_id", f"{name} has no row of labels")
        label = row.one_of("class_name", (*_LOCAL, _NOTHING))
        if label == _NOTHING:
            continue
        if not row.cells["x_min"].strip():
            counts["boxes without edges, left out"] += 1
            continue
        left, top, right, bottom = (row.number(column) for column in _EDGES)
        if right <= left or bottom <= top:
            counts["boxes without area, left out"] += 1
        else:
            boxes[name][label].append([left, top, right, bottom])
    return {name: dict(sorted(own.items(), key=lambda found: -len(found[1]))) for name, own in boxes.items()}
