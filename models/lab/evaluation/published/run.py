"""Runs the paper's tasks: chooses their settings on other films where there are some, then measures (spec §9)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from models.lab.evaluation.bootstrap import Bootstrap
from models.lab.evaluation.boxes_file import FileFilms
from models.lab.evaluation.published import classification, detection, grounding
from models.lab.evaluation.published.detection import Asked, Located
from models.lab.evaluation.published.grounding import Grounded
from models.lab.evaluation.published.labels import LOCATED
from models.lab.evaluation.published.model import PublishedModel, looked_at
from models.lab.evaluation.request import PublishedTask
from models.lab.tasks.prompts import DataSet
from models.progress import ProgressReport


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Session:
    """What all tasks share.

    films: to measure; choose_on: other films, on which settings are chosen, and their name; None: settings as published
    """

    model: PublishedModel
    films: FileFilms
    choose_on: tuple[str, FileFilms] | None
    bootstrap: Bootstrap
    report: ProgressReport


def figures(
    model: PublishedModel,
    films: FileFilms,
    choose_on: tuple[str, FileFilms] | None,
    tasks: Sequence[PublishedTask],
    *,
    bootstrap: Bootstrap,
    report: ProgressReport,
) -> dict[str, dict[str, object]]:
    """Compute the figures of these tasks, each with its settings.

    choose_on: as of a `Session`
    Raises ModelError if a film cannot be read.
    """
    session = Session(model=model, films=films, choose_on=choose_on, bootstrap=bootstrap, report=report)
    makers: dict[PublishedTask, Callable[[], dict[str, object]]] = {
        "grounding_mscxr": lambda: _grounding(session),
        "region_classification_mscxr": lambda: _boxes(session),
        "region_classification_imagenome": lambda: _regions(session),
        **{task: partial(_detection, session, data_set) for task, data_set in LOCATED.items()},
    }
    return {task: makers[task]() for task in tasks}


def _detection(session: Session, data_set: DataSet) -> dict[str, object]:
    """Measure the classes that the paper evaluates, and beside it all of training, where these are more."""
    made = {
        name: _detection_of(session, asked, f"{data_set}, {name} classes")
        for name, asked in detection.questions(session.model, data_set).items()
    }
    evaluated = made.pop("evaluated")
    return evaluated | {f"{name}_classes": figures for name, figures in made.items()}


def _detection_of(session: Session, asked: Asked, what: str) -> dict[str, object]:
    def located(films: FileFilms, stage: str) -> list[Located]:
        looks = looked_at(session.model, films, session.report, stage=stage)
        found = (detection.located(session.model, asked, case.published, picture) for case, picture in looks)
        return [film for film in found if film is not None]

    settings, name = asked.shipped, None
    if session.choose_on is not None:
        name, others = session.choose_on
        settings = detection.chosen(located(others, f"choosing, {what}"), asked)
    films = located(session.films, f"reading, {what}")
    measured = detection.measure(films, asked, settings, session.bootstrap)
    return measured | detection.in_words(settings, asked, chosen_on=name)


def _grounding(session: Session) -> dict[str, object]:
    def grounded(films: FileFilms, stage: str) -> list[Grounded]:
        looks = looked_at(session.model, films, session.report, stage=stage)
        found = (grounding.grounded(session.model, case.published.phrases, picture) for case, picture in looks)
        return [film for film in found if film is not None]

    settings, name = grounding.Settings(), None
    if session.choose_on is not None:
        name, others = session.choose_on
        settings = grounding.chosen(grounded(others, "choosing, phrases"))
    films = grounded(session.films, "reading, phrases")
    return grounding.measure(films, settings, session.bootstrap) | grounding.in_words(settings, chosen_on=name)


def _boxes(session: Session) -> dict[str, object]:
    model, looks = session.model, looked_at(session.model, session.films, session.report, stage="reading, boxes")
    vectors = classification.vectors_of(model, "mscxr")
    films = (classification.classified(model, vectors, case.published, picture) for case, picture in looks)
    return classification.measure_boxes([film for film in films if film is not None], session.bootstrap)


def _regions(session: Session) -> dict[str, object]:
    model, looks = session.model, looked_at(session.model, session.films, session.report, stage="reading, regions")
    vectors = classification.vectors_of(model, "cig")
    made = classification.judged(model, vectors, ((case.published, picture) for case, picture in looks))
    return classification.measure_regions(made, session.bootstrap)
