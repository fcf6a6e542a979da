"""Runs the model on all films of a set and computes the figures of all tasks (design §8)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from language.labels import Labeler
from models.evaluation import anatomy, detection, hints, ratio, references, regions, reports
from models.evaluation.bootstrap import Bootstrap
from models.evaluation.calibration import calibration_error, reliability
from models.evaluation.cases import CaseSource, Truth
from models.evaluation.evaluated_model import EvaluatedModel, Observation, Weighed, as_read
from models.evaluation.references import Habits
from models.evaluation.request import Task
from models.progress import ProgressReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """The labels and the model's answers, film by film."""

    truths: Sequence[Truth]
    said: Sequence[Observation]


def observe(model: EvaluatedModel, films: CaseSource, tasks: Collection[Task], report: ProgressReport) -> Observed:
    """Run the model on every film. Raises ModelError if a film cannot be read."""
    truths, said = [], []
    for index in range(len(films)):
        case = films.load(index)
        truths.append(case.truth)
        said.append(model.observe(case, tasks))
        report("reading films", index + 1, len(films))
    return Observed(truths=truths, said=said)


def weigh(model: EvaluatedModel, films: CaseSource, report: ProgressReport) -> tuple[list[Truth], list[Weighed]]:
    """Compute for every film the numbers that decisions are made from."""
    truths, weighed = [], []
    for index in range(len(films)):
        case = films.load(index)
        truths.append(case.truth)
        weighed.append(model.weigh(case))
        report("weighing films", index + 1, len(films))
    return truths, weighed


def figures(
    observed: Observed, tasks: Collection[Task], *, habits: Habits, labeler: Labeler, bootstrap: Bootstrap
) -> dict[str, dict[str, object]]:
    """Compute the figures of these tasks, each with its reference figures."""
    makers: dict[Task, Callable[[], dict[str, object]]] = {
        "detection": lambda: _detection(observed, habits, bootstrap),
        "anatomy": lambda: _anatomy(observed, habits, bootstrap),
        "region_classification": lambda: _regions(observed, habits, bootstrap),
        "report": lambda: _report(observed, labeler, bootstrap),
        "hints": lambda: hints.measure(
            observed.truths, [observation.hints for observation in observed.said], bootstrap
        ),
    }
    return {task: make() for task, make in makers.items() if task in tasks}


def _detection(observed: Observed, habits: Habits, bootstrap: Bootstrap) -> dict[str, object]:
    truths = observed.truths
    found = [observation.found for observation in observed.said if observation.found is not None]
    readings = [observation.reading for observation in observed.said if observation.reading is not None]
    made = detection.measure(truths, found, bootstrap)
    if readings:
        read = detection.Precision(truths, [as_read(reading) for reading in readings])
        made |= {"as_read": {**read.figures(), "per_class": read.per_class()}}
    return made | {"references": {"constant_box": references.constant_detection(truths, habits)}}


def _anatomy(observed: Observed, habits: Habits, bootstrap: Bootstrap) -> dict[str, object]:
    truths = observed.truths
    constants = {"constant_box": habits.regions, "best_constant_box": references.best_constants(truths)}
    return {
        **anatomy.measure(truths, [observation.regions for observation in observed.said], bootstrap),
        **ratio.measure(truths, [observation.chest for observation in observed.said]),
        "references": {
            name: references.constant_regions(truths, boxes, bootstrap) for name, boxes in constants.items()
        },
    }


def _regions(observed: Observed, habits: Habits, bootstrap: Bootstrap) -> dict[str, object]:
    judged = regions.judged_of(observed.truths, [observation.region_scores for observation in observed.said])
    return regions.measure(judged, bootstrap) | {
        "references": {"region_identity": references.identity(observed.truths, habits)}
    }


def _report(observed: Observed, labeler: Labeler, bootstrap: Bootstrap) -> dict[str, object]:
    truths = reports.with_labels_of_reports(observed.truths, labeler)
    by_images = sum(bool(truth.labels) for truth in observed.truths)
    readings = [observation.reading for observation in observed.said if observation.reading is not None]
    texts = [" ".join(sentence.text for sentence in reading.sentences) for reading in readings]
    states = [
        {prompt.key: prompt.state == "present" for prompt in reading.prompts if prompt.state is not None}
        for reading in readings
    ]
    probabilities = [
        (prompt.probability, truth.labels[prompt.key])
        for truth, reading in zip(truths, readings, strict=True)
        for prompt in reading.prompts
        if prompt.probability is not None and prompt.key in truth.labels
    ]
    said, there = (np.array(column) for column in zip(*probabilities, strict=True))
    decided = reports.labels_of(truths, states, labeler.classes)
    return reports.measure(truths, texts, labeler, bootstrap) | {
        "labeled_by_images": by_images,
        "labeled_by_reports": sum(bool(truth.labels) for truth in truths) - by_images,
        "decisions": {**reports.efficacy(decided), "per_class": reports.per_class(decided)},
        "calibration_error": calibration_error(said, there.astype(np.bool_)),
        "reliability": reliability(said, there.astype(np.bool_)),
        "sentences_per_film": float(np.mean([len(reading.sentences) for reading in readings])),
        "references": {"all_positive": references.all_positive(truths, labeler)},
    }
