"""Runs the paper's tasks: chooses their settings on other films where there are some, then measures (spec §9)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from language.labels import Labeler
from models.errors import ModelError
from models.lab.evaluation.boxes_file import FileFilms
from models.lab.evaluation.evaluated_model import read_questions
from models.lab.evaluation.published import classification, detection, grounding, texts
from models.lab.evaluation.published.analysis import Analysis
from models.lab.evaluation.published.clinical_efficacy import Told, mark, start_texts, write_texts
from models.lab.evaluation.published.detection import Located
from models.lab.evaluation.published.grounding import Grounded
from models.lab.evaluation.published.labels import LOCATED, PublishedLabels
from models.lab.evaluation.published.model import PublishedModel, looked_at
from models.lab.evaluation.request import (
    DEFAULT,
    PUBLISHED_RESAMPLES,
    TEXT_RESAMPLES,
    TEXT_TASKS,
    PublishedTask,
    Request,
)
from models.lab.evaluation.statistics import Bootstrap
from models.lab.tasks.batch import Picture
from models.lab.tasks.prompts import DataSet
from models.progress import ProgressReport

_Film = TypeVar("_Film")
_TEXTS: Final = "texts.csv"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Session:
    """What all tasks share.

    films: to measure; choose_on: other films, on which settings are chosen, and their name; None: settings as published
    labeler: the labeler of texts; how: texts are made; with an analysis its task is the only one
    """

    model: PublishedModel
    films: FileFilms
    choose_on: tuple[str, FileFilms] | None
    report: ProgressReport
    labeler: Labeler
    request: Request
    how: Analysis

    @property
    def texts(self) -> Path | None:
        """The file that gets all texts, None if there is none."""
        return None if self.request.out is None else self.request.out / _TEXTS

    def bootstrap(self, published: int = PUBLISHED_RESAMPLES) -> Bootstrap:
        """Return what draws resampled films; published: how often the paper does."""
        return Bootstrap(resamples=published if self.request.resamples is None else self.request.resamples)


def figures(session: Session, tasks: Sequence[PublishedTask]) -> dict[str, dict[str, object]]:
    """Compute the figures of these tasks, each with its settings.

    Raises ModelError if a film cannot be read or a text cannot be marked, OSError if texts cannot be written.
    """
    if session.texts is not None and set(TEXT_TASKS) & set(tasks):
        start_texts(session.texts)
    model, how = session.model, session.how
    makers: dict[PublishedTask, Callable[[], dict[str, object]]] = {
        "grounding_mscxr": lambda: _grounding(session),
        "region_classification_mscxr": lambda: _boxes(session),
        "region_classification_imagenome": lambda: _regions(session),
        "region_explanation_mscxr": lambda: _texts(
            session, "region_explanation_mscxr", partial(texts.of_phrases, model)
        ),
        "region_explanation_imagenome": lambda: _texts(
            session, "region_explanation_imagenome", partial(texts.of_regions, model, how=how)
        ),
        "report_mimic": lambda: _reports(session),
        **{task: partial(_detection, session, data_set) for task, data_set in LOCATED.items()},
    }
    return {task: makers[task]() for task in tasks}


def _detection(session: Session, data_set: DataSet) -> dict[str, object]:
    asked = detection.classes_asked(session.model, data_set)

    def located(films: FileFilms, stage: str) -> list[Located]:
        looks = looked_at(session.model, films, session.report, stage=stage)
        return _counted(detection.located(session.model, asked, case.published, picture) for case, picture in looks)

    settings, name = asked.shipped, None
    if session.choose_on is not None:
        name, others = session.choose_on
        settings = detection.chosen(located(others, f"choosing, {data_set}"), asked)
    films = located(session.films, f"reading, {data_set}")
    measured = detection.measure(films, asked, settings, session.bootstrap())
    return measured | detection.in_words(settings, asked, chosen_on=name)


def _grounding(session: Session) -> dict[str, object]:
    def grounded(films: FileFilms, stage: str) -> list[Grounded]:
        looks = looked_at(session.model, films, session.report, stage=stage)
        return _counted(grounding.grounded(session.model, case.published.phrases, picture) for case, picture in looks)

    scale, name = 1.0, None
    if session.choose_on is not None:
        name, others = session.choose_on
        scale = grounding.chosen(grounded(others, "choosing, phrases"))
    films = grounded(session.films, "reading, phrases")
    return grounding.measure(films, scale, session.bootstrap()) | grounding.in_words(scale, chosen_on=name)


def _boxes(session: Session) -> dict[str, object]:
    model, looks = session.model, looked_at(session.model, session.films, session.report, stage="reading, boxes")
    vectors = classification.vectors_of(model, "mscxr")
    films = _counted(classification.classified(model, vectors, case.published, picture) for case, picture in looks)
    return classification.measure_boxes(films, session.bootstrap())


def _regions(session: Session) -> dict[str, object]:
    model, looks = session.model, looked_at(session.model, session.films, session.report, stage="reading, regions")
    vectors = classification.vectors_of(model, "cig")
    films = _counted(
        classification.judged(model, vectors, case.published, picture, session.how) for case, picture in looks
    )
    return classification.measure_regions(films, session.bootstrap())


def _texts(
    session: Session, task: PublishedTask, written: Callable[[PublishedLabels, Picture], Told | None]
) -> dict[str, object]:
    """Measure what is written of each film; written: returns None of a film that does not count."""
    looks = looked_at(session.model, session.films, session.report, stage=f"writing, {task}")
    films = _counted(
        None if (told := written(case.published, picture)) is None else (session.films.name(index), told)
        for index, (case, picture) in enumerate(looks)
    )
    if session.texts is not None:
        write_texts(session.texts, task, films)
    return texts.measure(
        [told for _, told in films],
        mark(session.labeler, task, films, session.report),
        session.bootstrap(TEXT_RESAMPLES),
        metric_files=session.request.metric_files,
    )


def _reports(session: Session) -> dict[str, object]:
    asked = texts.report_questions(session.model, read_questions(DEFAULT).prompts, session.how)
    return _texts(session, "report_mimic", partial(texts.of_report, session.model, asked, how=session.how))


def _counted(films: Iterable[_Film | None]) -> list[_Film]:
    """Keep what was made of the films that count. Raises ModelError if there is none."""
    counted = [film for film in films if film is not None]
    if not counted:
        raise ModelError("no label of the films lies in the square that the network sees; correct the boxes")
    return counted
