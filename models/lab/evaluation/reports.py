"""How good reports are: the classes they find compared with the labels, and their words with those of true reports.

The labels of a film are the truth. If it has none, the labeler labels its true report, as it does generated ones.
Clinical efficacy is the F1 of the labeler's marks, micro-averaged over all known classes of all films, computed by
scikit-learn. BLEU is sacrebleu's over the whole set, ROUGE-L is rouge-score's, averaged over films; both as fractions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics.bleu import BLEU
from sklearn.metrics import f1_score, precision_score, recall_score

from language.labels import Labeler, says
from models.lab.evaluation.cases import Truth
from models.lab.evaluation.detection import SUBSETS
from models.lab.evaluation.statistics import Bootstrap, Figures, Indices, mean
from models.lab.phantoms import FINDINGS

BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Labels:
    """What is present and what is reported, [film, class]; known: on which films a class counts."""

    classes: tuple[str, ...]
    there: BoolArray
    said: BoolArray
    known: BoolArray

    def of(self, keys: Sequence[str], films: Indices | slice = slice(None)) -> tuple[BoolArray, BoolArray]:
        """Return what is present and what is reported of some classes, flattened."""
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
    """Return for every report which classes it finds."""
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
        **sentence_figures([truth.report for truth in truths], reports),
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


def sentence_figures(references: Sequence[str], reports: Sequence[str]) -> dict[str, float]:
    """Compare the words of reports, on films with a true report; empty if there are none."""
    told = [(reference, report) for reference, report in zip(references, reports, strict=True) if reference]
    if not told:
        return {}
    true, generated = zip(*told, strict=True)
    return {"bleu": bleu(true, generated), "rouge_l": float(np.mean(rouge_l(true, generated)))}


def bleu(references: Sequence[str], reports: Sequence[str]) -> float:
    """Return the BLEU of all texts together, with the words and the smoothing of sacrebleu."""
    return float(BLEU().corpus_score(list(reports), [list(references)]).score) / 100


def rouge_l(references: Sequence[str], reports: Sequence[str]) -> list[float]:
    """Return the ROUGE-L of each text."""
    scorer = RougeScorer(["rougeL"])
    return [
        float(scorer.score(reference, report)["rougeL"].fmeasure)
        for reference, report in zip(references, reports, strict=True)
    ]


def _table(classes: Sequence[str], rows: Sequence[Mapping[str, bool]]) -> BoolArray:
    return np.array([[row.get(key, False) for key in classes] for row in rows], dtype=np.bool_)
