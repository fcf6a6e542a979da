"""What `python -m models.train` does after parsing its arguments: make films, train, write the model directory."""

from __future__ import annotations

import sys
from pathlib import Path
from threading import Event

from models import progress
from models.errors import ModelError
from models.lab.training.finish import MODEL, write_model
from models.lab.training.loop import train
from models.lab.training.process_group import ProcessGroup, open_group
from models.lab.training.runfile import Run
from models.lab.training.store import stock
from models.lab.training.view_run import ViewRun
from models.lab.training.views import train_views


def train_by(run: Run, stop: Event) -> Path | None:
    """Make the films, train, and write the model. Returns its directory, or None if the run was stopped.

    stop: set this to end the run after the current step
    Raises ModelError if the output exists already, OSError if a file cannot be written.
    """
    output = Path(run.output)
    if (output / MODEL).exists():
        raise ModelError(f"{output / MODEL} exists already; name another output folder, or delete this directory")
    output.mkdir(parents=True, exist_ok=True)
    with progress.on(sys.stderr) as report:
        if not stock(run.data, run.store, renderers=run.machine.renderers, report=report, stopped=stop.is_set):
            return None
        with open_group(run, _follow) as group:
            model = train(run, group, stopped=stop.is_set, report=report)
    return write_model(run, model) if model is not None else None


def train_views_by(run: ViewRun, stop: Event) -> Path | None:
    """Train a view head and write it into its model's directory; see `views.train_views`."""
    with progress.on(sys.stderr) as report:
        return train_views(run, report, stop)


def _follow(run: Run, group: ProcessGroup) -> None:
    """Train in one of the other processes."""
    train(run, group)
