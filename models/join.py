"""Runnable: joins the model of stage 2 with that of the text-only pre-training; stage 3 starts from it (spec §10).

    python -m models.join STAGE_2 TEXT DIRECTORY [--json]

DIRECTORY gets the generator of TEXT and everything else of STAGE_2; a run file names it as its `start`. Exit 0: done;
1: a file could not be written; 2: wrong input, with one line that says what to do.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from models.command import command_parser, exit_status, run


def main(arguments: list[str]) -> int:
    """Run the command. Returns its exit status."""
    parser = command_parser(
        "models.join", description="Join the results of two trainings into the starting point of a third."
    )
    parser.add_argument("stage_2", type=Path, metavar="STAGE_2", help="the model directory that gives everything else")
    parser.add_argument("text", type=Path, metavar="TEXT", help="the model directory that gives the generator")
    parser.add_argument("directory", type=Path, metavar="DIRECTORY", help="the model directory to write")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(arguments)
    return exit_status(lambda: _join(options), remark="; nothing was left behind")


def _join(options: argparse.Namespace) -> int:
    # Imported after the arguments were checked: PyTorch takes seconds to import.
    from models import progress
    from models.checkpoint.joining import join

    with progress.on(sys.stderr) as report:
        joined = join(options.stage_2, options.text, options.directory, report=report)
    if options.json:
        print(json.dumps(asdict(joined), default=str, ensure_ascii=False))
    else:
        print(f"{joined.directory}: {joined.name} {joined.version}, {joined.parameters:,} parameters")
    return 0


if __name__ == "__main__":
    run(main)
