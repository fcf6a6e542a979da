"""Runnable: checks that the network computes what was recorded from the published one.

    python -m models.golden FOLDER [--json]
    python -m models.golden FOLDER --model DIR [--engine NAME] [--json]

FOLDER holds a recording; see `models.lab.golden.recording`. The second form compares what an engine computes with a
model directory that was made from the recorded weights. Exit status 0: everything recorded was compared and is within
its tolerance; 1: something differs or was not compared; 2: the folder cannot be read.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from models.command import command_parser, run
from models.engines import ENGINES
from models.engines.opening import open_engine
from models.errors import ModelError

if TYPE_CHECKING:
    from models.lab.golden.comparison import Comparison


def main(arguments: list[str]) -> int:
    """Run the command. Returns its exit status."""
    parser = command_parser("models.golden", description="Prove that this network is ChEX.")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="a recording of the published network")
    parser.add_argument("--model", type=Path, metavar="DIR", help="compare an engine of this model directory instead")
    parser.add_argument("--engine", choices=ENGINES, default="onnx", help="default: %(default)s")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(arguments)
    from models.lab.golden.comparison import compare
    from models.lab.golden.recording import open_network

    try:
        engine = open_engine(options.model, engine=options.engine) if options.model else None
        comparison = compare(open_network(options.folder), engine=engine)
    except ModelError as error:
        print(error, file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(document(comparison)))
    else:
        for line in lines(comparison):
            print(line)
    return 0 if comparison.passed else 1


def document(comparison: Comparison) -> dict[str, object]:
    """Return the result for JSON, which has no infinity: an infinite difference becomes null."""
    return {
        "arrays": {
            name: difference.max_abs if math.isfinite(difference.max_abs) else None
            for name, difference in sorted(comparison.arrays.items())
        },
        "given": sorted(comparison.given),
        "missing": list(comparison.missing),
        "broken": dict(comparison.broken),
        "ids_equal": comparison.ids_equal,
        "texts_equal": comparison.texts_equal,
        "passed": comparison.passed,
    }


def lines(comparison: Comparison) -> Iterator[str]:
    """Return the largest difference of every part, then everything that is wrong, then the verdict."""
    for part, name in comparison.parts.items():
        worst = comparison.arrays[name]
        yield f"{part:28} largest difference {worst.max_abs:.1e}, allowed {worst.tolerance:.0e}  ({name})"
    for name, difference in comparison.arrays.items():
        if not difference.passed:
            yield f"DIFFERS  {name}: {difference.max_abs:.1e}, allowed {difference.tolerance:.0e}"
    for name, equal in comparison.texts.items():
        if not equal:
            yield f"DIFFERS  {name}"
    for name in comparison.missing:
        yield f"MISSING  {name} was not compared: it is recorded and not known here, or known and not recorded"
    for part, reason in comparison.broken.items():
        yield f"BROKEN   {part}: {reason}"
    compared = len(comparison.arrays.keys() - comparison.given)
    yield (
        f"{compared} arrays and {len(comparison.texts)} texts compared, {len(comparison.given)} inputs given: "
        f"ids {'equal' if comparison.ids_equal else 'differ'}, "
        f"texts {'equal' if comparison.texts_equal else 'differ'}, "
        f"{'passed' if comparison.passed else 'NOT PASSED'}"
    )


if __name__ == "__main__":
    run(main)
