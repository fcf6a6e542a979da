"""ChestX-ray14 of the NIH: labels mined from reports, and the list of 984 boxes on 880 films.

The two halves of the films with boxes keep each patient's films together. The published code takes the patients in the
order of a Python set, which changes from run to run; here they come in the order of the shuffled list (Random(0)), so
the halves are as large as the published ones to a few films, and not the same films.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from models.errors import ModelError
from models.lab.datasets.preparation import Listing, Made, Published, picture_size, relative
from models.lab.datasets.tables import Row, first_of, rows_of
from models.lab.film_lines import AS_STORED, BoxLine, FilmLine
from models.lab.tasks.labels import NIH

_ENTRIES: Final = ("Image Index", "Finding Labels", "Patient Age", "Patient Gender", "View Position")
_BOXES: Final = ("Image Index", "Finding Label", "Bbox [x", "y", "w", "h]")
_SPELLINGS: Final = {"Infiltrate": "Infiltration"}
_OLDEST: Final = 120
"""A greater age is a mistake of the table, which has some of 148 to 414 years."""

PUBLISHED: Final = (
    Published(what="films", count=112_120, source="data set"),
    Published(what="films of the official test list", count=25_596, source="data set"),
    Published(what="boxes", count=984, source="data set"),
    Published(what="films in validate.jsonl", count=432, source="paper"),
    Published(what="films in test.jsonl", count=448, source="paper"),
)


class _Film(NamedTuple):
    picture: str
    view: str
    sex: str
    age: str
    labels: tuple[str, ...]
    boxes: tuple[tuple[str, tuple[float, ...]], ...] = ()


def listing(source: Path) -> Listing[_Film]:
    """List the films: train.jsonl without boxes, validate.jsonl and test.jsonl with, official_test.jsonl.

    Raises ModelError that names file, line and column of what is missing or wrong.
    """
    official = {name: _names(first_of(source, name)) for name in ("test_list.txt", "train_val_list.txt")}
    counts, films = Counter[str](), dict[str, _Film]()
    pictures = _pictures(source)
    for row in rows_of(first_of(source, "Data_Entry_2017.csv", "Data_Entry_2017_v2020.csv"), _ENTRIES):
        films[row.text("Image Index")] = _film(row, pictures, counts)
    boxed = []
    for row in rows_of(source / "BBox_List_2017.csv", _BOXES):
        if (name := row.text("Image Index")) not in films:
            raise row.refused("Image Index", f"{name} has no row of labels")
        label = row.one_of("Finding Label", NIH)
        box = (_SPELLINGS.get(label, label), tuple(row.box_of_size("Bbox [x", "y", "w", "h]")))
        films[name] = films[name]._replace(boxes=(*films[name].boxes, box))
        boxed.append(name)
    validate, test = halves(boxed)
    train = (official["train_val_list.txt"] & films.keys()) - {*boxed}
    in_test = official["test_list.txt"] & films.keys()
    listed = official["train_val_list.txt"] | official["test_list.txt"]
    counts["names of the official lists without a film"] = len(listed - films.keys())
    counts["films of no official list, left out"] = len(films.keys() - listed - {*boxed})
    counts["pictures without a row of labels, left out"] = len(pictures.keys() - films.keys())
    counts.update({"films": len(films), "films of the official test list": len(in_test), "boxes": len(boxed)})
    chosen = (("train", train), ("validate", validate), ("test", test), ("official_test", in_test))
    return Listing(
        films=[(file, films[name]) for file, names in chosen for name in sorted(names)],
        make=make,
        counts=counts,
        published=PUBLISHED,
    )


def halves(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Divide films with boxes, named once for each box, into two halves by patient.

    The first half gets patients until it has half of the boxes.
    """
    shuffled = list(names)
    random.Random(0).shuffle(shuffled)
    own: dict[str, list[str]] = defaultdict(list)
    for name in shuffled:
        own[name.split("_")[0]].append(name)
    first, second = list[str](), list[str]()
    for films in own.values():
        (first if len(first) < len(names) // 2 else second).extend(films)
    return list(dict.fromkeys(first)), list(dict.fromkeys(second))


def make(film: _Film, out: Path) -> Made:
    """Make the line of a film."""
    path = Path(film.picture)
    line: FilmLine = {
        "file": relative(path, out),
        "size": picture_size(path),
        "patient": path.stem.split("_")[0],
        "gray": AS_STORED,
        "view": film.view,
        "sex": film.sex,
        "nih_labels": list(film.labels),
    }
    if film.age:
        line["age"] = film.age
    if film.boxes:
        line["boxes"] = [BoxLine(label=label, xyxy=list(box)) for label, box in film.boxes]
    return Made(line, Counter())


def _film(row: Row, pictures: Mapping[str, str], counts: Counter[str]) -> _Film:
    name = row.text("Image Index")
    if name not in pictures:
        raise row.refused("Image Index", f"{name} is not in images, and not in images_001/images to images_012/images")
    labels = row.text("Finding Labels").split("|")
    for label in labels:
        if label not in NIH:
            raise row.refused("Finding Labels", f"{label!r} is no label of ChestX-ray14")
    age = row.text("Patient Age").rstrip("Y").lstrip("0")
    if age.isdecimal() and int(age) > _OLDEST:
        counts[f"ages above {_OLDEST} years, left out"] += 1
        age = ""
    return _Film(
        picture=str(Path(pictures[name]) / name),
        view=row.one_of("View Position", ("AP", "PA")),
        sex=row.one_of("Patient Gender", ("F", "M")),
        age=age,
        labels=tuple(labels),
    )


def _pictures(source: Path) -> dict[str, str]:
    """Return the folder of each picture: all in `images`, or in the twelve folders of the archives."""
    folders = [folder for folder in (source / "images", *sorted(source.glob("images_*/images"))) if folder.is_dir()]
    if not folders:
        raise ModelError(f"{source / 'images'} is missing, and so is images_001/images; unpack the archives there")
    return {path.name: str(folder) for folder in folders for path in folder.iterdir()}


def _names(path: Path) -> set[str]:
    try:
        return set(path.read_text(encoding="utf-8").split())
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{path} cannot be read ({error}); download it again") from error
