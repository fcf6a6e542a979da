"""Runnable: says how well the image features of normal films tell which of two files a film comes from.

    python -m models.evaluation.source_probe --model DIR --data A.jsonl --data B.jsonl [--held-out FILE] [--out DIR]

If a network can tell the source, it can learn the source instead of the disease. All films pass one path: the central
square, 224 x 224 pixels, gray, JPEG. A linear probe on the mean over patches is fitted on four fifths of the patients
and scored on the fifth; of several penalties the one that separates best counts. `--held-out` names the patients of A
that no training saw. Exit 0: done; 1: a file could not be written; 2: wrong input.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GroupKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from language.labels import NO_FINDING
from models import progress
from models.command import command_parser, exit_status, run
from models.engines import ENGINES
from models.errors import ModelError
from models.evaluation.boxes_file import FileFilms, read_films
from models.evaluation.cases import EvaluationCase
from models.evaluation.document import markdown, rounded
from models.evaluation.evaluated_model import EvaluatedModel, open_model
from models.evaluation.films import FOLDS, drawn_by_patient, interval
from models.evaluation.prompt_set import DEFAULT, read_questions
from models.progress import ProgressReport
from models.reading.answers import FloatArray
from models.reading.decision import decide
from models.training.split import part_of, read_held_out

SIDE: Final = 224
QUALITY: Final = 90
PENALTIES: Final = (0.001, 0.01, 0.1, 1.0)
_ORDER: Final = 1 << 32


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Source:
    """Normal films of one file: image features [film, dim], patients [film], findings called present in all."""

    name: str
    features: NDArray[np.float64]
    patients: NDArray[np.str_]
    called: int


def main(arguments: list[str]) -> int:
    """Run the command. Returns its exit status."""
    parser = command_parser("models.evaluation.source_probe", description="Tell the sources of normal films apart.")
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="the model directory")
    parser.add_argument("--data", type=Path, required=True, action="append", metavar="FILE.jsonl", help="give two")
    parser.add_argument("--held-out", metavar="SHARE_OR_FILE", help="only these patients of the first file")
    parser.add_argument("--most", type=int, default=600, help="the most films of a file; default: %(default)s")
    parser.add_argument("--engine", choices=ENGINES, default="onnx", help="default: %(default)s")
    parser.add_argument("--resamples", type=int, default=100, help="for the interval; default: %(default)s")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write evaluation.json for the model card here")
    options = parser.parse_args(arguments)
    return exit_status(lambda: _probe(options))


def _probe(options: argparse.Namespace) -> int:
    if len(options.data) != 2:
        raise ModelError("two sources are compared; give --data twice")
    model = open_model(options.model, engine=options.engine, questions=read_questions(DEFAULT))
    held_out = None if options.held_out is None else read_held_out(options.held_out)
    first, second = options.data
    with progress.on(sys.stderr) as report:
        sources = [
            source_of(model, read_films(first, model.manifest, held_out=held_out), first.stem, options.most, report),
            source_of(model, read_films(second, model.manifest), second.stem, options.most, report),
        ]
    document: dict[str, object] = {
        "data": " and ".join(f"boxes:{path}" for path in options.data),
        "count": sum(len(source.patients) for source in sources),
        "tasks": {"sources": rounded(measure(*sources, resamples=options.resamples))},
        "model": {
            "name": model.manifest.name,
            "version": model.manifest.version,
            "weights_sha256": model.reader.weights_sha256,
            "engine": model.reader.engine_name,
        },
        "held_out": options.held_out and Path(options.held_out).name,
    }
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "evaluation.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    print(markdown(document).rstrip())
    return 0


def source_of(model: EvaluatedModel, films: FileFilms, name: str, most: int, report: ProgressReport) -> Source:
    """Encode the normal films of a file, at most so many, drawn by a hash of their names."""
    order = sorted(range(len(films)), key=lambda index: part_of(films.name(index), parts=_ORDER))
    features: list[FloatArray] = []
    patients: list[str] = []
    called = 0
    for index in order:
        if len(features) == most:
            break
        case = films.load(index)
        if not case.truth.labels.get(NO_FINDING):
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
    return Source(name=name, features=np.array(features, dtype=np.float64), patients=np.array(patients), called=called)


def one_path(case: EvaluationCase) -> FloatArray:
    """Return the central square of a film at 224 x 224, stored and read as JPEG; gray, 0..1."""
    rows, columns = case.gray.shape
    side = min(rows, columns)
    top, left = (rows - side) // 2, (columns - side) // 2
    square = cv2.resize(case.gray[top : top + side, left : left + side], (SIDE, SIDE), interpolation=cv2.INTER_AREA)
    _, stored = cv2.imencode(".jpg", np.rint(square * 255).astype(np.uint8), [cv2.IMWRITE_JPEG_QUALITY, QUALITY])
    again = np.asarray(cv2.imdecode(stored, cv2.IMREAD_GRAYSCALE), dtype=np.float32)
    return again / np.float32(255)


def measure(first: Source, second: Source, *, resamples: int, seed: int = 0) -> dict[str, object]:
    """Compute the AUROC of the probe with its interval by patient, and the false findings on films of each source."""
    features = np.concatenate([first.features, second.features])
    is_second = np.repeat([False, True], [len(first.patients), len(second.patients)])
    patients = np.concatenate(
        [[f"{source.name} {patient}" for patient in source.patients] for source in (first, second)]
    )
    scores = max((_scores(features, is_second, patients, penalty) for penalty in PENALTIES), key=lambda own: own[0])[1]

    def figures(films: NDArray[np.intp]) -> dict[str, float | None]:
        own = is_second[films]
        return {"source_auroc": float(roc_auc_score(own, scores[films])) if own.any() and not own.all() else None}

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
    return float(roc_auc_score(is_second, scores)), np.asarray(scores, dtype=np.float64)


if __name__ == "__main__":
    run(main)
