"""Marks the classes that texts find, by a labeler; writes the texts to `texts.csv`.

A row has the task of a text, its film as the line names it, its number on that film, from 0, and its kind: true or
generated.

Clinical efficacy is as published: of 14 classes, of 5, and of 5 where uncertain counts too ("5+"). A text finds a class
that its labeler marks positive; of "5+" also one that it marks uncertain. An empty text is marked "no finding" alone.
The F1 of a class counts as the 14 do. Micro figures count all texts and classes together. Macro figures are means over
classes, where what has no value is 0. Figures by example are means over the films that have a value, each with all its
texts; as published the F1 of a film without a hit has none. `example_f1_of_all` counts it as 0.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from language.labels import NO_FINDING, Labeler, Mark
from models.lab.evaluation.request import PublishedTask
from models.lab.evaluation.statistics import Figures, Indices
from models.lab.tasks.labels import CHEXPERT
from models.progress import ProgressReport

Counts = NDArray[np.int64]
"""Hits, false alarms and misses, [these, film, class]."""
Marks = Mapping[str, Mark]

FIVE: Final = ("atelectasis", "cardiomegaly", "consolidation", "edema", "pleural_effusion")
_FIGURES: Final = ("precision", "recall", "f1")
_KINDS: Final = ("true", "generated")
_COLUMNS: Final = ("task", "film", "number", "kind", "Report Impression")
"""The last is the one that CheXbert's own program reads."""


class _Counted(NamedTuple):
    classes: tuple[str, ...]
    marks: frozenset[Mark]


_SETS: Final[Mapping[str, _Counted]] = {
    "14": _Counted(CHEXPERT, frozenset(("positive",))),
    "5": _Counted(FIVE, frozenset(("positive",))),
    "5_plus": _Counted(FIVE, frozenset(("positive", "uncertain"))),
}


def counts_of(films: Sequence[int], true: Sequence[Marks], generated: Sequence[Marks]) -> dict[str, Counts]:
    """Count hits, false alarms and misses of each film, for each set of classes.

    films: the number of each text's film, from 0; true, generated: the marks of each text
    """
    counts = {}
    for name, (classes, marks) in _SETS.items():
        there, said = (
            np.array([[found.get(key) in marks for key in classes] for found in side], dtype=np.bool_)
            for side in (true, generated)
        )
        counts[name] = np.zeros((3, max(films) + 1, len(classes)), dtype=np.int64)
        for table, which in zip(counts[name], (there & said, ~there & said, there & ~said), strict=True):
            np.add.at(table, np.array(films, dtype=np.intp), which)
    return counts


def efficacy_of(counts: Mapping[str, Counts], films: Indices) -> Figures:
    """Return all figures of these films, by name, such as `ce_14_micro_f1`; None if a figure has no value."""
    made: dict[str, float | None] = {}
    for name, everything in counts.items():
        own = everything[:, films]
        by_film = _scores(own.sum(axis=2))
        with_hits = np.where(own[0].sum(axis=1) > 0, by_film[2], np.nan)
        averages = {
            "micro": _scores(own.sum(axis=(1, 2))),
            "macro": np.nan_to_num(_scores(own.sum(axis=1))).mean(axis=1),
            "example": [_mean(by_film[0]), _mean(by_film[1]), _mean(with_hits)],
        }
        for average, values in averages.items():
            made |= {f"ce_{name}_{average}_{key}": _known(value) for key, value in zip(_FIGURES, values, strict=True)}
        made[f"ce_{name}_example_f1_of_all"] = _known(_mean(by_film[2]))
    of_classes = _scores(counts["14"][:, films].sum(axis=1))[2]
    return made | {f"ce_14_f1_{key}": _known(value) for key, value in zip(CHEXPERT, of_classes, strict=True)}


def _scores(counts: Counts) -> NDArray[np.float64]:
    """Compute precision, recall and F1, each of the shape of hits; NaN where it has no value."""
    hits, wrong, missed = counts
    with np.errstate(invalid="ignore"):
        return np.stack([hits / (hits + wrong), hits / (hits + missed), 2 * hits / (2 * hits + wrong + missed)])


def _mean(values: NDArray[np.float64]) -> float:
    """Return the mean of the values that there are; NaN if there is none."""
    there = values[~np.isnan(values)]
    return float(there.mean()) if len(there) else np.nan


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


class Told(NamedTuple):
    """The true and the generated texts of a film, in the same order."""

    true: tuple[str, ...]
    generated: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Marked:
    """The marks of the texts of all films, one after the other; labeler: whose they are."""

    labeler: str
    true: Sequence[Marks]
    generated: Sequence[Marks]


def mark(labeler: Labeler, task: PublishedTask, films: Sequence[tuple[str, Told]], report: ProgressReport) -> Marked:
    """Mark the texts of films by what they say, each text once; an empty one finds nothing."""
    texts = list(dict.fromkeys(text for _, told in films for text in (*told.true, *told.generated)))
    found = dict[str, Marks]()
    for number, text in enumerate(texts, 1):
        found[text] = labeler.label(text) if text.strip() else {NO_FINDING: "positive"}
        report(f"labeling, {task}", number, len(texts))
    return Marked(
        labeler=labeler.name,
        true=[found[text] for _, told in films for text in told.true],
        generated=[found[text] for _, told in films for text in told.generated],
    )


def start_texts(path: Path) -> None:
    """Begin the file of texts. Raises OSError."""
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerow(_COLUMNS)


def write_texts(path: Path, task: PublishedTask, films: Sequence[tuple[str, Told]]) -> None:
    """Append the texts of a task, film by film, the true ones before the generated ones. Raises OSError."""
    with path.open("a", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(
            (task, film, number, kind, text)
            for film, told in films
            for kind, texts in zip(_KINDS, told, strict=True)
            for number, text in enumerate(texts)
        )
