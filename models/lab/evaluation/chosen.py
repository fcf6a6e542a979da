"""Which films chose a model's decisions. Figures on them would say how well the choice fits them, and no more.

`models.calibrate` writes their digests into the manifest. `models.evaluate` refuses to report on them, or chooses anew
for each fold of patients on the films of all others.
"""

from __future__ import annotations

import hashlib

import numpy as np

from models.engines import FloatArray
from models.errors import ModelError
from models.lab.evaluation.cases import CaseSource
from models.lab.evaluation.evaluated_model import EvaluatedModel
from models.lab.evaluation.films import LEAST_OF_OTHERS, films_of
from models.lab.evaluation.thresholds import Aim
from models.lab.evaluation.tuning import tune
from models.lab.training.split import folds_of
from models.manifest import Manifest
from models.progress import ProgressReport


def digest(gray: FloatArray) -> str:
    """Return what a film is recognized by: a hash of its gray values [row, column], 0..1, in 256 steps."""
    return hashlib.sha256(np.round(gray * 255).astype(np.uint8).tobytes()).hexdigest()[:16]


def require_others(manifest: Manifest, films: CaseSource, report: ProgressReport) -> None:
    """Raise ModelError if a film of these chose the manifest's decisions."""
    chose, count = frozenset(manifest.chosen_on), 0
    for index in range(len(films) if chose else 0):
        count += digest(films.load(index).gray) in chose
        report("looking for films that chose", index + 1, len(films))
    if count:
        raise ModelError(
            f"{count} of {len(films)} films chose the thresholds of this model: figures on them would be no results; "
            "give --folds, which chooses for each fifth of the patients on films of the others, or give other films"
        )


def for_each_film(
    model: EvaluatedModel, films: CaseSource, *, population: str, most_false: float, report: ProgressReport
) -> list[EvaluatedModel]:
    """Return for each film the model with the decisions that the films of other patients choose, in five folds.

    population: of the films; most_false: as in `films.cross_fitted`
    A finding that the model leaves out stays so. Raises ModelError if no film has a label of any finding.
    """
    truths, weighed = [], []
    for index in range(len(films)):
        case = films.load(index)
        truths.append(case.truth)
        weighed.append(model.weigh(case))
        report("weighing films", index + 1, len(films))
    folds = folds_of(films_of(truths, [film.differences for film in weighed]).patients)
    aim = Aim(false_findings=most_false, least=LEAST_OF_OTHERS)

    def chosen_without(fold: int) -> EvaluatedModel:
        others = np.flatnonzero(folds != fold)
        own = [truths[index] for index in others], [weighed[index] for index in others]
        left_out = model.manifest.decisions.left_out
        return model.deciding_by(tune(model.manifest, *own, population=population, aim=aim, left_out=left_out))

    by_fold = {fold: chosen_without(fold) for fold in np.unique(folds).tolist()}
    return [by_fold[fold] for fold in folds.tolist()]
