"""What all commands share: `--version`, the handling of errors, and Ctrl-C (design §2).

A command first parses its arguments and then imports torch, onnx and the modules that need them, inside a function:
these imports take seconds, and `--help`, `--version` and a mistyped option must be answered without them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Final, NoReturn

from models.errors import ModelError

# The package itself holds the version and imports nothing. Node, network and exporter are released together under one
# version; installed metadata cannot give it, for a checkout runs without being installed.
from node import VERSION_LINE, command_for

INTERRUPTED: Final = 130
"""The exit code that a shell expects after Ctrl-C: 128 and the number of SIGINT."""


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
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(INTERRUPTED)


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
        print(f"failed: {error}{remark}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"stopped{remark}", file=sys.stderr)
        return INTERRUPTED
