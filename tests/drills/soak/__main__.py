"""Runnable: `python -m tests.drills.soak [--minutes 30] [--seed N]`; the last line is one JSON object with `passed`."""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path

from models import progress
from tests.drills.soak import shift

MOST_GROWTH = 0.05
ROOM = 32
"""A good deal less than the calls of each way in half an hour."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.drills.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    arguments = parser.parse_args()
    seconds = arguments.minutes * 60.0
    plan = shift.Shift(
        warm_up_seconds=min(seconds / 10, 120.0),
        seconds=seconds,
        most_growth=MOST_GROWTH,
        room=ROOM,
        seed=arguments.seed,
    )
    with tempfile.TemporaryDirectory() as folder, progress.on(sys.stdout) as say:
        figures = shift.run(plan, Path(folder), say=say)
    sys.stdout.write(json.dumps(figures) + "\n")
    return 0 if figures["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
