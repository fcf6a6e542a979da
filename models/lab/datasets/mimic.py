"""MIMIC-CXR-JPG with the reports of MIMIC-CXR: frontal films of the official split, labels of CheXpert.

Labels are CheXpert's, mined from the report: present, absent, or uncertain, which counts as present as in the published
code; a blank says nothing.
"""

from __future__ import annotations

import json
import os
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple, cast

from language.labels import NO_FINDING, RuleLabeler, says
from models.errors import ModelError
from models.lab.datasets.preparation import Listing, Made, Published, picture_size, relative
from models.lab.datasets.reports import sentences_of
from models.lab.datasets.tables import Row, first_of, rows_of
from models.lab.film_lines import AS_STORED, FilmLine, SentenceLine
from models.lab.tasks.labels import CHEXPERT, CHEXPERT_COLUMNS

SPLITS: Final = ("train", "validate", "test")
_VERSION: Final = "mimic-cxr-2.0.0"
_METADATA: Final = ("dicom_id", "subject_id", "study_id", "ViewPosition", "Rows", "Columns")
_FRONTAL: Final = ("AP", "PA")
_MARKS: Final = {"1": "1", "0": "0", "-1": "u", "": "-"}
"""A label in a table, and its character in a film's record."""

PUBLISHED: Final = (
    Published(what="films of all views", count=377_110, source="data set"),
    Published(what="studies with labels of CheXpert", count=227_827, source="data set"),
    Published(what="films with a report in validate.jsonl", count=1_879, source="paper"),
    Published(what="films with a report in test.jsonl", count=3_082, source="paper"),
)


class Place(NamedTuple):
    """The place of a line in a file; crc: checksum of its bytes, so that a line that was made anew is another one."""

    file: str
    offset: int
    crc: int


def places_of(folder: Path) -> Iterator[tuple[str, str, Place]]:
    """Yield split, name and place of each line. Raises ModelError if a file cannot be read."""
    for split in SPLITS:
        path, offset = folder / f"{split}.jsonl", 0
        if not path.is_file():  # as of a miniature: a split without films has no file
            continue
        with path.open("rb") as file:
            for line in file:
                try:
                    name = Path(json.loads(line)["file"]).stem
                except (KeyError, TypeError, ValueError) as error:
                    raise ModelError(f"{path}, byte {offset}: is no line of a film; prepare mimic again") from error
                yield split, name, Place(file=str(path), offset=offset, crc=zlib.crc32(line))
                offset += len(line)


def line_at(place: Place, out: Path) -> FilmLine:
    """Read a line, for a file of lines in another folder."""
    path = Path(place.file)
    with path.open("rb") as file:
        file.seek(place.offset)
        line = cast("FilmLine", json.loads(file.readline()))
    line["file"] = os.path.relpath((path.parent / line["file"]).resolve(), out.resolve())
    return line


class _Film(NamedTuple):
    picture: str
    report: str
    subject: str
    study: str
    view: str
    size: tuple[int, int]
    chexpert: str


def listing(source: Path, reports: Path) -> Listing[_Film]:
    """List the frontal films by their split: train.jsonl, validate.jsonl, test.jsonl.

    reports: the folder that has files/p10/p10000032/s50414267.txt
    Raises ModelError that names file, line and column of what is missing or wrong.
    """
    if not (reports / "files").is_dir():
        raise ModelError(f"{reports / 'files'} is missing; name the folder of the reports by --reports, unpacked")
    counts = Counter[str]()
    splits = {
        row.text("dicom_id"): row.one_of("split", SPLITS)
        for row in rows_of(_table(source, "split"), ("dicom_id", "split"))
    }
    chexpert = _labels(_table(source, "chexpert"))
    counts["studies with labels of CheXpert"] = len(chexpert)
    films: dict[str, list[_Film]] = {split: [] for split in SPLITS}
    for row in rows_of(_table(source, "metadata"), _METADATA):
        counts["films of all views"] += 1
        if (name := row.text("dicom_id")) not in splits:
            raise row.refused(
                "dicom_id", f"{name} is not in {_table(source, 'split').name}; download both tables again"
            )
        split = splits.pop(name)
        if (view := row.cells["ViewPosition"].strip()) not in _FRONTAL:
            counts["films that are not frontal, left out"] += 1
            continue
        films[split].append(_film(row, view, source, reports, chexpert))
    counts["films of the split without metadata, left out"] = len(splits)
    return Listing(
        films=[(split, film) for split in SPLITS for film in films[split]],
        make=make,
        counts=counts,
        published=PUBLISHED,
    )


def make(film: _Film, out: Path) -> Made:
    """Make the line of a film."""
    counts, path = Counter[str](), Path(film.picture)
    if (size := picture_size(path)) != list(film.size):
        raise ModelError(
            f"{path} has {size[0]} x {size[1]} pixels, but the metadata say {film.size}; download it again"
        )
    line: FilmLine = {
        "file": relative(path, out),
        "size": size,
        "patient": film.subject,
        "study": film.study,
        "gray": AS_STORED,
        "view": film.view,
    }
    if film.chexpert:
        labels = {key: mark != "0" for key, mark in zip(CHEXPERT, film.chexpert, strict=True) if mark != "-"}
        line |= {"labels": labels, "mined": list(labels)}
        counts["uncertain labels, taken as present"] = film.chexpert.count("u")
    else:
        counts["films without labels of CheXpert"] = 1
    if sentences := _sentences(Path(film.report)):
        line |= {"report": " ".join(sentence["text"] for sentence in sentences), "sentences": sentences}
        counts["sentences"] = len(sentences)
    else:
        counts["films without findings and impression"] = 1
    return Made(line, counts)


def _table(source: Path, name: str) -> Path:
    return first_of(source, f"{_VERSION}-{name}.csv.gz", f"{_VERSION}-{name}.csv")


def _labels(path: Path) -> dict[str, str]:
    """Return the labels of each study: a character for each class, in the order of CHEXPERT."""
    labels = {}
    for row in rows_of(path, ("subject_id", "study_id", *CHEXPERT_COLUMNS)):
        labels[row.text("study_id")] = "".join(_mark(row, column) for column in CHEXPERT_COLUMNS)
    return labels


def _mark(row: Row, column: str) -> str:
    value = row.cells[column].strip().removesuffix(".0")
    if value not in _MARKS:
        raise row.refused(column, f"{row.cells[column]!r} is none of 1.0, 0.0, -1.0 and blank")
    return _MARKS[value]


def _film(row: Row, view: str, source: Path, reports: Path, chexpert: Mapping[str, str]) -> _Film:
    subject, study, name = row.text("subject_id"), row.text("study_id"), row.text("dicom_id")
    folder = Path("files", f"p{subject[:2]}", f"p{subject}")
    return _Film(
        picture=str(source / folder / f"s{study}" / f"{name}.jpg"),
        report=str(reports / folder / f"s{study}.txt"),
        subject=subject,
        study=study,
        view=view,
        size=(row.size("Columns"), row.size("Rows")),
        chexpert=chexpert.get(study, ""),
    )


def _sentences(path: Path) -> list[SentenceLine]:
    """Read a report's sentences, labeled by this project's rules. Raises ModelError if it is missing."""
    try:
        report = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{path} cannot be read ({error}); unpack mimic-cxr-reports.zip there") from error
    return [_labeled(sentence) for sentence in sentences_of(report)]


def _labeled(text: str) -> SentenceLine:
    labeler = _labeler()
    marks = labeler.label(text)
    found = [key for key in labeler.classes if key in marks and key in CHEXPERT and key != NO_FINDING]
    return {"text": text, "positive": any(says(marks, key) for key in found), "findings": found}


@cache
def _labeler() -> RuleLabeler:
    return RuleLabeler()
