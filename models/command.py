"""Common parts of all commands: `--version`, the handling of errors, and Ctrl-C (design §2).

A command first parses its arguments and then imports torch, onnx and the modules that need them, inside a function:
these imports take seconds, and `--help`, `--version` and a mistyped option must be answered without them.
"""

from __future__ import annotations

import argparse
import math
import os
import select
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NoReturn

from models.errors import ModelError
from models.program import VERSION_LINE, command_for

INTERRUPTED: Final = 130
"""The exit code that a shell expects after Ctrl-C: 128 and the number of SIGINT."""
UNREAD: Final = 141
"""The exit code that a shell expects of a program whose reader has gone: 128 and the number of SIGPIPE."""
_EXTRAS: Final = {
    **dict.fromkeys(("matplotlib", "pycocotools", "rouge_score", "sacrebleu", "sklearn"), "evaluate"),
    **dict.fromkeys(("ensemble_boxes", "pysbd"), "paper"),
    "scipy": "train",
    "transformers": "paper",
}
"""The extra of each package that some commands need and a node does not."""


def command_parser(module: str, *, description: str) -> argparse.ArgumentParser:
    """Make the parser of a command, which knows `--version`.

    module: the module that `python -m` runs, such as models.train
    """
    parser = argparse.ArgumentParser(prog=command_for(module), description=description)
    parser.add_argument("--version", action="version", version=VERSION_LINE)
    return parser


def run(main: Callable[[list[str]], int]) -> NoReturn:
    """Run a command with the arguments of its process, and exit with its status, or with 130 after Ctrl-C."""
    try:
        sys.exit(while_read(lambda: main(sys.argv[1:])))
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        extra = _EXTRAS.get(package)
        if extra is None:
            raise
        print(f"error: {package} is missing; run pip install -c constraints.txt '.[{extra}]'", file=sys.stderr)
        sys.exit(2)


def share(text: str) -> float:
    """Read an option's number above 0 and at most 1. Raises argparse.ArgumentTypeError."""
    value = float(text)
    if not 0 < value <= 1:  # nor is NaN
        raise argparse.ArgumentTypeError(f"{text} must be above 0 and at most 1")
    return value


def above_zero(text: str) -> float:
    """Read an option's finite number above 0. Raises argparse.ArgumentTypeError."""
    value = float(text)
    if not 0 < value < math.inf:  # nor is NaN
        raise argparse.ArgumentTypeError(f"{text} must be above 0")
    return value


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table, each column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def while_read(act: Callable[[], int]) -> int:
    """Run a command; returns its status, or 141 without a word if its reader has gone, as `head` goes after ten lines.

    Its output is flushed: an error of the interpreter's own flush, at its end, could not be caught.
    """
    try:
        try:
            return act()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
    except BrokenPipeError:
        if not is_unread():
            raise
        _write_nowhere()
        return UNREAD


def is_unread() -> bool:
    """Return whether the output of this process has lost its reader: otherwise a broken pipe is a peer's."""
    ends = select.poll()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # a stream that is no file
            ends.register(stream.fileno(), 0)  # poll reports a missing reader even without requested events
    return bool(ends.poll(0))


def _write_nowhere() -> None:
    """Discard buffered and later output."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nowhere, stream.fileno())


def exit_status(act: Callable[[], int], *, remark: str = "") -> int:
    """Run a command and print its error; returns 2 for wrong input, 1 if a file could not be written, 130 after Ctrl-C.

    remark: text to add to the message in the last two cases
    """
    try:
        return act()
    except ModelError as error:
        print("\n".join(f"error: {mistake}" for mistake in str(error).split("\n")), file=sys.stderr)
        return 2
    except OSError as error:
        if is_unread():
            raise
        print(f"failed: {error}{remark}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"stopped{remark}", file=sys.stderr)
        return INTERRUPTED
