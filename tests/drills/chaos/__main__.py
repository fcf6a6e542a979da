"""Runnable: everything that can go wrong at night, half an hour long; the last line is one JSON object with `passed`.

    python -m tests.drills.chaos [--scenario NAME] [--database sqlite|postgresql] [--kills 20] [--films 300] [--seed N]

kills             the power goes again and again, on SQLite (one process) and on PostgreSQL (four)
restarts          20 kills while 50 studies wait: each is held by one open workflow
disk-full         a small disk is filled to the last byte; needs root, to mount it
destination-down  3,000 objects wait for an archive that is away

Every tenth film hurts a decoder (`tests.drills.chaos.hostile`), but in `restarts` and `destination-down`: it hurts only
itself.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from models import progress
from models.progress import ProgressReport
from tests.drills.chaos import backlog, night, scenarios
from tests.drills.chaos.backlog import Outage
from tests.drills.chaos.hostile import HOSTILE
from tests.drills.chaos.night import Plan
from tests.drills.chaos.scenarios import CannotMountError, Trouble
from tests.support.postgres import Postgres

SCENARIOS = ("kills", "restarts", "disk-full", "destination-down")
DATABASES = ("sqlite", "postgresql")

Run = Callable[[Path, ProgressReport], dict[str, object]]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="tests.drills.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scenario", choices=SCENARIOS, help="only this one")
    parser.add_argument("--database", choices=DATABASES, help="of the kills, only this one")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--films", type=int, default=300)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(1))  # what was started is stopped
    results: dict[str, dict[str, object]] = {}
    with progress.on(sys.stdout) as say:
        say(f"seed {arguments.seed}")
        for name, run in chosen(arguments):
            say(name)
            with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
                results[name] = attempt(run, Path(folder), say)
    passed = all(figures["passed"] for figures in results.values())
    sys.stdout.write(json.dumps({"passed": passed, "seed": arguments.seed, **results}) + "\n")
    return 0 if passed else 1


def chosen(arguments: argparse.Namespace) -> Iterator[tuple[str, Run]]:
    """Name what the arguments ask for."""
    hostile = tuple(HOSTILE)
    plan = Plan(kills=arguments.kills, films=arguments.films, seed=arguments.seed, hostile=hostile)
    trouble = Trouble(films=arguments.films // 3, seconds=30.0, seed=arguments.seed, hostile=hostile)
    outage = Outage(objects=3000, seconds=60.0, samples=40)
    for scenario in (arguments.scenario,) if arguments.scenario else SCENARIOS:
        match scenario:
            case "kills":
                for database in (arguments.database,) if arguments.database else DATABASES:
                    yield f"kills-{database}", partial(kills, plan, database)
            case "restarts":
                yield scenario, lambda folder, say: scenarios.restarts(folder, count=20, films=50, say=say)
            case "disk-full":
                yield scenario, lambda folder, say: scenarios.disk_full(trouble, folder, say=say)
            case "destination-down":
                yield scenario, lambda folder, say: backlog.run(outage, folder, say=say)


def kills(plan: Plan, database: str, folder: Path, say: ProgressReport) -> dict[str, object]:
    if database == "sqlite":
        return night.run(plan, folder, say=say)
    with Postgres() as postgres:
        return night.run(plan, folder, database_url=postgres.url, say=say)


def attempt(run: Run, folder: Path, say: ProgressReport) -> dict[str, object]:
    """Run one scenario; what ends it early is its failure, and no other's."""
    try:
        return run(folder, say)
    except (AssertionError, CannotMountError) as error:
        return {"passed": False, "reason": str(error)}


if __name__ == "__main__":
    sys.exit(main())
