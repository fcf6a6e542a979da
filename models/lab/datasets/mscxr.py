"""MS-CXR: phrases of reports with the boxes that radiologists drew for them, on films of MIMIC-CXR.

As published, the films of MIMIC-CXR's validation and test split are tested on, all others validate. A phrase's mask is
what its boxes cover; the data set has no other masks.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Final, NamedTuple, cast

from models.errors import ModelError
from models.lab.datasets.mimic import Place, line_at, places_of
from models.lab.datasets.preparation import Listing, Made, Published
from models.lab.datasets.tables import first_of, rows_of
from models.lab.film_lines import FilmLine, SentenceLine
from models.lab.tasks.prompts import class_prompts

_PREFIX: Final = "mscxr/"
_CLASSES: Final = tuple(prompt.name.removeprefix(_PREFIX) for prompt in class_prompts("mscxr"))
_TABLES: Final = ("MS_CXR_Local_Alignment_v1.1.0.csv", "MS_CXR_Local_Alignment_v1.0.0.csv")
_KEPT: Final = ("file", "size", "patient", "study", "gray", "view")
_COLUMNS: Final = ("dicom_id", "category_name", "label_text", "x", "y", "w", "h", "image_width", "image_height")

PUBLISHED: Final = (
    Published(what="phrases of films", count=1_162, source="data set"),
    Published(what="films in validate.jsonl", count=878, source="paper"),
    Published(what="films in test.jsonl", count=169, source="paper"),
)


class _Box(NamedTuple):
    name: str
    phrase: str
    edges: tuple[float, ...]
    size: tuple[int, int]
    where: str


class _Film(NamedTuple):
    place: Place
    boxes: tuple[_Box, ...]


def listing(source: Path, mimic: Path) -> Listing[_Film]:
    """List the films: validate.jsonl and test.jsonl.

    mimic: the folder of MIMIC-CXR's lines
    Raises ModelError that names file, line and column of what is missing or wrong.
    """
    boxes: dict[str, list[_Box]] = defaultdict(list)
    for row in rows_of(first_of(source, *_TABLES), _COLUMNS):
        boxes[row.text("dicom_id")].append(
            _Box(
                name=row.one_of("category_name", _CLASSES),
                phrase=" ".join(row.text("label_text").split()),
                edges=tuple(row.box_of_size("x", "y", "w", "h")),
                size=(row.size("image_width"), row.size("image_height")),
                where=f"{row.path}, line {row.line}",
            )
        )
    films: dict[str, list[_Film]] = {"validate": [], "test": []}
    for split, name, place in places_of(mimic):
        if name in boxes:
            films["validate" if split == "train" else "test"].append(_Film(place, tuple(boxes.pop(name))))
    return Listing(
        films=[(split, film) for split, own in films.items() for film in own],
        make=make,
        counts={"films that are no frontal film of MIMIC-CXR, left out": len(boxes)},
        published=PUBLISHED,
    )


def make(film: _Film, out: Path) -> Made:
    """Make the line of a film: of MIMIC-CXR's its picture and patient, no labels and no report; of Chest ImaGenome's
    also its regions and what they hold.
    """
    known = line_at(film.place, out)
    for box in film.boxes:
        if list(box.size) != known["size"]:
            raise ModelError(f"{box.where}, column 'image_width': {box.size}, but the film has {known['size']} pixels")
    phrases: dict[str, SentenceLine] = {}
    for box in sorted(film.boxes, key=lambda box: box.phrase):
        phrase = phrases.setdefault(
            box.phrase, {"text": box.phrase, "positive": True, "findings": [], "regions": [], "boxes": []}
        )
        phrase["boxes"].append(list(box.edges))
        phrase["findings"] = sorted({*phrase["findings"], _PREFIX + box.name})
    line = cast("FilmLine", {key: value for key, value in known.items() if key in _KEPT})
    line["boxes"] = [{"label": _PREFIX + box.name, "xyxy": list(box.edges)} for box in film.boxes]
    line["phrases"] = list(phrases.values())
    if "region_findings" in known:
        line["boxes"] += known["boxes"]
        line["region_known"], line["region_findings"] = known["region_known"], known["region_findings"]
    counts = Counter(
        {"boxes": len(film.boxes), "phrases of films": len({(box.phrase, box.name) for box in film.boxes})}
    )
    return Made(line, counts)
