"""One evaluation, from the request to the document: what `python -m models.evaluate` does."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from language.labels import RuleLabeler
from models.contract import FilmReading
from models.decisions import PHANTOMS
from models.errors import ModelError
from models.lab.evaluation import references, run
from models.lab.evaluation.bootstrap import Bootstrap
from models.lab.evaluation.boxes_file import read_films
from models.lab.evaluation.cases import CaseSource, Phantoms, Truth
from models.lab.evaluation.document import markdown, rounded
from models.lab.evaluation.evaluated_model import EvaluatedModel, open_model
from models.lab.evaluation.films import MOST_FALSE
from models.lab.evaluation.pictures import write_sheets
from models.lab.evaluation.prompt_set import read_questions
from models.lab.evaluation.request import TASKS, Request, Task
from models.lab.evaluation.thresholds import LEAST_POSITIVES, Aim
from models.lab.evaluation.tuning import check_tunable, tune
from models.lab.evaluation.wording import best_wording
from models.lab.phantoms import PhantomSet, parse_set
from models.lab.training.split import read_held_out
from models.manifest import Manifest, ReportRule, read_manifest, write_manifest
from models.progress import ProgressReport

_BOXES: Final = "boxes:"
_WORDED: Final = 40
"""How many films are read repeatedly to choose the wording; more would cost time and change little."""


def evaluate(request: Request, report: ProgressReport) -> dict[str, object]:
    """Measure a model, write the requested files. Raises ModelError for wrong input, OSError if writing fails."""
    began = time.monotonic()
    data = _data(request)
    if request.tune:
        if request.ablations:
            raise ModelError("--tune and --ablate exclude each other; leave one of them out")
        if request.sensitivity is not None and request.false_findings is not None:
            raise ModelError("--sensitivity and --false-findings exclude each other; leave one of them out")
        check_tunable(data, held_out=request.held_out)
    films = _films(data, request, read_manifest(request.model))
    tasks = _tasks(films, request, read_manifest(request.model))
    questions = read_questions(request.prompts)
    if request.out is not None:
        request.out.mkdir(parents=True, exist_ok=True)
    model = _open(request)
    tuning = _tune(request, model, films, report) if request.tune else None
    if tuning is not None:
        model = _open(request)
    observed = run.observe(model, films, tasks, report)
    report("figures")
    document: dict[str, object] = {
        "data": request.data,
        "count": len(films),
        "tasks": run.figures(
            observed,
            tasks,
            model=model,
            habits=references.training_habits(request.training_films),
            labeler=RuleLabeler(),
            bootstrap=Bootstrap(resamples=request.resamples),
            most_false=MOST_FALSE if request.false_findings is None else request.false_findings,
        ),
        "model": {
            "name": model.manifest.name,
            "version": model.manifest.version,
            "weights_sha256": model.reader.weights_sha256,
            "engine": model.reader.engine_name,
        },
        "prompts": {"name": questions.name, "sha256": questions.sha256},
        "split": data.split if isinstance(data, PhantomSet) else None,
        "held_out": request.held_out and Path(request.held_out).name,
        "ablations": list(request.ablations),
        "resamples": request.resamples,
        "training_films": request.training_films,
    }
    if tuning is not None:
        document["tuning"] = tuning
    if request.out is not None and request.pictures:
        document["pictures"] = write_sheets(
            request.out, films, observed.truths, observed.said, rule=model.manifest.input, count=request.pictures
        )
    document["seconds"] = round(time.monotonic() - began, 1)
    document = {key: rounded(value) for key, value in document.items()}
    if request.out is not None:
        (request.out / "evaluation.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        (request.out / "evaluation.md").write_text(markdown(document), encoding="utf-8")
    return document


def _data(request: Request) -> PhantomSet | Path:
    if request.data.startswith(_BOXES):
        return Path(request.data.removeprefix(_BOXES))
    try:
        return parse_set(request.data)
    except ValueError as error:
        raise ModelError(f"--data: {error}, or boxes:FILE.jsonl for the films of a file") from error


def _films(data: PhantomSet | Path, request: Request, manifest: Manifest) -> CaseSource:
    if isinstance(data, Path):
        held_out = None if request.held_out is None else read_held_out(request.held_out)
        return read_films(data, manifest, held_out=held_out)
    if request.held_out is not None:
        raise ModelError("phantoms have no patients to hold out; leave --held-out out")
    return Phantoms(data, manifest)


def _tasks(films: CaseSource, request: Request, manifest: Manifest) -> list[Task]:
    """Choose the tasks: those that were asked for, otherwise all that are possible."""
    known = films.tasks - (set() if manifest.views is not None else {"views"})
    possible = [task for task in TASKS if task in known]
    if request.tasks is None:
        return possible
    if "views" in request.tasks and manifest.views is None:
        raise ModelError(f"{request.model} has no view head; train one, or leave out the task views")
    if missing := [task for task in request.tasks if task not in possible]:
        raise ModelError(
            f"{request.data} has no labels for the task {missing[0]}; its labels suffice for {', '.join(possible)}"
        )
    return list(request.tasks)


def _open(request: Request) -> EvaluatedModel:
    return open_model(
        request.model,
        engine=request.engine,
        questions=read_questions(request.prompts),
        ablations=request.ablations,
        trusted="real" if isinstance(_data(request), Path) else "phantoms",
    )


def _tune(request: Request, model: EvaluatedModel, films: CaseSource, report: ProgressReport) -> dict[str, object]:
    """Choose decisions and write them into the model directory."""
    truths, weighed = run.weigh(model, films, report)
    report("choosing decisions")
    data = _data(request)
    tuned = tune(
        read_manifest(request.model),
        truths,
        weighed,
        detections=model.detections,
        population=data.stem if isinstance(data, Path) else PHANTOMS,
        aim=Aim(
            sensitivity=request.sensitivity,
            false_findings=request.false_findings,
            least_positives=LEAST_POSITIVES if isinstance(data, Path) else 1,
        ),
    )
    wording = _word(model, tuned.manifest, films, truths, report)
    write_manifest(request.model, replace(tuned.manifest, report=wording))
    return {
        "before": {**tuned.before, "emphasis": model.manifest.report.emphasis},
        "after": {**tuned.after, "emphasis": wording.emphasis, "remove_above": wording.remove_above},
        "bands": {key: dict(band) for key, band in tuned.bands.items()},
    }


def _word(
    model: EvaluatedModel, manifest: Manifest, films: CaseSource, truths: Sequence[Truth], report: ProgressReport
) -> ReportRule:
    """Choose how a manifest's decisions are put into words, on some of the films."""
    some = range(min(len(films), _WORDED))
    looks = [model.reader.look(films.load(index).gray) for index in some]

    def read(rule: ReportRule) -> list[FilmReading]:
        report("choosing words")
        reader = model.reader_by(replace(manifest, report=rule))
        return [reader.report(look, model.questions.prompts) for look in looks]

    return best_wording(manifest.report, read, truths[: len(some)], RuleLabeler())
