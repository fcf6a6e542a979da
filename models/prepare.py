"""Runnable: turns a public data set, as it is published, into lines for training and evaluation.

    python -m models.prepare DATASET SOURCE OUT [--reports FOLDER] [--mimic OUT] [--processes N] [--json]

OUT gets a file of lines for each part of the split, `summary.json`, and `parts`, from which a second run goes on.
`docs/model/paper.md` says what each data set needs. Exit 0: done; 1: a file could not be written; 2: something of the
data set is missing or wrong, with file, line and column; 130: stopped, also by SIGTERM.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from threading import Event

from models.command import INTERRUPTED, command_parser, exit_status, run
from models.lab.datasets.request import DATA_SETS, Request
from models.program import command_for


def main(arguments: list[str]) -> int:
    """Run the command. Returns its exit status."""
    parser = command_parser("models.prepare", description="Turn a public data set into lines with labels.")
    parser.add_argument("data_set", choices=DATA_SETS, metavar="DATASET", help=", ".join(DATA_SETS))
    parser.add_argument("source", type=Path, metavar="SOURCE", help="the folder of the data set, as it is published")
    parser.add_argument("out", type=Path, metavar="OUT", help="the folder to write to")
    parser.add_argument(
        "--processes", type=int, default=len(os.sched_getaffinity(0)), help="default: %(default)s, one for each core"
    )
    parser.add_argument("--reports", type=Path, metavar="FOLDER", help="of mimic: MIMIC-CXR's, which has the reports")
    parser.add_argument("--mimic", type=Path, metavar="OUT", help="of imagenome and mscxr: what mimic was prepared to")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    options = parser.parse_args(arguments)
    if options.processes < 1:
        parser.error("--processes must be above 0")
    stop = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    request = Request(
        data_set=options.data_set,
        source=options.source,
        out=options.out,
        processes=options.processes,
        reports=options.reports,
        mimic=options.mimic,
    )
    return exit_status(lambda: _prepare(request, stop, as_json=options.json))


def _prepare(request: Request, stop: Event, *, as_json: bool) -> int:
    from models.lab.datasets.command import prepare_by
    from models.lab.datasets.preparation import text

    rows = prepare_by(request, stop)
    if rows is None:
        print(f"stopped; run {command_for('models.prepare')} as before to continue from here", file=sys.stderr)
        return INTERRUPTED
    print(
        json.dumps({"data_set": request.data_set, "out": str(request.out), "counts": rows}) if as_json else text(rows)
    )
    return 0


if __name__ == "__main__":
    run(main)
