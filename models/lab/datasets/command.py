"""What `python -m models.prepare` does after parsing its arguments."""

from __future__ import annotations

import sys
from threading import Event

from models import progress
from models.errors import ModelError
from models.lab.datasets import nih
from models.lab.datasets.preparation import prepare
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
        match request.data_set:
            case "nih":
                films = nih.listing(request.source)
        return prepare(films, request.out, processes=request.processes, report=report, stopped=stop.is_set)
