"""Runnable: everything that can go wrong at night, ten minutes long; the last line is one JSON object with `passed`.

    python -m tests.drills.chaos [--only kills-sqlite,kills-postgresql,disk-full] [--kills 20] [--films 300] [--seed N]

kills        the power goes again and again, on SQLite (one process) and on PostgreSQL (four)
disk-full    a small disk is filled to the last byte; needs root, to mount it
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from models import progress
from models.progress import ProgressReport
from tests.drills.chaos import disk, night
from tests.drills.chaos.disk import CannotMountError
from tests.drills.chaos.night import Plan
from tests.drills.parts import named_parts
from tests.support.postgres import Postgres


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="tests.drills.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=partial(named_parts, SCENARIOS), default=list(SCENARIOS))
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--films", type=int, default=300)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(1))  # what was started is stopped
    plan = Plan(kills=arguments.kills, films=arguments.films, seed=arguments.seed)
    results: dict[str, dict[str, object]] = {}
    with progress.on(sys.stdout) as say:
        say(f"seed {arguments.seed}")
        for name in arguments.only:
            say(name)
            with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
                try:
                    results[name] = SCENARIOS[name](plan, Path(folder), say)
                except (AssertionError, CannotMountError) as error:  # the failure of this one, and of no other
                    results[name] = {"passed": False, "reason": str(error)}
    passed = all(figures["passed"] for figures in results.values())
    sys.stdout.write(json.dumps({"passed": passed, "seed": arguments.seed, **results}) + "\n")
    return 0 if passed else 1


def kills_postgresql(plan: Plan, folder: Path, say: ProgressReport) -> dict[str, object]:
    with Postgres() as postgres:
        return night.run(plan, folder, database_url=postgres.url, say=say)


SCENARIOS: Final[Mapping[str, Callable[[Plan, Path, ProgressReport], dict[str, object]]]] = {
    "kills-sqlite": lambda plan, folder, say: night.run(plan, folder, say=say),
    "kills-postgresql": kills_postgresql,
    "disk-full": lambda plan, folder, say: disk.run(
        folder, films=plan.films // 3, seconds=30.0, seed=plan.seed, say=say
    ),
}

if __name__ == "__main__":
    sys.exit(main())
