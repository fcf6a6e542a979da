"""The request to prepare a data set. Imports no library, so `--help` works without them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

DataSet = Literal["mimic", "imagenome", "vindr", "nih", "mscxr"]
DATA_SETS: Final[tuple[DataSet, ...]] = get_args(DataSet)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A data set to prepare.

    source: its folder as published; out: the folder of the lines
    reports: of mimic, the folder of MIMIC-CXR's reports, if it is not the source
    mimic: of imagenome and mscxr, the folder of lines that mimic was prepared to
    """

    data_set: DataSet
    source: Path
    out: Path
    processes: int
    reports: Path | None = None
    mimic: Path | None = None
