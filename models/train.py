"""Runnable: trains a model by a run file and writes a model directory (spec §10).

    python -m models.train RUN.toml

A run file whose `model` names a model directory trains a view head for that model instead, and writes it into the
directory (`models.lab.training.views`). That takes minutes, and begins anew after a stop. Any other training, if run
again after a stop or a kill, makes the missing films and continues from the last checkpoint. One that asks for several
processes is started by torchrun: `torchrun --standalone --nproc-per-node N -m models.train RUN.toml`. Exit 0: done;
1: a file could not be written; 2: wrong input, with a line for every mistake; 130: stopped, also by SIGTERM.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from threading import Event

from models.command import INTERRUPTED, command_parser, exit_status, run
from models.program import command_for


def main(arguments: list[str]) -> int:
    """Run the command. Returns its exit status."""
    parser = command_parser("models.train", description="Train a model as a run file says.")
    parser.add_argument("run", type=Path, metavar="RUN.toml", help="the run file")
    options = parser.parse_args(arguments)
    stop = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())

    return exit_status(lambda: _train(options.run, stop))


def _train(path: Path, stop: Event) -> int:
    from models import progress
    from models.lab.training.loop import is_first, train_by
    from models.lab.training.runfile import is_view_run, read_run, read_view_run
    from models.lab.training.views import train_views

    if is_view_run(path):
        with progress.on(sys.stderr) as report:
            model = train_views(read_view_run(path), report, stop)
        if model is None:
            print(f"stopped; nothing was written, run {command_for('models.train')} {path} again", file=sys.stderr)
            return INTERRUPTED
        print(f"{model}: has a view head; its graphs have to be exported again ({command_for('export.build')})")
        return 0
    run = read_run(path)
    directory = train_by(run, stop)
    if directory is None:
        print(f"stopped; run {command_for('models.train')} {path} to continue from here", file=sys.stderr)
        return INTERRUPTED
    if is_first():
        print(f"{directory}: {run.model.name} {run.model.version}")
    return 0


if __name__ == "__main__":
    run(main)
