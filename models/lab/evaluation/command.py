"""One evaluation, from the request to the document: what `python -m models.evaluate` does."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from language.labels import Labeler, RuleLabeler
from models.contract import Trusted
from models.errors import ModelError
from models.lab.evaluation import run
from models.lab.evaluation.boxes_file import FileFilms, read_films
from models.lab.evaluation.cases import CaseSource, Phantoms
from models.lab.evaluation.document import markdown, rounded
from models.lab.evaluation.evaluated_model import EvaluatedModel, open_model, read_questions
from models.lab.evaluation.pictures import write_sheets
from models.lab.evaluation.published import prompting
from models.lab.evaluation.published import run as paper
from models.lab.evaluation.published.analysis import PUBLISHED, read_analysis
from models.lab.evaluation.published.text_metrics import check_folder
from models.lab.evaluation.request import (
    ALL,
    CHEXBERT,
    CHOOSING,
    DECIDED_TASKS,
    FIGURE_TASKS,
    PAPER,
    PUBLISHED_TASKS,
    RESAMPLES,
    RULES,
    TASKS,
    TEXT_TASKS,
    PublishedTask,
    Request,
    Task,
)
from models.lab.evaluation.statistics import Bootstrap
from models.lab.evaluation.tuning import for_each_film, require_others
from models.lab.phantoms import PhantomSet, parse_set
from models.lab.training.split import read_held_out
from models.manifest import Manifest, read_manifest
from models.progress import ProgressReport

_BOXES: Final = "boxes:"


def evaluate(request: Request, report: ProgressReport) -> dict[str, object]:
    """Measure a model, write the requested files. Raises ModelError for wrong input, OSError if writing fails."""
    began = time.monotonic()
    how = PUBLISHED if request.analysis is None else read_analysis(request.analysis)
    if request.analysis is not None:
        request = replace(request, tasks=(how.task,))
    data, manifest = _data(request), read_manifest(request.model)
    films = _films(data, request, manifest)
    published = _published(films, request)
    choose_on = _choose_on(films, published, request)
    tasks = _tasks(films, request, manifest)
    figure_tasks = [task for task in FIGURE_TASKS if task in request.tasks]
    unmeasured = _unmeasured(films, published, report)
    labeler = _labeler_of_texts(request, published)
    questions = read_questions(request.prompts)
    if request.out is not None:
        request.out.mkdir(parents=True, exist_ok=True)
    trusted: Trusted = "real" if isinstance(data, Path) else "phantoms"
    model = open_model(request.model, engine=request.engine, questions=questions, trusted=trusted)
    resamples = RESAMPLES if request.resamples is None else request.resamples
    observed = run.observe(_deciding(model, films, tasks, request, report), films, tasks, report)
    bootstrap = Bootstrap(resamples=resamples)
    figures = run.figures(observed, tasks, model=model, bootstrap=bootstrap, most_false=request.false_findings)
    if isinstance(films, FileFilms) and published:
        session = paper.Session(
            model=model.published,
            films=films,
            choose_on=choose_on,
            report=report,
            labeler=labeler,
            request=request,
            how=how,
        )
        figures |= paper.figures(session, published)
    if figure_tasks:
        if not isinstance(films, FileFilms):
            raise ModelError(f"{figure_tasks[0]} is of patient films, boxes:FILE.jsonl; leave it out")
        figures |= prompting.figures(model.published, films, figure_tasks, labeler, report)
    report("figures")
    document: dict[str, object] = {
        "data": request.data,
        "count": len(films),
        "not_measured": unmeasured,
        "tasks": figures,
        "model": {
            "name": model.manifest.name,
            "version": model.manifest.version,
            "weights_sha256": model.reader.weights_sha256,
            "engine": model.reader.engine,
        },
        "prompts": {"name": questions.name, "sha256": questions.sha256},
        "split": data.split if isinstance(data, PhantomSet) else None,
        "folds": request.folds,
        "held_out": request.held_out and Path(request.held_out).name,
        "resamples": resamples,
    }
    if request.analysis is not None:
        document["analysis"] = {"name": request.analysis.stem, **asdict(how)}
    if request.out is not None and request.pictures and tasks:
        document["pictures"] = write_sheets(
            request.out, films, observed.truths, observed.said, rule=model.manifest.input, count=request.pictures
        )
    document["seconds"] = round(time.monotonic() - began, 1)
    document = {key: rounded(value) for key, value in document.items()}
    if request.out is not None:
        (request.out / "evaluation.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        (request.out / "evaluation.md").write_text(markdown(document), encoding="utf-8")
    return document


def _deciding(
    model: EvaluatedModel, films: CaseSource, tasks: Sequence[Task], request: Request, report: ProgressReport
) -> list[EvaluatedModel]:
    """Return the model that reads each film. Raises ModelError if the film chose the decisions that it is read by."""
    if request.folds and not isinstance(films, FileFilms):
        raise ModelError("--folds is for patient films, boxes:FILE.jsonl; leave it out")
    if DECIDED_TASKS & set(tasks) and isinstance(films, FileFilms):
        if request.folds:
            population = Path(request.data.removeprefix(_BOXES)).stem
            return for_each_film(model, films, population=population, most_false=request.false_findings, report=report)
        require_others(model.manifest, films, report)
    return [model] * (len(films) if tasks else 0)


def _labeler_of_texts(request: Request, published: Sequence[PublishedTask]) -> Labeler:
    """Open what labels texts. Raises ModelError if it cannot be used, or if no task has texts."""
    has_texts = bool(set(TEXT_TASKS) & set(published))
    is_labeled = has_texts or "figure_6" in request.tasks
    if request.labeler is not None and not is_labeled:
        raise ModelError(f"--labeler is for the tasks {', '.join(TEXT_TASKS)}; name one, or leave it out")
    if request.metric_files is not None:
        if not has_texts:
            raise ModelError(f"--metric-files is for the tasks {', '.join(TEXT_TASKS)}; name one, or leave it out")
        check_folder(request.metric_files)
    if request.labeler in (None, RULES):
        return RuleLabeler()
    from models.lab.evaluation.published.chexbert import ChexbertLabeler  # needs the extra `paper`

    return ChexbertLabeler(Path(str(request.labeler).removeprefix(CHEXBERT)))


def _data(request: Request) -> PhantomSet | Path:
    if request.data.startswith(_BOXES):
        return Path(request.data.removeprefix(_BOXES))
    try:
        return parse_set(request.data)
    except ValueError as error:
        raise ModelError(f"--data: {error}, or boxes:FILE.jsonl for the films of a file") from error


def _films(data: PhantomSet | Path, request: Request, manifest: Manifest) -> FileFilms | Phantoms:
    if isinstance(data, Path):
        held_out = None if request.held_out is None else read_held_out(request.held_out)
        return read_films(data, manifest, held_out=held_out)
    if request.held_out is not None:
        raise ModelError("phantoms have no patients to hold out; leave --held-out out")
    return Phantoms(data, manifest)


def _unmeasured(films: CaseSource, published: Sequence[PublishedTask], report: ProgressReport) -> dict[str, int]:
    """Count the labels that no task measures, and say so; of phantoms all are measured."""
    counts = dict(sorted(films.unmeasured(published).items())) if isinstance(films, FileFilms) else {}
    if counts:
        report("not measured by any task: " + ", ".join(f"{count} {what}" for what, count in counts.items()))
    return counts


def _published(films: CaseSource, request: Request) -> list[PublishedTask]:
    """Choose the tasks of the paper: those that were asked for, or all that are possible."""
    possible = films.published_tasks if isinstance(films, FileFilms) else frozenset[PublishedTask]()
    if PAPER in request.tasks:
        return [task for task in PUBLISHED_TASKS if task in possible]
    asked = [task for task in PUBLISHED_TASKS if task in request.tasks]
    if missing := [task for task in asked if task not in possible]:
        raise ModelError(_without_labels(request.data, missing[0], sorted(possible)))
    return asked


def _choose_on(films: CaseSource, published: Sequence[PublishedTask], request: Request) -> tuple[str, FileFilms] | None:
    """Read the films on which settings are chosen. Raises ModelError unless they are other patients' and suffice."""
    if request.choose_on is None:
        return None
    choosing = [task for task in published if task in CHOOSING]
    if not choosing or not isinstance(films, FileFilms):
        raise ModelError(f"--choose-on is for the tasks {', '.join(sorted(CHOOSING))}; name one, or leave it out")
    others = read_films(request.choose_on, read_manifest(request.model))
    if shared := films.patients & others.patients:
        raise ModelError(
            f"{len(shared)} patients of {request.choose_on} are measured too; choose on films of other patients"
        )
    if missing := [task for task in choosing if task not in others.published_tasks]:
        raise ModelError(_without_labels(str(request.choose_on), missing[0], sorted(others.published_tasks)))
    return request.choose_on.name, others


def _without_labels(data: str, task: str, possible: Sequence[str]) -> str:
    suffice = f"its labels suffice for {', '.join(possible)}" if possible else "see docs/model/data.md"
    return f"{data} has no labels for the task {task}; {suffice}"


def _tasks(films: FileFilms | Phantoms, request: Request, manifest: Manifest) -> list[Task]:
    """Choose the tasks: those that were asked for, otherwise all that are possible."""
    known = films.tasks - (set() if manifest.views is not None else {"views"})
    possible = [task for task in TASKS if task in known]
    if ALL in request.tasks:
        return possible
    if "views" in request.tasks and manifest.views is None:
        raise ModelError(f"{request.model} has no view head; train one, or leave out the task views")
    asked = [task for task in TASKS if task in request.tasks]
    if missing := [task for task in asked if task not in possible]:
        raise ModelError(_without_labels(request.data, missing[0], possible))
    return asked
