"""Runs the paper's tasks: chooses their settings on other films where there are some, then measures (spec §9)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from language.labels import Labeler
from models.errors import ModelError
from models.lab.evaluation.bootstrap import Bootstrap
from models.lab.evaluation.boxes_file import FileFilms
from models.lab.evaluation.prompt_set import DEFAULT, read_questions
from models.lab.evaluation.published import classification, detection, grounding, texts
from models.lab.evaluation.published.analysis import Analysis
from models.lab.evaluation.published.detection import Asked, Located
from models.lab.evaluation.published.grounding import Grounded
from models.lab.evaluation.published.labels import LOCATED, PublishedLabels
from models.lab.evaluation.published.model import PublishedModel, looked_at
from models.lab.evaluation.published.texts import Told
from models.lab.evaluation.request import PublishedTask
from models.lab.tasks.batch import Picture
from models.lab.tasks.prompts import DataSet
from models.progress import ProgressReport

_Film = TypeVar("_Film")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Session:
    """What all tasks share.

    films: to measure; choose_on: other films, on which settings are chosen, and their name; None: settings as published
    """

    model: PublishedModel
    films: FileFilms
    choose_on: tuple[str, FileFilms] | None
    labeler: Labeler
    bootstrap: Bootstrap
    report: ProgressReport
    how: Analysis


def figures(
    model: PublishedModel,
    films: FileFilms,
    choose_on: tuple[str, FileFilms] | None,
    tasks: Sequence[PublishedTask],
    how: Analysis,
    *,
    labeler: Labeler,
    bootstrap: Bootstrap,
    report: ProgressReport,
) -> dict[str, dict[str, object]]:
    """Compute the figures of these tasks, each with its settings.

    choose_on: as of a `Session`; how: texts are made; with an analysis its task is the only one
    Raises ModelError if a film cannot be read.
    """
    session = Session(
        model=model, films=films, choose_on=choose_on, labeler=labeler, bootstrap=bootstrap, report=report, how=how
    )
    makers: dict[PublishedTask, Callable[[], dict[str, object]]] = {
        "grounding_mscxr": lambda: _grounding(session),
        "region_classification_mscxr": lambda: _boxes(session),
        "region_classification_imagenome": lambda: _regions(session),
        "region_explanation_mscxr": lambda: _texts(session, partial(texts.of_phrases, model, how=how), "boxes"),
        "region_explanation_imagenome": lambda: _texts(session, partial(texts.of_regions, model, how=how), "regions"),
        "report_mimic": lambda: _reports(session),
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
        return _counted(detection.located(session.model, asked, case.published, picture) for case, picture in looks)

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
        return _counted(grounding.grounded(session.model, case.published.phrases, picture) for case, picture in looks)

    settings, name = grounding.Settings(), None
    if session.choose_on is not None:
        name, others = session.choose_on
        settings = grounding.chosen(grounded(others, "choosing, phrases"))
    films = grounded(session.films, "reading, phrases")
    return grounding.measure(films, settings, session.bootstrap) | grounding.in_words(settings, chosen_on=name)


def _boxes(session: Session) -> dict[str, object]:
    model, looks = session.model, looked_at(session.model, session.films, session.report, stage="reading, boxes")
    vectors = classification.vectors_of(model, "mscxr")
    films = _counted(classification.classified(model, vectors, case.published, picture) for case, picture in looks)
    return classification.measure_boxes(films, session.bootstrap)


def _regions(session: Session) -> dict[str, object]:
    model, looks = session.model, looked_at(session.model, session.films, session.report, stage="reading, regions")
    vectors = classification.vectors_of(model, "cig")
    films = _counted(classification.judged(model, vectors, case.published, picture) for case, picture in looks)
    return classification.measure_regions(films, session.bootstrap)


def _texts(
    session: Session, written: Callable[[PublishedLabels, Picture], Told | None], what: str
) -> dict[str, object]:
    """Measure what is written of each film; written: returns None of a film that does not count."""
    looks = looked_at(session.model, session.films, session.report, stage=f"explaining, {what}")
    films = _counted(written(case.published, picture) for case, picture in looks)
    return texts.measure(films, session.labeler, session.bootstrap)


def _reports(session: Session) -> dict[str, object]:
    asked = texts.report_questions(session.model, read_questions(DEFAULT).prompts, session.how)
    return _texts(session, partial(texts.of_report, session.model, asked, how=session.how), "films")


def _counted(films: Iterable[_Film | None]) -> list[_Film]:
    """Keep what was made of the films that count. Raises ModelError if there is none."""
    counted = [film for film in films if film is not None]
    if not counted:
        raise ModelError("no label of the films lies in the square that the network sees; correct the boxes")
    return counted
