"""Runnable: writes the tables of the paper, with the figures of evaluations beside the published ones.

    python -m models.lab.evaluation.paper [EVALUATION...] --out DIR

EVALUATION is a folder that `models.evaluate --task paper --out` wrote, or its evaluation.json; several make one line
for each model. Without any, the tables have the published numbers alone. DIR gets `paper.md` and a CSV for each table.
Exit 0: done; 1: a file could not be written; 2: wrong input.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Final

from models.command import command_parser, exit_status, run
from models.lab.evaluation.paper_tables import Cell, Line, Model, Paper, Table, lines_of, read_models, read_paper

PAGE: Final = "paper.md"
NONE: Final = "\u2013"
_COLUMNS: Final = 120
"""The width of a note."""


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


if __name__ == "__main__":
    run(main)
