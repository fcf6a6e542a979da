"""Runnable: trains a model by a run file and writes a model directory (spec §10).

    python -m models.train RUN.toml [--estimate [--films N]]

A run file whose `model` names a model directory trains a view head for that model instead, and writes it into the
directory (`models.lab.training.views`). That takes minutes, and begins anew after a stop. Any other training, if run
again after a stop or a kill, makes the missing films and continues from the last checkpoint. `--estimate` takes a few
steps, prints steps, hours, memory and disk of the run, and writes nothing. Exit 0: done; 1: a file could not be
written; 2: wrong input, with a line for every mistake; 130: stopped, also by SIGTERM.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from threading import Event

from models.command import INTERRUPTED, command_parser, exit_status, run
from node import command_for


def main(arguments: list[str]) -> int:
    """Run the command. Returns its exit status."""
    parser = command_parser("models.train", description="Train a model as a run file says.")
    parser.add_argument("run", type=Path, metavar="RUN.toml", help="the run file")
    parser.add_argument(
        "--estimate", action="store_true", help="print steps, hours, memory and disk of the run, and train nothing"
    )
    parser.add_argument(
        "--films", type=int, metavar="N", help="with --estimate: films of an epoch, if the run's files are not there"
    )
    options = parser.parse_args(arguments)
    if options.films is not None and (options.films < 1 or not options.estimate):
        parser.error("--films must be above 0, and goes with --estimate")
    if options.estimate:
        return exit_status(lambda: _estimate(options.run, options.films))
    stop = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())

    return exit_status(lambda: _train(options.run, stop))


def _estimate(path: Path, films: int | None) -> int:
    from models import progress
    from models.errors import ModelError
    from models.lab.training.estimate import estimate
    from models.lab.training.estimate_text import text
    from models.lab.training.runfile import read_run
    from models.lab.training.view_run import is_view_run

    if is_view_run(path):
        raise ModelError(f"{path} trains a view head, which takes minutes; --estimate is for the other runs")
    run = read_run(path)
    with progress.on(sys.stderr) as report:
        made = estimate(run, films=films, report=report)
    print(text(run, made))
    return 0


def _train(path: Path, stop: Event) -> int:
    from models.lab.training.command import train_by, train_views_by
    from models.lab.training.runfile import read_run
    from models.lab.training.view_run import is_view_run, read_view_run

    if is_view_run(path):
        model = train_views_by(read_view_run(path), stop)
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
    print(f"{directory}: {run.model.name} {run.model.version}")
    return 0


if __name__ == "__main__":
    run(main)
