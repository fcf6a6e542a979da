"""Reads the CSV tables of a data set row by row; every complaint names the file, the line and the column."""

from __future__ import annotations

import csv
import gzip
import io
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from models.errors import ModelError


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of a table; line: the number of its last line in the file, from 1."""

    path: Path
    line: int
    cells: Mapping[str, str]

    def refused(self, column: str, complaint: str) -> ModelError:
        """Make an error that names the place of a cell."""
        return ModelError(f"{self.path}, line {self.line}, column {column!r}: {complaint}")

    def text(self, column: str) -> str:
        """Return a cell that must not be empty. Raises ModelError."""
        if not (value := self.cells[column].strip()):
            raise self.refused(column, "is empty; restore the file as it was published")
        return value

    def one_of(self, column: str, known: Sequence[str]) -> str:
        """Return a cell that must have one of these values. Raises ModelError."""
        if (value := self.text(column)) not in known:
            raise self.refused(column, f"{value!r} is none of {', '.join(known)}")
        return value

    def number(self, column: str) -> float:
        """Return a finite number. Raises ModelError."""
        try:
            value = float(self.text(column))
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise self.refused(column, f"{self.cells[column]!r} is no number; restore the file as it was published")
        return value

    def size(self, column: str) -> int:
        """Return a whole number above 0. Raises ModelError."""
        value = self.number(column)
        if value < 1 or value != int(value):
            raise self.refused(column, f"{self.cells[column]!r} is no number of pixels")
        return int(value)

    def box_of_size(self, left: str, top: str, width: str, height: str) -> list[float]:
        """Return the edges of a box that is given by its corner and its size. Raises ModelError if it has no area."""
        x, y, across, down = (self.number(column) for column in (left, top, width, height))
        edges = [x, y, x + across, y + down]
        if edges[2] <= edges[0] or edges[3] <= edges[1]:
            raise self.refused(width, f"the box {edges} has no area; correct or remove the row")
        return edges


def rows_of(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    """Read the rows of a table, plain or compressed by gzip, one at a time.

    columns: those that are needed; others may be there
    Raises ModelError if the table cannot be read, lacks a column, or has a row of another length.
    """
    try:
        with _opened(path) as file:
            table = csv.reader(file)
            header = next(table, [])
            for column in columns:
                if column not in header:
                    raise ModelError(f"{path}, line 1, column {column!r}: is missing among {', '.join(header)}")
            for cells in table:
                if len(cells) != len(header):
                    wrong = Row(path=path, line=table.line_num, cells={})
                    raise wrong.refused(
                        header[min(len(cells), len(header) - 1)],
                        f"the row has {len(cells)} cells instead of {len(header)}; download the file again",
                    )
                yield Row(path=path, line=table.line_num, cells=dict(zip(header, cells, strict=True)))
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror or error}); {_ADVICE}") from error
    except (UnicodeDecodeError, EOFError, zlib.error, csv.Error) as error:
        raise ModelError(f"{path} is damaged ({error}); {_ADVICE}") from error


def first_of(folder: Path, *names: str) -> Path:
    """Return the first of these files that a folder has. Raises ModelError if it has none."""
    for name in names:
        if (path := folder / name).is_file():
            return path
    raise ModelError(f"{folder / names[0]} is missing{''.join(f', and so is {name}' for name in names[1:])}; {_ADVICE}")


_ADVICE = "name the folder of the data set as it was published"


def _opened(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return io.TextIOWrapper(gzip.open(path), encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")
