"""Classification of films: AUROC of each finding, and decisions by thresholds that other patients' films chose.

Readouts and thresholds (`points`) are cross-fitted: chosen on four fifths of the patients, used on the fifth. A
patient's films stay together, and intervals come from drawing patients anew. A radiologist's reading goes before labels
mined from reports; a film is normal if somebody who saw it read it so, never by a mined label alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from language.labels import NO_FINDING
from models.decisions import sigmoid
from models.lab.evaluation.cases import Truth
from models.lab.evaluation.request import CURVE, MOST_FALSE
from models.lab.evaluation.statistics import Bootstrap, Indices, area_under_curve, calibration_error, mean, reliability
from models.lab.evaluation.thresholds import LEAST_POSITIVES, OPACITY, Aim, Labelled, choose
from models.lab.training.split import FOLDS, folds_of

Numbers = NDArray[np.float64]
Marks = NDArray[np.bool_]

LEAST_OF_OTHERS: Final = LEAST_POSITIVES * (FOLDS - 1) // FOLDS
"""How many films of the other folds must show a finding, and how many not, before a threshold is chosen for it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Films:
    """Scores and labels of a set of films; arrays are [film, finding] or [film].

    differences: cosine to the prompt minus cosine to its opposite; there, known: present, and whether that is known
    read_as: a radiologist's reading, "" without one; groups: names of the groups that each film belongs to
    mined_known: whether the label of "no finding" was mined from the film's report
    """

    keys: tuple[str, ...]
    differences: Numbers
    there: Marks
    known: Marks
    patients: NDArray[np.str_]
    read_as: NDArray[np.str_]
    groups: tuple[frozenset[str], ...]
    mined_known: Marks

    def place(self, key: str) -> int:
        """Return the column of a finding."""
        return self.keys.index(key)

    @property
    def normal(self) -> Marks:
        """The films without any finding, see `Truth.is_normal`: [film]."""
        is_seen: Marks = ~self.mined_known | (self.read_as != "")
        return self.there[:, self.place(NO_FINDING)] & is_seen


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Called:
    """Cross-fitted decisions and probabilities [film, finding]; chosen: findings that got a threshold."""

    present: Marks
    probabilities: Numbers
    chosen: frozenset[str]


def films_of(truths: Sequence[Truth], differences: Sequence[Mapping[str, float]]) -> Films:
    """Join labels and scores; each film without a patient's name counts as a separate patient."""
    keys = tuple(differences[0])
    return Films(
        keys=keys,
        differences=np.array([[film[key] for key in keys] for film in differences], dtype=np.float64),
        there=np.array([[truth.labels.get(key, False) for key in keys] for truth in truths], dtype=np.bool_),
        known=np.array([[key in truth.labels for key in keys] for truth in truths], dtype=np.bool_),
        patients=np.array([truth.patient or f"film {number}" for number, truth in enumerate(truths)]),
        read_as=np.array([truth.read_as for truth in truths]),
        groups=tuple(truth.groups for truth in truths),
        mined_known=np.array([truth.mined_normal is not None for truth in truths], dtype=np.bool_),
    )


def measure(
    films: Films,
    bootstrap: Bootstrap,
    *,
    most_false: float = MOST_FALSE,
    left_out: Collection[str] = (),
) -> dict[str, object]:
    """Compute all figures, and the bounds of their 95 % intervals; most_false, left_out: as in `cross_fitted`."""
    called = cross_fitted(films, most_false=most_false, left_out=left_out)
    everything = np.arange(len(films.patients))
    made: dict[str, object] = dict(figures(films, called, everything))
    made["per_class"] = {key: auroc(films, key, everything) for key in films.keys}
    made["positives"] = {key: int(films.there[:, films.place(key)].sum()) for key in films.keys}
    made["known"] = {key: int(films.known[:, films.place(key)].sum()) for key in films.keys}
    made["with_a_threshold"] = sorted(called.chosen)
    chosen = [films.place(key) for key in sorted(called.chosen)]
    known = films.known[:, chosen]
    made["reliability"] = reliability(called.probabilities[:, chosen][known], films.there[:, chosen][known])
    made["curves"] = {
        key: curve(films, key, everything)
        | {"intervals": bootstrap.intervals(partial(curve, films, key), films.patients)}
        for key in sorted(called.chosen - {NO_FINDING})
    }

    def intervals(some: Indices) -> dict[str, list[float]]:
        return bootstrap.intervals(lambda again: figures(films, called, some[again]), films.patients[some])

    made["intervals"] = intervals(everything)
    made["by_group"] = {
        group: {"films": len(some), **figures(films, called, some), "intervals": intervals(some)}
        for group in sorted(frozenset().union(*films.groups))
        if len(some := np.flatnonzero([group in own for own in films.groups]))
    }
    return made


def curve(films: Films, key: str, some: Indices) -> dict[str, float | None]:
    """Return the sensitivity for a finding at each false positive rate of `CURVE`, on films without any finding.

    None where no film shows the finding, or every film shows some finding.
    """
    place = films.place(key)
    scores, normal = films.differences[some, place], films.normal[some]
    there = films.there[some, place] & films.known[some, place]
    falling = np.sort(scores[normal])[::-1]
    is_known = bool(there.any() and len(falling))
    return {
        name: float((scores[there] > falling[int(share * len(falling))]).mean()) if is_known else None
        for name, share in CURVE.items()
    }


def figures(films: Films, called: Called, some: Indices) -> dict[str, float | None]:
    """Compute the figures of some films; None for a figure without the labels that it needs."""
    counted = [key for key in films.keys if films.there[:, films.place(key)].sum() >= LEAST_POSITIVES]
    opacity = films.place(OPACITY)
    scores, read_as = films.differences[some, opacity], films.read_as[some]
    seen = read_as == "Lung Opacity"
    opposed = seen | (read_as == "Normal")
    findings = [place for place, key in enumerate(films.keys) if key != NO_FINDING]
    false = called.present[some][:, findings][films.normal[some]]
    found = called.present[some, opacity][seen]
    chosen = [films.place(key) for key in called.chosen]
    known = films.known[some][:, chosen]
    return {
        "macro_auroc": mean([auroc(films, key, some) for key in counted]),
        "opacity_against_normal": area_under_curve(seen[opposed], scores[opposed]),
        "opacity_against_all_others": area_under_curve(seen[read_as != ""], scores[read_as != ""]),
        "auroc_no_finding": auroc(films, NO_FINDING, some),
        "auroc_no_finding_read": auroc(films, NO_FINDING, some[read_as != ""]),
        "auroc_no_finding_mined": auroc(films, NO_FINDING, some[(read_as == "") & films.mined_known[some]]),
        "false_findings": float(false.sum() / len(false)) if len(false) else None,
        "opacity_sensitivity": float(found.mean()) if len(found) else None,
        "calibration_error": calibration_error(
            called.probabilities[some][:, chosen][known], films.there[some][:, chosen][known]
        )
        if known.any()
        else None,
    }


def auroc(films: Films, key: str, some: Indices) -> float | None:
    """Return the AUROC of a finding; None unless labeled films have it and labeled films lack it."""
    place = films.place(key)
    known = films.known[some, place]
    return area_under_curve(films.there[some, place][known], films.differences[some, place][known])


def cross_fitted(films: Films, *, most_false: float = MOST_FALSE, left_out: Collection[str] = ()) -> Called:
    """Apply to each fold of patients the readouts and thresholds that the other folds chose.

    most_false: the expected number of present findings on the average film without a finding
    A finding with too few positives, and one of `left_out`, gets no threshold and is never called present.
    """
    folds = folds_of(films.patients)
    enough = [key for key in films.keys if films.there[:, films.place(key)].sum() >= LEAST_POSITIVES]
    chosen = frozenset(enough) - frozenset(left_out)
    present = np.zeros(films.there.shape, dtype=np.bool_)
    probabilities = np.zeros(films.there.shape)
    for fold in np.unique(folds):
        others, own = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
        labelled = {key: _labelled(films, key, others) for key in chosen}
        for key, point in choose(labelled, Aim(false_findings=most_false, least=LEAST_OF_OTHERS)).items():
            place, readout = films.place(key), point.readout
            probabilities[own, place] = sigmoid(readout.slope * films.differences[own, place] + readout.offset)
            present[own, place] = probabilities[own, place] >= point.threshold
    return Called(present=present, probabilities=probabilities, chosen=chosen)


def _labelled(films: Films, key: str, some: Indices) -> Labelled:
    """Return scores and labels of a finding, on those of some films that have the label."""
    place = films.place(key)
    differences, known = films.differences[some, place], films.known[some, place]
    return Labelled(
        differences=differences[known], there=films.there[some, place][known], normal=differences[films.normal[some]]
    )
