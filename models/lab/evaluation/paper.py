"""Runnable: writes the tables of the paper, with the figures of evaluations beside the published ones.

    python -m models.lab.evaluation.paper [EVALUATION...] --out DIR

EVALUATION is a folder that `models.evaluate --task paper --out` wrote, or its evaluation.json; several make one line
for each model. Without any, the tables have the published numbers alone. DIR gets `paper.md` and a CSV for each table.
`paper.toml` has the published numbers in the paper's rows and columns, and which figure of an evaluation stands where.
Exit 0: done; 1: a file could not be written; 2: wrong input.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import wrap
from typing import Final, Literal

from models.command import command_parser, exit_status, run
from models.documents import from_file, read_toml
from models.errors import ModelError
from models.lab.evaluation.document import inner, read_evaluation
from models.lab.evaluation.request import CHOOSING, PUBLISHED_TASKS

PAGE: Final = "paper.md"
NONE: Final = "\u2013"
_COLUMNS: Final = 120
"""The width of a note."""
EVALUATION: Final = "evaluation.json"
_FILE: Final = Path(__file__).with_name("paper.toml")
_UNPUBLISHED: Final = "-"
_PERCENT: Final = 100.0
_BY_LABELER, _PAPERS_LABELER = "ce_", "chexbert"
_TEST: Final = "test.jsonl"
"""What `models.prepare` calls the films to test on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A published row: percent, with its deviation or without, by column; "-" where the paper has none."""

    name: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table.

    figures: whether its rows or its columns are figures; keys: for each figure, the task and the key in an evaluation
    asked: for each row or column that is no figure, the analyses and models that are compared with it
    default: the number of the one that all the rest is compared with
    other: figures by another definition, as the name of the definition, and its key by the name of the figure
    """

    number: int
    title: str
    figures: Literal["rows", "columns"]
    keys: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    note: str = ""
    asked: tuple[tuple[str, ...], ...] = ()
    default: int = 0
    other: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the figures."""
        return self.columns if self.figures == "columns" else tuple(row.name for row in self.rows)

    @property
    def published(self) -> list[Line]:
        """The published figures of each model, prompt set or training."""
        values = [(row.name, *row.values) for row in self.rows]
        if self.figures == "rows":
            values = list(zip(self.columns, *(row.values for row in self.rows), strict=True))
        return [Line(name=name, kind="published", cells=tuple(map(_published, own))) for name, *own in values]


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper:
    """The published tables; films: number of test films of each task; sets: the folders that these are prepared to."""

    films: Mapping[str, int]
    sets: Mapping[str, str]
    tables: tuple[Table, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A number in percent, None if there is none, and remarks on it.

    deviation: its standard deviation in percent; of a difference, how many standard deviations it is
    digits: after the point, as published
    """

    value: float | None = None
    deviation: float | None = None
    digits: int = 2
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A number for each figure of a table. kind: "published", "measured", or "difference" from what is published."""

    name: str
    kind: Literal["published", "measured", "difference"]
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What was measured of one model: its name to show, and the evaluation of each task.

    known_as: the name of the file by which it was asked; of a model that was asked as published, its own
    """

    name: str
    known_as: str
    evaluations: Mapping[str, Mapping[str, object]]


def main(arguments: list[str]) -> int:
    """Run the command. Returns its exit status."""
    parser = command_parser("models.lab.evaluation.paper", description="Write the tables of the paper.")
    parser.add_argument("evaluations", type=Path, nargs="*", metavar="EVALUATION", help="what models.evaluate wrote")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder to write to")
    options = parser.parse_args(arguments)
    return exit_status(lambda: _write(options.evaluations, options.out))


def _write(evaluations: Sequence[Path], out: Path) -> int:
    paper = read_paper()
    models, remarks = read_models(evaluations, paper)
    for remark in remarks:
        print(remark, file=sys.stderr)
    out.mkdir(parents=True, exist_ok=True)
    (out / PAGE).write_text(markdown(paper, models), encoding="utf-8")
    for table in paper.tables:
        _write_csv(out / f"table-{table.number}.csv", table, lines_of(table, paper, models))
    print(out / PAGE)
    return 0


def markdown(paper: Paper, models: Sequence[Model]) -> str:
    """Write all tables."""
    pages = (_page(table, lines_of(table, paper, models)) for table in paper.tables)
    return "\n".join(line for page in pages for line in page).rstrip() + "\n"


def _page(table: Table, lines: Sequence[Line]) -> Iterator[str]:
    """Write a table in the paper's layout: what is measured is below the published rows, or right of the columns."""
    remarks = list(dict.fromkeys(remark for line in lines for cell in line.cells for remark in cell.remarks))
    grid = [("", *table.names)]
    for line in lines:
        name = f"**{line.name}**" if line.kind == "measured" else line.name
        grid.append((name, *(_shown(cell, line, remarks) for cell in line.cells)))
    first, *others = grid if table.figures == "columns" else zip(*grid, strict=True)
    yield f"### Table {table.number}. {table.title}"
    yield ""
    for row in (first, ("---", *["---:"] * (len(first) - 1)), *others):
        yield f"| {' | '.join(row)} |"
    yield ""
    if table.note:
        yield from (*wrap(table.note, _COLUMNS), "")
    for number, remark in enumerate(remarks, 1):
        yield f"    [{number}] {remark}"
    if remarks:
        yield ""


def _shown(cell: Cell, line: Line, remarks: Sequence[str]) -> str:
    marks = "".join(f" [{remarks.index(remark) + 1}]" for remark in cell.remarks)
    if cell.value is None:
        return NONE + marks
    if line.kind == "difference":
        return f"{cell.value:+.2f}" + ("" if cell.deviation is None else f" ({cell.deviation:+.1f} sd)")
    return f"{cell.value:.{cell.digits}f}" + ("" if cell.deviation is None else f" ± {cell.deviation:.2f}") + marks


def _write_csv(path: Path, table: Table, lines: Sequence[Line]) -> None:
    """Write a row for each figure of each line; a number that there is not is blank, and `remarks` says why."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["name", "kind", "figure", "percent", "deviation", "remarks"])
        for line in lines:
            for figure, cell in zip(table.names, line.cells, strict=True):
                numbers = ["" if part is None else f"{part:.4f}" for part in (cell.value, cell.deviation)]
                writer.writerow([line.name, line.kind, figure, *numbers, "; ".join(cell.remarks)])


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
        document = read_evaluation(path)
        found.setdefault(_identity(document), []).append((path, document))
        if others := sorted(inner(document, "tasks").keys() - set(PUBLISHED_TASKS)):
            remarks.append(f"{path} measures {', '.join(others)}, which are no tasks of the paper")
    models = [
        Model(name=name, known_as=known_as, evaluations=_by_task(own, paper))
        for (name, known_as, _), own in found.items()
    ]
    return models, remarks


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


def _identity(document: Mapping[str, object]) -> tuple[str, str, str]:
    """Return the identity of a model: the name to show, `Model.known_as`, and its weights."""
    model, analysis = inner(document, "model"), inner(document, "analysis").get("name")
    name = f"{model.get('name')} {model.get('version')}" + (f", asked by {analysis}" if analysis else "")
    return name, str(analysis or model.get("name")), str(model.get("weights_sha256"))


def lines_of(table: Table, paper: Paper, models: Sequence[Model]) -> list[Line]:
    """Return the published lines, then each model's, by each definition, with its difference from a published one."""
    lines = table.published
    for model in models:
        beside = next((n for n, names in enumerate(table.asked) if model.known_as in names), table.default)
        for definition, keys in {"": dict(zip(table.names, table.keys, strict=True)), **table.other}.items():
            cells = tuple(_cell(name, keys.get(name), paper, model) for name in table.names)
            name = f"{model.name}, {definition}" if definition else model.name
            own = Line(name=name, kind="measured", cells=cells)
            both = (own, _difference(own, table.published[beside]))
            lines += [line for line in both if any(cell != Cell() for cell in line.cells)]
    return lines


def _published(value: str) -> Cell:
    if value == _UNPUBLISHED:
        return Cell()
    number, _, deviation = value.partition("±")
    digits = len(number.partition(".")[2])
    return Cell(value=float(number), deviation=float(deviation) if deviation else None, digits=digits)


def _cell(name: str, key: str | None, paper: Paper, model: Model) -> Cell:
    """Return the cell of a figure; key: its task and its key, None if the definition has no such figure."""
    task, _, key = (key or "").partition(".")
    if (document := model.evaluations.get(task)) is None:
        return Cell()
    made = inner(inner(document, "tasks"), task)
    value, deviation = _number(made, key), _number(inner(made, "deviations"), key)
    if value is None:
        reason = inner(made, "not_computed").get(key)
        return Cell(remarks=() if reason is None else (f"{name}: not computed: {reason}",))
    return Cell(
        value=_PERCENT * value,
        deviation=None if deviation is None else _PERCENT * deviation,
        remarks=tuple(_remarks(task, key, paper, document)),
    )


def _number(table: Mapping[str, object], key: str) -> float | None:
    """Return a number of a table; None if it is missing or unknown."""
    value = table.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _remarks(task: str, key: str, paper: Paper, document: Mapping[str, object]) -> Iterator[str]:
    """Say what sets a measurement apart from the published one."""
    made = inner(inner(document, "tasks"), task)
    if task in CHOOSING and not inner(made, "settings").get("chosen_on"):
        yield f"{task} with settings as published, not chosen on other films (--choose-on)"
    labeler = made.get("labeler")
    if key.startswith(_BY_LABELER) and not str(labeler).startswith(_PAPERS_LABELER):
        yield f"classes of texts found by {labeler}; the paper takes CheXbert"
    data, own = _data(document), f"{paper.sets[task]}/{_TEST}"
    if f"{data.parent.name}/{data.name}" != own:
        yield f"{task} on {data.parent.name}/{data.name}, not on {own} of models.prepare"
    if made.get("films") != paper.films[task]:
        yield f"{task} on {made.get('films')} films; the paper has {paper.films[task]:,}"


def _difference(own: Line, published: Line) -> Line:
    cells = tuple(_apart(*pair) for pair in zip(own.cells, published.cells, strict=True))
    return Line(name=f"difference from {published.name}", kind="difference", cells=cells)


def _apart(own: Cell, published: Cell) -> Cell:
    """Return a figure's difference from the published one in deviations: the paper's, or ours if it has none."""
    if own.value is None or published.value is None:
        return Cell()
    apart, deviation = own.value - published.value, published.deviation or own.deviation
    return Cell(value=apart, deviation=apart / deviation if deviation else None)


if __name__ == "__main__":
    run(main)
