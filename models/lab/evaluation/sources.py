"""How well a linear probe on image features tells which source a normal film is from.

If a network can tell the source, it can learn the source instead of the disease. All films pass one path: the central
square, 224 x 224 pixels, gray, JPEG. A linear probe on the mean over patches is fitted on four fifths of the patients
and scored on the fifth; of several penalties the one that separates best counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from language.labels import NO_FINDING
from models.engines import FloatArray
from models.errors import ModelError
from models.lab.evaluation.boxes_file import FileFilms
from models.lab.evaluation.cases import EvaluationCase
from models.lab.evaluation.curves import area_under_curve
from models.lab.evaluation.evaluated_model import EvaluatedModel
from models.lab.evaluation.films import drawn_by_patient, interval
from models.lab.evaluation.folds import FOLDS
from models.lab.training.split import part_of
from models.progress import ProgressReport
from models.reading.decision import decide

SIDE: Final = 224
QUALITY: Final = 90
PENALTIES: Final = (0.001, 0.01, 0.1, 1.0)
_ORDER: Final = 1 << 32


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NormalFilms:
    """Normal films of one file: image features [film, dim], patients [film], findings called present in all."""

    name: str
    features: NDArray[np.float64]
    patients: NDArray[np.str_]
    called: int


def source_of(model: EvaluatedModel, films: FileFilms, name: str, *, most: int, report: ProgressReport) -> NormalFilms:
    """Encode the normal films of a file (`Truth.is_normal`), at most so many, drawn by a hash of their names."""
    order = sorted(range(len(films)), key=lambda index: part_of(films.name(index), parts=_ORDER))
    features: list[FloatArray] = []
    patients: list[str] = []
    called = 0
    for index in order:
        if len(features) == most:
            break
        case = films.load(index)
        if not case.truth.is_normal:
            continue
        look = model.reader.look(one_path(case))
        features.append(look.patches.features[0].mean(axis=0))
        patients.append(case.truth.patient)
        called += sum(
            decide(model.manifest.decisions, key, value, trusted="real") == "present"
            for key, value in model.probabilities(look).items()
            if key != NO_FINDING
        )
        report(f"films of {name}", len(features), most)
    if len(set(patients)) < FOLDS:
        raise ModelError(f"{name} has normal films of fewer than {FOLDS} patients; give another file")
    return NormalFilms(
        name=name, features=np.array(features, dtype=np.float64), patients=np.array(patients), called=called
    )


def one_path(case: EvaluationCase) -> FloatArray:
    """Return the central square of a film at 224 x 224, stored and read as JPEG; gray, 0..1."""
    rows, columns = case.gray.shape
    side = min(rows, columns)
    top, left = (rows - side) // 2, (columns - side) // 2
    square = cv2.resize(case.gray[top : top + side, left : left + side], (SIDE, SIDE), interpolation=cv2.INTER_AREA)
    _, stored = cv2.imencode(".jpg", np.rint(square * 255).astype(np.uint8), [cv2.IMWRITE_JPEG_QUALITY, QUALITY])
    again = np.asarray(cv2.imdecode(stored, cv2.IMREAD_GRAYSCALE), dtype=np.float32)
    return again / np.float32(255)


def measure(first: NormalFilms, second: NormalFilms, *, resamples: int, seed: int = 0) -> dict[str, object]:
    """Compute the AUROC of the probe with its interval by patient, and the false findings on films of each source."""
    features = np.concatenate([first.features, second.features])
    is_second = np.repeat([False, True], [len(first.patients), len(second.patients)])
    patients = np.concatenate(
        [[f"{source.name} {patient}" for patient in source.patients] for source in (first, second)]
    )
    scores = max((_scores(features, is_second, patients, penalty) for penalty in PENALTIES), key=lambda own: own[0])[1]

    def figures(films: NDArray[np.intp]) -> dict[str, float | None]:
        return {"source_auroc": area_under_curve(is_second[films], scores[films])}

    drawn = [figures(films) for films in drawn_by_patient(patients, resamples=resamples, seed=seed)]
    return {
        **figures(np.arange(len(patients))),
        "intervals": interval(drawn),
        "by_source": {
            source.name: {"films": len(source.patients), "false_findings": source.called / len(source.patients)}
            for source in (first, second)
        },
    }


def _scores(
    features: NDArray[np.float64], is_second: NDArray[np.bool_], patients: NDArray[np.str_], penalty: float
) -> tuple[float, NDArray[np.float64]]:
    """Return the AUROC and the scores of a probe that did not see the patient of the film."""
    probe = make_pipeline(StandardScaler(), LogisticRegression(C=penalty, class_weight="balanced", max_iter=1000))
    folds = GroupKFold(FOLDS).split(features, is_second, patients)
    scores = cross_val_predict(probe, features, is_second, cv=folds, method="decision_function")
    return area_under_curve(is_second, scores) or 0.0, np.asarray(scores, dtype=np.float64)
