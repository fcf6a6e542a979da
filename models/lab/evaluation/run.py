"""Runs the model on all films of a set and computes the figures of all tasks (design §8).

Every figure stands beside a baseline that uses no image: constant answers, chosen with knowledge of the films that are
measured. So a model that uses the image should still be better.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from language.labels import Labeler, RuleLabeler
from models import boxes as unit_boxes
from models.contract import FilmReading
from models.engines import FloatArray
from models.lab.evaluation import (
    anatomy,
    detection,
    film_classification,
    localization,
    regions,
    reports,
    side_questions,
    views,
)
from models.lab.evaluation.cases import CaseSource, Truth
from models.lab.evaluation.evaluated_model import EvaluatedModel, Observation, as_read, settings_of
from models.lab.evaluation.request import Task
from models.lab.evaluation.statistics import Bootstrap, Figures
from models.lab.phantoms import FINDINGS
from models.progress import ProgressReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """The labels and the model's answers, film by film."""

    truths: Sequence[Truth]
    said: Sequence[Observation]


def observe(
    models: Sequence[EvaluatedModel], films: CaseSource, tasks: Collection[Task], report: ProgressReport
) -> Observed:
    """Run a model on every film; models: one for each film. Raises ModelError if a film cannot be read."""
    truths, said = [], []
    for index, model in enumerate(models):
        case = films.load(index)
        truths.append(case.truth)
        said.append(model.observe(case, tasks))
        report("reading films", index + 1, len(films))
    return Observed(truths=truths, said=said)


def figures(
    observed: Observed,
    tasks: Collection[Task],
    *,
    model: EvaluatedModel,
    bootstrap: Bootstrap,
    most_false: float,
) -> dict[str, dict[str, object]]:
    """Compute the figures of these tasks, each with its reference figures.

    most_false: as in `films.cross_fitted`
    """
    labeler = RuleLabeler()
    makers: dict[Task, Callable[[], dict[str, object]]] = {
        "detection": lambda: _detection(observed, model, bootstrap),
        "anatomy": lambda: _anatomy(observed, bootstrap),
        "region_classification": lambda: _regions(observed, bootstrap),
        "report": lambda: _report(observed, labeler, bootstrap),
        "sentences": lambda: _sentences(observed, bootstrap),
        "films": lambda: film_classification.measure(
            film_classification.films_of(observed.truths, [observation.differences for observation in observed.said]),
            bootstrap,
            most_false=most_false,
            left_out=model.manifest.decisions.left_out,
        ),
        "hints": lambda: side_questions.measure(
            observed.truths, [observation.hints for observation in observed.said], bootstrap
        ),
        "views": lambda: views.measure([observation.views for observation in observed.said], bootstrap),
    }
    return {task: make() for task, make in makers.items() if task in tasks}


def _detection(observed: Observed, model: EvaluatedModel, bootstrap: Bootstrap) -> dict[str, object]:
    truths, settings = observed.truths, settings_of(model.manifest.detection)
    found = [observation.found for observation in observed.said if observation.found is not None]
    readings = [observation.reading for observation in observed.said if observation.reading is not None]
    made = detection.measure(truths, found, bootstrap)
    if readings:
        read = detection.Precision(truths, [as_read(reading) for reading in readings])
        made |= {"as_read": {**read.figures(), "per_class": read.per_class()}}

    def scaled(scale: float) -> list[detection.Detections]:
        own = replace(settings, scales=(scale,) * len(FINDINGS))
        return [model.detections(said.located, own) for said in observed.said if said.located is not None]

    if boxed := localization.measure(truths, scaled, bootstrap):
        made["boxed"] = boxed
    return made | {"references": {"constant_box": _constant_detection(truths)}}


def _anatomy(observed: Observed, bootstrap: Bootstrap) -> dict[str, object]:
    truths = observed.truths
    return {
        **anatomy.measure(truths, [observation.regions for observation in observed.said], bootstrap),
        "cardiothoracic_ratio": anatomy.measure_ratio(truths, [observation.chest for observation in observed.said]),
        "references": {"best_constant_box": _constant_regions(truths)},
    }


def _regions(observed: Observed, bootstrap: Bootstrap) -> dict[str, object]:
    judged = regions.judged_of(observed.truths, [observation.region_scores for observation in observed.said])
    return regions.measure(judged, bootstrap) | {"references": {"region_identity": identity(observed.truths)}}


def _sentences(observed: Observed, bootstrap: Bootstrap) -> dict[str, object]:
    by_default = [observation.by_default for observation in observed.said if observation.by_default is not None]
    return reports.measure_sentences(_checked(observed), observed.truths, bootstrap) | {
        "by_default": reports.measure_sentences(by_default, observed.truths, bootstrap)
    }


def _checked(observed: Observed) -> list[FilmReading]:
    return [observation.checked for observation in observed.said if observation.checked is not None]


def _report(observed: Observed, labeler: Labeler, bootstrap: Bootstrap) -> dict[str, object]:
    truths = reports.with_labels_of_reports(observed.truths, labeler)
    by_images = sum(bool(truth.labels) for truth in observed.truths)
    readings = [observation.reading for observation in observed.said if observation.reading is not None]
    texts = [text_of(reading) for reading in readings]
    return reports.measure(truths, texts, labeler, bootstrap) | {
        **_variants(observed, truths, labeler),
        "labeled_by_images": by_images,
        "labeled_by_reports": sum(bool(truth.labels) for truth in truths) - by_images,
        "sentences_per_film": float(np.mean([len(reading.sentences) for reading in readings])),
        "references": {"all_positive": _all_positive(truths, labeler)},
    }


def _variants(observed: Observed, truths: Sequence[Truth], labeler: Labeler) -> dict[str, object]:
    """Compute clinical efficacy of decisions, and of the sentences that leave."""
    read = [each.reading.prompts for each in observed.said if each.reading is not None]

    def labels(said: Sequence[Mapping[str, bool]]) -> reports.Labels:
        return reports.labels_of(truths, said, labeler.classes)

    decided = labels([{each.key: each.state == "present" for each in of_film if each.state} for of_film in read])
    variants: dict[str, object] = {
        "decisions": {**reports.efficacy(decided), "per_class": reports.per_class(decided)},
    }
    if checked := _checked(observed):
        leaving = reports.said_of(labeler, [text_of(reading) for reading in checked])
        variants["checked"] = reports.efficacy(labels(leaving))
    return variants


def text_of(reading: FilmReading) -> str:
    """Join the sentences of a film."""
    return " ".join(sentence.text for sentence in reading.sentences)


def _constant_detection(truths: Sequence[Truth]) -> Figures:
    """Baseline of `detection`: every finding on every film in its mean box, with its frequency as score."""
    found = {key: [truth.boxes[key] for truth in truths if key in truth.boxes] for key in FINDINGS}
    keys = [key for key, boxes in found.items() if boxes]
    boxes = [unit_boxes.to_corners(np.concatenate(found[key]).astype(np.float64)).mean(axis=0) for key in keys]
    everywhere = detection.Detections(
        unit_boxes.to_center_size(np.array(boxes).reshape(-1, 4)).astype(np.float32),
        np.array([FINDINGS.index(key) for key in keys], dtype=np.intp),
        np.array([len(found[key]) / len(truths) for key in keys], dtype=np.float32),
    )
    return detection.Precision(truths, [everywhere] * len(truths)).figures()


def _constant_regions(truths: Sequence[Truth]) -> dict[str, object]:
    """Baseline of `anatomy`: every region on every film in the box that fits best of their mean, median and boxes."""
    best = dict[str, FloatArray]()
    for name in anatomy.REGIONS:
        own = [truth.regions[name] for truth in truths if name in truth.regions]
        if own:
            corners = unit_boxes.to_corners(np.stack(own).astype(np.float64))
            middles = np.stack([corners.mean(axis=0), np.median(corners, axis=0)])
            candidates = np.concatenate([middles, corners])
            suits = unit_boxes.iou(candidates, corners).mean(axis=1)
            best[name] = unit_boxes.to_center_size(candidates[int(suits.argmax())]).astype(np.float32)
    return anatomy.measure(truths, [best] * len(truths), Bootstrap(resamples=0))


def identity(truths: Sequence[Truth]) -> Figures:
    """Baseline of `region_classification`: the frequency of each finding in a region of that name."""
    held = {name: [truth for truth in truths if name in truth.region_findings] for name in anatomy.REGIONS}
    shares = {
        name: [
            np.mean([key in truth.region_findings[name] for truth in films if key in truth.judged] or [False])
            for key in FINDINGS
        ]
        for name, films in held.items()
        if films
    }
    said = [
        np.array([shares[name] for name in truth.region_findings], dtype=np.float32).reshape(-1, len(FINDINGS))
        for truth in truths
    ]
    return {"auroc_pooled": regions.pooled(regions.judged_of(truths, said))}


def _all_positive(truths: Sequence[Truth], labeler: Labeler) -> Figures:
    """Baseline of `report`: every class on every film."""
    everything = dict.fromkeys(labeler.classes, True)
    return reports.efficacy(reports.labels_of(truths, [everything] * len(truths), labeler.classes))
