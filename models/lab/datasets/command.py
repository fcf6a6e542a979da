"""What `python -m models.prepare` does after parsing its arguments."""

from __future__ import annotations

import sys
from pathlib import Path
from threading import Event
from typing import Any

from models import progress
from models.errors import ModelError
from models.lab.datasets import imagenome, mimic, mscxr, nih, vindr
from models.lab.datasets.preparation import SUMMARY, Listing, prepare
from models.lab.datasets.request import Request


def prepare_by(request: Request, stop: Event) -> list[dict[str, object]] | None:
    """Write the lines of a data set. Returns the rows of its summary, or None if it was stopped.

    stop: set this to end after the parts that are being made
    Raises ModelError for what is missing or wrong in the data set, OSError if a file cannot be written.
    """
    if not request.source.is_dir():
        raise ModelError(f"{request.source} is no folder; name the folder of the data set as it was published")
    with progress.on(sys.stderr) as report:
        report(f"reading the tables of {request.source}")
        films = _listing(request)
        return prepare(films, request.out, processes=request.processes, report=report, stopped=stop.is_set)


def _listing(request: Request) -> Listing[Any]:
    match request.data_set:
        case "mimic":
            return mimic.listing(request.source, request.reports or request.source)
        case "imagenome":
            return imagenome.listing(request.source, _prepared(request))
        case "vindr":
            return vindr.listing(request.source)
        case "nih":
            return nih.listing(request.source)
        case "mscxr":
            return mscxr.listing(request.source, _prepared(request))


def _prepared(request: Request) -> Path:
    """Return the folder of MIMIC-CXR's lines. Raises ModelError if it was not given, or is not complete."""
    if request.mimic is None:
        raise ModelError(f"{request.data_set} has no films of its own; prepare mimic, and give its OUT by --mimic")
    if not (request.mimic / SUMMARY).is_file():
        raise ModelError(f"{request.mimic / SUMMARY} is missing; prepare mimic to its end, and give its OUT by --mimic")
    return request.mimic
