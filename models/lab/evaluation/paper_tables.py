"""The tables of the paper: what is published, and what evaluations measured, cell by cell.

`paper.toml` has the published numbers with their sources, and which figure of an evaluation stands in which column.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from models.documents import from_file, read_toml
from models.errors import ModelError
from models.lab.evaluation.document import inner
from models.lab.evaluation.request import CHOOSING, PUBLISHED_TASKS

EVALUATION: Final = "evaluation.json"
_FILE: Final = Path(__file__).with_name("paper.toml")
_NUMBER: Final = re.compile(r"(-?\d+(?:\.\d+)?)(?:±(\d+(?:\.\d+)?))?")
_PERCENT: Final = 100.0
NOT_FOUND, NONE = "not found", "\u2013"
_BY_LABELER, _PAPERS_LABELER = "ce_", "chexbert"
_TEST: Final = "test.jsonl"
"""What `models.prepare` calls the films to test on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column. task, key: which figure of an evaluation stands in it."""

    name: str
    task: str
    key: str

    def __post_init__(self) -> None:
        if self.task not in PUBLISHED_TASKS:
            raise ValueError(f"task is {self.task!r}, and must be one of {', '.join(PUBLISHED_TASKS)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A published row.

    source: a key of `Paper.sources`; values: by column, "" not found, "-" the paper has none
    analysis: the file of the analysis whose figures are compared with this row
    """

    name: str
    source: str
    values: tuple[str, ...]
    analysis: str = ""

    def __post_init__(self) -> None:
        if wrong := [value for value in self.values if value not in ("", "-") and not _NUMBER.fullmatch(value)]:
            raise ValueError(f'values has {wrong[0]!r}, and must have "1.2", "1.2±0.3", "" or "-"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table.

    published: where the paper has it; rows: our figures are compared with that of their analysis, else with the first
    """

    name: str
    title: str
    published: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]

    def __post_init__(self) -> None:
        if wrong := [row.name for row in self.rows if len(row.values) != len(self.columns)]:
            raise ValueError(f"rows: {wrong[0]} must have a value for each of the {len(self.columns)} columns")


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper:
    """What is published.

    sources: where numbers were read; films: how many the paper tests each task on; sets: the folders that these are
    prepared to
    """

    sources: Mapping[str, str]
    films: Mapping[str, int]
    sets: Mapping[str, str]
    tables: tuple[Table, ...]

    def __post_init__(self) -> None:
        if unknown := {row.source for table in self.tables for row in table.rows} - self.sources.keys():
            raise ValueError(f"sources lacks {', '.join(sorted(unknown))}")
        if any(table.keys() != set(PUBLISHED_TASKS) for table in (self.films, self.sets)):
            raise ValueError("films and sets must each name every task of the paper")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A cell: a number in percent with its deviation, or the words that stand instead; remarks: on the number."""

    value: float | None = None
    deviation: float | None = None
    words: str = NONE
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A row to be written.

    kind: "published", "measured", or "difference" from a published row; beside: the number of that row
    """

    name: str
    kind: str
    cells: tuple[Cell, ...]
    beside: int = 0

    @property
    def has_values(self) -> bool:
        """Whether any cell has a number."""
        return any(cell.value is not None for cell in self.cells)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What was measured of one model, possibly with parts left out: its name, and the evaluation of each task.

    analysis: the name of the file by which it was asked; "" as published
    """

    name: str
    evaluations: Mapping[str, Mapping[str, object]]
    analysis: str = ""


def read_paper() -> Paper:
    """Read what is published. Raises ModelError if the file has mistakes."""
    return from_file(Paper, read_toml(_FILE, name="the tables of the paper"), path=_FILE)


def read_models(results: Sequence[Path], paper: Paper) -> tuple[list[Model], list[str]]:
    """Read evaluations, files or folders. Returns the models that they measure, and remarks on what no table shows.

    Where several measure a task of the same model, the one on the films of that task counts: those of Chest ImaGenome
    have reports too. Raises ModelError if a file is no evaluation, or if that does not decide.
    """
    found: dict[tuple[str, str, str], list[tuple[Path, Mapping[str, object]]]] = {}
    remarks = []
    for path in (result / EVALUATION if result.is_dir() else result for result in results):
        document = _read(path)
        found.setdefault(_identity(document), []).append((path, document))
        if others := sorted(inner(document, "tasks").keys() - set(PUBLISHED_TASKS)):
            remarks.append(f"{path} measures {', '.join(others)}, which are no tasks of the paper")
    models = [
        Model(name=name, evaluations=_by_task(own, paper), analysis=analysis)
        for (name, analysis, _), own in found.items()
    ]
    return [model for model in models if model.evaluations], remarks


def _by_task(evaluations: Sequence[tuple[Path, Mapping[str, object]]], paper: Paper) -> dict[str, Mapping[str, object]]:
    """Return the evaluation of each task of the paper."""
    chosen: dict[str, Mapping[str, object]] = {}
    for task in PUBLISHED_TASKS:
        own = [(path, document) for path, document in evaluations if task in inner(document, "tasks")]
        right = [(path, document) for path, document in own if _data(document).parent.name == paper.sets[task]] or own
        if len(right) > 1:
            raise ModelError(f"{right[0][0]} and {right[1][0]} both measure {task} of the same model; name one of them")
        if right:
            chosen[task] = right[0][1]
    return chosen


def _data(document: Mapping[str, object]) -> Path:
    """Return the file of films that was measured."""
    return Path(str(document.get("data")).removeprefix("boxes:"))


def _read(path: Path) -> Mapping[str, object]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read as an evaluation ({error}); name what --out wrote") from error
    if not isinstance(document, dict) or not isinstance(document.get("tasks"), dict):
        raise ModelError(f"{path} is no evaluation; name what models.evaluate --out wrote")
    return document


def _identity(document: Mapping[str, object]) -> tuple[str, str, str]:
    """Return what tells models apart: the name to show, the analysis by which they were asked, and their weights."""
    model, ablations = inner(document, "model"), document.get("ablations")
    named = ", ".join(map(str, ablations)) if isinstance(ablations, list) else ""
    is_asked = "analysis" in document
    other = f", {'asked by' if is_asked else 'without'} {named}" if named else ""
    name = f"{model.get('name')} {model.get('version')}{other}"
    return name, named if is_asked else "", str(model.get("weights_sha256"))


def lines_of(table: Table, paper: Paper, models: Sequence[Model]) -> list[Line]:
    """Return all rows of a table: the published ones, then each model's with its difference from one of them."""
    published = [Line(name=row.name, kind="published", cells=tuple(map(_published, row.values))) for row in table.rows]
    shown = [model for model in models if any(column.task in model.evaluations for column in table.columns)]
    if not models:
        return [*published, Line(name="measured", kind="measured", cells=tuple(Cell() for _ in table.columns))]
    measured = [_measured(table, paper, model) for model in shown]
    told = [line for own in measured for line in (own, _difference(own, published[own.beside]))]
    return [*published, *(line for line in told if line.kind == "measured" or line.has_values)]


def _published(value: str) -> Cell:
    if value in ("", "-"):
        return Cell(words=NONE if value else NOT_FOUND)
    number, _, deviation = value.partition("±")
    return Cell(value=float(number), deviation=float(deviation) if deviation else None)


def _measured(table: Table, paper: Paper, model: Model) -> Line:
    cells = tuple(_cell(column, paper, model.evaluations.get(column.task)) for column in table.columns)
    analyses = [row.analysis for row in table.rows]
    beside = analyses.index(model.analysis) if model.analysis in analyses else 0
    return Line(name=model.name, kind="measured", cells=cells, beside=beside)


def _cell(column: Column, paper: Paper, document: Mapping[str, object] | None) -> Cell:
    """Return the cell of a column; document: the evaluation that has its task, if one has."""
    if document is None:
        return Cell()
    made = inner(inner(document, "tasks"), column.task)
    value = _number(made, column.key)
    if value is None:
        reason = inner(made, "not_computed").get(column.key)
        return Cell(remarks=() if reason is None else (f"{column.name}: not computed: {reason}",))
    deviation = _number(inner(made, "deviations"), column.key)
    return Cell(
        value=_PERCENT * value,
        deviation=None if deviation is None else _PERCENT * deviation,
        remarks=tuple(_remarks(column, paper, document)),
    )


def _number(table: Mapping[str, object], key: str) -> float | None:
    """Return a number of a table; None if it is missing or unknown."""
    value = table.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _remarks(column: Column, paper: Paper, document: Mapping[str, object]) -> Iterator[str]:
    """Say what sets a measurement apart from the published one."""
    task = column.task
    made = inner(inner(document, "tasks"), task)
    if task in CHOOSING and not inner(made, "settings").get("chosen_on"):
        yield f"{task} with settings as published, not chosen on other films (--choose-on)"
    labeler = made.get("labeler")
    if column.key.startswith(_BY_LABELER) and not str(labeler).startswith(_PAPERS_LABELER):
        yield f"classes of texts found by {labeler}; the paper takes CheXbert"
    data, own = _data(document), f"{paper.sets[task]}/{_TEST}"
    if f"{data.parent.name}/{data.name}" != own:
        yield f"{task} on {data.parent.name}/{data.name}, not on {own} of models.prepare"
    if made.get("films") != paper.films[task]:
        yield f"{task} on {made.get('films')} films; the paper has {paper.films[task]:,}"


def _difference(own: Line, published: Line) -> Line:
    cells = tuple(
        Cell() if mine.value is None or theirs.value is None else Cell(value=mine.value - theirs.value)
        for mine, theirs in zip(own.cells, published.cells, strict=True)
    )
    return Line(name=f"difference from {published.name}", kind="difference", cells=cells)
