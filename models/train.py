"""Runnable: a run file in, a model directory out (SPEC.md 10).

    python -m models.train RUN.toml

Run again after a stop or a kill it goes on from its last checkpoint. Exit 0: done; 1: stopped, or the disk failed; 2:
wrong input, with a line for every mistake.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from threading import Event

from models import progress
from models.command import exit_status
from models.errors import ModelError
from models.training.finish import MODEL, write_model
from models.training.loop import train
from models.training.runfile import Run, read_run
from models.training.store import stock
from models.training.team import Team, team_of


def main(arguments: list[str]) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m models.train", description="Train a model by a run file.")
    parser.add_argument("run", type=Path, metavar="RUN.toml", help="the run file")
    options = parser.parse_args(arguments)
    stop = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    return exit_status(lambda: _train(options.run, stop))


def _train(path: Path, stop: Event) -> int:
    run = read_run(path)
    directory = _run(run, stop)
    if directory is None:
        print(f"stopped; python -m models.train {path} goes on from here", file=sys.stderr)
        return 1
    print(f"{directory}: {run.model.name} {run.model.version}")
    return 0


def _run(run: Run, stop: Event) -> Path | None:
    """Make the films, train, and write the model; None where it was stopped."""
    output = Path(run.output)
    if (output / MODEL).exists():
        raise ModelError(f"{output / MODEL} is there already; name another output folder, or remove this one")
    output.mkdir(parents=True, exist_ok=True)
    with progress.on(sys.stderr) as report:
        stock(run.data, run.store, renderers=run.machine.renderers, report=report)
        with team_of(run, _follow) as team:
            pupil = train(run, team, stopped=stop.is_set, report=report)
    return write_model(run, pupil) if pupil is not None else None


def _follow(run: Run, team: Team) -> None:
    """Train in another process than the first."""
    train(run, team)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
