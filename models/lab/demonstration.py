"""Runnable: a copy of the demonstration model in a directory of one's own.

    python -m models.lab.demonstration DIRECTORY

An installed program needs the copy: graphs are exported into the model directory, and the program's own folder may be
read-only. Exit 0: done; 1: the disk failed; 2: wrong input, with one line that says what to do.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from models.command import command_parser, exit_status, run
from models.errors import ModelError
from node import command_for

_SHIPPED: Final = Path(__file__).parents[1] / "weights" / "phantom"
_MADE_HERE: Final = ("onnx", "parity.json")
"""What the export adds to a model directory: not copied, because each installation exports and proves its own."""


def main(arguments: list[str]) -> int:
    """Run the command; returns its exit status."""
    parser = command_parser("models.lab.demonstration", description="Copy the demonstration model.")
    parser.add_argument("directory", type=Path, metavar="DIRECTORY", help="the model directory to write")
    options = parser.parse_args(arguments)
    return exit_status(lambda: _copy(options.directory), remark=f"; remove {options.directory} before you try again")


def _copy(directory: Path) -> int:
    if directory.exists():
        raise ModelError(f"{directory} exists; name a directory that does not exist yet")
    shutil.copytree(_SHIPPED, directory, ignore=shutil.ignore_patterns(*_MADE_HERE))
    print(f"{directory}: the demonstration model; {command_for('export.build')} --model {directory} exports its graphs")
    return 0


if __name__ == "__main__":
    run(main)
