"""Runnable: a published checkpoint in, a model directory out.

    python -m models.checkpoint SOURCE DIRECTORY [--name TEXT] [--version TEXT] [--gpt2-heads N] [--rest DIR] [--json]

Exit 0: done; 1: the disk failed, or it was stopped; 2: wrong input, with one line that says what to do.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from dataclasses import asdict
from pathlib import Path

from models import progress
from models.checkpoint.importer import Imported, Wishes, bring
from models.command import exit_status

_NOTHING_LEFT = "; nothing was left behind"


def main(arguments: list[str]) -> int:
    """Run the command; returns its exit status."""
    options = _parser().parse_args(arguments)
    wishes = Wishes(
        name=options.name,
        version=options.version,
        gpt2_heads=options.gpt2_heads,
        rest=options.rest,
        seed=options.seed,
    )

    def make() -> int:
        with progress.on(sys.stderr) as report:
            imported = bring(options.source, options.directory, wishes, report=report)
        print(json.dumps(asdict(imported), default=str, ensure_ascii=False) if options.json else _line(imported))
        return 0

    try:
        return exit_status(make, remark=_NOTHING_LEFT)
    except KeyboardInterrupt:
        print(f"stopped{_NOTHING_LEFT}", file=sys.stderr)
        return 1


def _line(imported: Imported) -> str:
    return f"{imported.directory}: {imported.name} {imported.version}, {imported.parameters:,} parameters"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m models.checkpoint", description="Turn a published checkpoint into a model directory."
    )
    parser.add_argument(
        "source",
        type=Path,
        metavar="SOURCE",
        help="the published zip, its unpacked folder, a run folder or a .pth; or CheXzero's .pt, or a GPT-2 "
        "(pytorch_model.bin, model.safetensors, or the folder with it)",
    )
    parser.add_argument("directory", type=Path, metavar="DIRECTORY", help="the model directory to write")
    parser.add_argument("--name", help="of the model; default: the folder above the run")
    parser.add_argument("--version", help="of the model; default: its training step")
    parser.add_argument("--gpt2-heads", type=int, metavar="N", help="of a GPT-2 that is not the published one")
    parser.add_argument(
        "--rest", type=Path, metavar="DIR", help="the model directory that gives what CheXzero or GPT-2 do not hold"
    )
    parser.add_argument(
        "--seed", type=int, default=1, help="of the random weights without --rest; default: %(default)s"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))
