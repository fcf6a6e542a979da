"""Runnable: `python -m tests.drills.day [--minutes 30] [--seed N]`; the last line is one JSON object with `passed`."""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path

from models import progress
from tests.drills.day import hospital
from tests.drills.day.course import Plan

_MINUTES_OF_A_DAY = 24 * 60
_FEWEST, _MOST = 1.0, 30.0
_MINUTES_FOR_ALL_FILMS = 20.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.drills.day", description=__doc__)
    parser.add_argument("--minutes", type=float, default=_MOST, help=f"that the day takes, {_FEWEST:g} to {_MOST:g}")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    arguments = parser.parse_args()
    if not _FEWEST <= arguments.minutes <= _MOST:
        parser.error(f"--minutes must be from {_FEWEST:g} to {_MOST:g}")
    plan = Plan(
        scale=_MINUTES_OF_A_DAY / arguments.minutes,
        seed=arguments.seed,
        share=min(1.0, arguments.minutes / _MINUTES_FOR_ALL_FILMS),
    )
    with tempfile.TemporaryDirectory() as folder, progress.on(sys.stdout) as say:
        figures = hospital.run(plan, Path(folder), say=say)
    sys.stdout.write(json.dumps(figures) + "\n")
    return 0 if figures["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
