"""Runnable: turns a public data set, as it is published, into lines for training and evaluation.

    python -m models.prepare DATASET SOURCE OUT [--reports FOLDER] [--mimic OUT] [--processes N] [--json]

OUT gets a file of lines for each part of the split, `summary.json`, and `parts`, from which a second run goes on.
`docs/model/paper.md` says what each data set needs. Exit 0: done; 1: a file could not be written; 2: something of the
data set is missing or wrong, with file, line and column; 130: stopped, also by SIGTERM.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, Final

from models.command import INTERRUPTED, command_parser, exit_status, run
from models.errors import ModelError
from models.program import command_for

if TYPE_CHECKING:
    from models.lab.datasets.preparation import Listing

DATA_SETS: Final = ("mimic", "imagenome", "vindr", "nih", "mscxr", "readings")


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
    return exit_status(lambda: _prepare(options, stop))


def _prepare(options: argparse.Namespace, stop: Event) -> int:
    """Write the lines of a data set; stop: set this to end after the parts that are being made."""
    from models import progress
    from models.lab.datasets.preparation import prepare, text

    if not options.source.is_dir():
        raise ModelError(f"{options.source} is no folder; name the folder of the data set as it was published")
    with progress.on(sys.stderr) as report:
        report(f"reading the tables of {options.source}")
        films = _listing(options)
        rows = prepare(films, options.out, processes=options.processes, report=report, stopped=stop.is_set)
    if rows is None:
        print(f"stopped; run {command_for('models.prepare')} as before to continue from here", file=sys.stderr)
        return INTERRUPTED
    document = {"data_set": options.data_set, "out": str(options.out), "counts": rows}
    print(json.dumps(document) if options.json else text(rows))
    return 0


def _listing(options: argparse.Namespace) -> Listing[Any]:
    from models.lab.datasets import nih, readings

    match options.data_set:
        case "nih":
            return nih.listing(options.source)
        case "readings":
            return readings.listing(options.source)
    # These need packages of the extra `paper`.
    from models.lab.datasets import imagenome, mimic, mscxr, vindr

    match options.data_set:
        case "mimic":
            return mimic.listing(options.source, options.reports or options.source)
        case "vindr":
            return vindr.listing(options.source)
        case "imagenome":
            return imagenome.listing(options.source, _prepared(options))
    return mscxr.listing(options.source, _prepared(options))


def _prepared(options: argparse.Namespace) -> Path:
    """Return the folder of MIMIC-CXR's lines. Raises ModelError if it was not given, or is not complete."""
    from models.lab.datasets.preparation import SUMMARY

    lines: Path | None = options.mimic
    if lines is None:
        raise ModelError(f"{options.data_set} has no films of its own; prepare mimic, and give its OUT by --mimic")
    if not (lines / SUMMARY).is_file():
        raise ModelError(f"{lines / SUMMARY} is missing; prepare mimic to its end, and give its OUT by --mimic")
    return lines


if __name__ == "__main__":
    run(main)
