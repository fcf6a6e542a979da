"""Runnable: writes the tables of the paper, with the figures of evaluations beside the published ones.

    python -m models.lab.evaluation.paper [EVALUATION...] --out DIR

EVALUATION is a folder that `models.evaluate --task paper --out` wrote, or its evaluation.json; several make one row for
each model. Without any, the tables have the published rows alone. DIR gets `paper.md`, a CSV for each table, and a plot
for each table and model (SVG; needs the extra `evaluate`). Exit 0: done; 1: a file could not be written; 2: wrong
input.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from models.command import command_parser, exit_status, run
from models.lab.evaluation.paper_tables import Cell, Line, Model, Paper, Table, lines_of, read_models, read_paper

PAGE: Final = "paper.md"


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
        _write_csv(out / f"{table.name}.csv", table, paper, models)
    if find_spec("matplotlib") is None:
        print("no plots: run pip install -c constraints.txt '.[evaluate]'", file=sys.stderr)
    else:
        _write_plots(out, paper, models)
    print(out / PAGE)
    return 0


def markdown(paper: Paper, models: Sequence[Model]) -> str:
    """Write all tables."""
    return "\n".join(line for table in paper.tables for line in _page(table, paper, models)).rstrip() + "\n"


def _page(table: Table, paper: Paper, models: Sequence[Model]) -> Iterator[str]:
    lines = lines_of(table, paper, models)
    remarks = list(dict.fromkeys(remark for line in lines for cell in line.cells for remark in cell.remarks))
    yield f"### {table.title}"
    yield ""
    yield _row("", *(column.name for column in table.columns))
    yield _row("---", *["---:"] * len(table.columns))
    for line in lines:
        name = f"**{line.name}**" if line.kind == "measured" else line.name
        yield _row(name, *(_shown(cell, line, remarks) for cell in line.cells))
    yield ""
    # As rows of a list, however long: the page is held equal to what this writes.
    yield f"    published: {table.published}"
    for source in dict.fromkeys(published.source for published in table.rows):
        names = [published.name for published in table.rows if published.source == source]
        which = "all" if len(names) == len(table.rows) else ", ".join(names)
        yield f"    read in:   {which}: {paper.sources[source]}"
    for number, remark in enumerate(remarks, 1):
        yield f"    [{number}]        {remark}"
    yield ""


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _shown(cell: Cell, line: Line, remarks: Sequence[str]) -> str:
    marks = "".join(f" [{remarks.index(remark) + 1}]" for remark in cell.remarks)
    if cell.value is None:
        return cell.words + marks
    number = f"{cell.value:+.2f}" if line.kind == "difference" else f"{cell.value:.2f}"
    return (number if cell.deviation is None else f"{number} ± {cell.deviation:.2f}") + marks


def _write_csv(path: Path, table: Table, paper: Paper, models: Sequence[Model]) -> None:
    """Write a line for each cell; a number that there is not is blank, and `remarks` says why."""
    sources = [paper.sources[published.source] for published in table.rows]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["row", "kind", "column", "percent", "deviation", "source", "remarks"])
        for number, line in enumerate(lines_of(table, paper, models)):
            source = sources[number] if line.kind == "published" else ""
            for column, cell in zip(table.columns, line.cells, strict=True):
                why = [] if cell.value is not None else [cell.words]
                numbers = ["" if part is None else f"{part:.4f}" for part in (cell.value, cell.deviation)]
                writer.writerow([line.name, line.kind, column.name, *numbers, source, "; ".join([*why, *cell.remarks])])


def _write_plots(out: Path, paper: Paper, models: Sequence[Model]) -> None:
    """Draw each model's figures of each table as bars, with marks at the published ones."""
    from models.lab.evaluation.plots import bars

    for table in paper.tables:
        lines = lines_of(table, paper, models)
        own = [line for line in lines if line.kind == "measured" and line.has_values]
        for number, line in enumerate(own, 1):
            published = lines[line.beside]
            title = f"{table.title}: {line.name}; gray: {published.name}"
            values, marks = (_unit(table, shown) for shown in (line, published))
            (out / f"{table.name}-{number}.svg").write_text(bars(title, values, references=marks), encoding="utf-8")


def _unit(table: Table, line: Line) -> dict[str, float | None]:
    cells = zip(table.columns, line.cells, strict=True)
    return {column.name: None if cell.value is None else cell.value / 100 for column, cell in cells}


if __name__ == "__main__":
    run(main)
