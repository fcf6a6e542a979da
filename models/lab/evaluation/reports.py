"""The task `report`: classes found in reports compared with the labels.

The labels of a film are the truth. If it has none, the labeler labels its true report, as it does generated ones.
Clinical efficacy is the F1 of the labeler's marks, micro-averaged over all known classes of all films, computed by
scikit-learn.

Of sentences: how many the rules withhold and replace, and how often the network's own one would do. A finding's own
sentence is the one that was generated for it at first; it passes if it was not withheld. Sentences are compared with
decisions, so labels are needed only to say what is called present on films that are normal or show an opacity, after
all that speaks against a finding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import f1_score, precision_score, recall_score

from language.labels import Labeler, says
from models.contract import FilmReading, PromptReading
from models.lab.evaluation.cases import Truth
from models.lab.evaluation.detection import SUBSETS
from models.lab.evaluation.statistics import Bootstrap, Figures, Indices, mean
from models.lab.evaluation.thresholds import OPACITY
from models.lab.phantoms import FINDINGS

BoolArray = NDArray[np.bool_]
_SHARES: Final = {
    "withheld_share": ("withheld", "generated"),
    "replaced_by_rule": ("by_rule", "withheld"),
    "own_present_share": ("own_present", "present"),
    "own_reported_share": ("own_reported", "reported"),
    "by_network_share": ("by_network", "reported"),
    "false_findings": ("present_on_normal", "normal"),
    "opacity_sensitivity": ("opacities_present", "opacities"),
}
"""Figures by the counts that they are the quotients of."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Labels:
    """True and reported classes, [film, class]; known: the films on which a class counts."""

    classes: tuple[str, ...]
    there: BoolArray
    said: BoolArray
    known: BoolArray

    def of(self, keys: Sequence[str], films: Indices | slice = slice(None)) -> tuple[BoolArray, BoolArray]:
        """Return true and reported values of some classes, flattened."""
        columns = [self.classes.index(key) for key in keys if key in self.classes]
        known = self.known[films][:, columns]
        return self.there[films][:, columns][known], self.said[films][:, columns][known]


def labels_of(truths: Sequence[Truth], said: Sequence[Mapping[str, bool]], classes: Sequence[str]) -> Labels:
    """Join the labels of films with what is reported; a class that is not mentioned counts as absent."""
    return Labels(
        classes=tuple(classes),
        there=_table(classes, [truth.labels for truth in truths]),
        said=_table(classes, said),
        known=np.array([[key in truth.labels for key in classes] for truth in truths], dtype=np.bool_),
    )


def with_labels_of_reports(truths: Sequence[Truth], labeler: Labeler) -> list[Truth]:
    """Label the films that have a report but no labels by their report; a class that it does not mention is absent."""
    return [
        replace(truth, labels=said_of(labeler, [truth.report])[0])
        if truth.report.strip() and not truth.labels
        else truth
        for truth in truths
    ]


def said_of(labeler: Labeler, reports: Sequence[str]) -> list[dict[str, bool]]:
    """Return the classes that each report finds."""
    return [{key: says(marks, key) for key in labeler.classes} for marks in map(labeler.label, reports)]


def efficacy(labels: Labels, films: Indices | slice = slice(None)) -> Figures:
    """Return micro F1, precision and recall, and the F1 of the ten findings and their subsets."""
    everything = labels.of(labels.classes, films)
    subsets = {"findings": FINDINGS, **SUBSETS}
    return {
        "ce_micro_f1": f1(*everything),
        "ce_micro_precision": float(precision_score(*everything, zero_division=0.0)) if len(everything[0]) else None,
        "ce_micro_recall": float(recall_score(*everything, zero_division=0.0)) if len(everything[0]) else None,
        **{f"{name}_f1": f1(*labels.of(keys, films)) for name, keys in subsets.items()},
    }


def per_class(labels: Labels) -> dict[str, float | None]:
    """Return the F1 of each class; None if no film has it and no report finds it."""
    return {key: f1(*labels.of([key])) for key in labels.classes}


def f1(there: BoolArray, said: BoolArray) -> float | None:
    """Return the F1 of two rows; None if both are all False."""
    if not (there.any() or said.any()):
        return None
    return float(f1_score(there, said, zero_division=0.0))


def measure(
    truths: Sequence[Truth], reports: Sequence[str], labeler: Labeler, bootstrap: Bootstrap
) -> dict[str, object]:
    """Compute all figures of reports."""
    labels = labels_of(truths, said_of(labeler, reports), labeler.classes)
    return {
        **figures_of(labels, labeler.name),
        "deviations": bootstrap.deviations(lambda films: efficacy(labels, films), len(truths)),
    }


def figures_of(labels: Labels, labeler: str) -> dict[str, object]:
    """Compute clinical efficacy, together and class by class; labeler: the name of the one whose labels they are."""
    by_class = per_class(labels)
    return {
        **efficacy(labels),
        "ce_macro_f1": mean(list(by_class.values())),
        "per_class": by_class,
        "films_with": {key: int(count) for key, count in zip(labels.classes, labels.there.sum(axis=0), strict=True)},
        "films_said_to": {key: int(count) for key, count in zip(labels.classes, labels.said.sum(axis=0), strict=True)},
        "labeler": labeler,
    }


def _table(classes: Sequence[str], rows: Sequence[Mapping[str, bool]]) -> BoolArray:
    return np.array([[row.get(key, False) for key in classes] for row in rows], dtype=np.bool_)


def measure_sentences(
    readings: Sequence[FilmReading], truths: Sequence[Truth], bootstrap: Bootstrap
) -> dict[str, object]:
    """Compute the figures of checked readings."""
    counted = [counts_of(*film) for film in zip(readings, truths, strict=True)]
    table = np.array([list(film.values()) for film in counted], dtype=np.int64)

    def counts(films: Indices) -> dict[str, int]:
        return dict(zip(counted[0], table[films].sum(axis=0).tolist(), strict=True))

    def figures(films: Indices) -> Figures:
        totals = counts(films)
        return {
            name: totals[part] / totals[whole] if totals[whole] else None for name, (part, whole) in _SHARES.items()
        }

    patients = np.array([truth.patient or f"film {number}" for number, truth in enumerate(truths)])
    reasons = Counter(withheld.reason for reading in readings for withheld in reading.withheld)
    everything = np.arange(len(readings))
    return {
        **figures(everything),
        **counts(everything),
        "per_reason": dict(sorted(reasons.items())),
        "deviations": bootstrap.deviations(figures, len(readings)),
        "intervals": bootstrap.intervals(figures, patients),
    }


def counts_of(reading: FilmReading, truth: Truth) -> dict[str, int]:
    """Count the sentences of one film, and its findings, by what became of their sentences."""
    withheld = {sentence.prompt for sentence in reading.withheld}
    reported = [prompt for prompt in reading.pathologies if prompt.state is not None and prompt.state.is_reported]
    own = [prompt for prompt in reported if prompt.generated and prompt.key not in withheld]
    present = _present(reported)
    is_normal, is_read = truth.is_normal, truth.read_as == "Lung Opacity"
    makers = [reading.sentences[prompt.sentence].by for prompt in reported if prompt.sentence is not None]
    return {
        "generated": sum(bool(prompt.generated) for prompt in reading.prompts),
        "withheld": len(reading.withheld),
        "by_rule": makers.count("rule"),
        "present": len(present),
        "own_present": len(_present(own)),
        "reported": len(reported),
        "own_reported": len(own),
        "by_network": sum(maker.startswith("network") for maker in makers),
        "normal": int(is_normal),
        "present_on_normal": len(present) if is_normal else 0,
        "opacities": int(is_read),
        "opacities_present": int(is_read and OPACITY in [prompt.key for prompt in present]),
    }


def _present(prompts: Sequence[PromptReading]) -> list[PromptReading]:
    return [prompt for prompt in prompts if prompt.state == "present"]
