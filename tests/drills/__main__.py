"""Runnable: the drills: everything that needs a farm of processes or half an hour.

    python -m tests.drills [PART ...] [--list]      `make drills`, `make drills ONLY="kills pages"`

Runs the parts one after the other; one that fails hides no other. Of each part that ran on committed files,
`last_run.json` keeps figures, date and commit for `make release-check`. The last line is one JSON object with `passed`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from tests.drills.parts import PARTS, Part
from tests.paths import REPOSITORY

PYTEST = ("-q", "-n", "4", "--dist", "loadfile", "--no-loadscope-reorder")
LAST_RUN = Path(__file__).with_name("last_run.json")


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.drills", description="Run the drills.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"default: all; of {', '.join(PARTS)}")
    parser.add_argument("--list", action="store_true", help="name the parts, and run none")
    chosen = parser.parse_args(arguments)
    if unknown := [name for name in chosen.parts if name not in PARTS]:
        parser.error(f"no part is called {unknown[0]}; there are {', '.join(PARTS)}")
    names = chosen.parts or list(PARTS)
    if chosen.list:
        for name in names:
            print(f"{name:12} {PARTS[name].minutes:4} min  {PARTS[name].what}")
        return 0
    outcomes = {}
    for name in names:
        outcomes[name] = run(name, PARTS[name])
        if commit := commit_of(REPOSITORY):
            record(name, {"commit": commit, "date": f"{datetime.now(UTC):%Y-%m-%d}", **outcomes[name]})
    passed = all(outcome["passed"] is True for outcome in outcomes.values())
    print(json.dumps({"passed": passed, "parts": outcomes}))
    return 0 if passed else 1


def run(name: str, part: Part) -> dict[str, object]:
    """Run one part and show what it prints; returns whether it passed, its seconds and its figures."""
    marked = f"not full_size and not gpu and drill(part='{name}')"
    command = part.command or (sys.executable, "-m", "pytest", *PYTEST, "-m", marked)
    print(f"== {name}: {part.what}; some {part.minutes} minutes", flush=True)
    begun, last = time.monotonic(), ""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"} if part.command is None else None
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, env=environment) as running:
        assert running.stdout is not None
        for line in running.stdout:
            print(line, end="", flush=True)
            last = line.strip() or last
    figures = figures_of(last)
    passed = running.returncode == 0 and figures.get("passed", True) is not False
    return {"passed": passed, "seconds": round(time.monotonic() - begun), "figures": figures}


def figures_of(line: str) -> dict[str, object]:
    """Read the last line of a part: a JSON object, or pytest's counts."""
    if line.startswith("{"):
        found = json.loads(line)
        return found if isinstance(found, dict) else {}
    return {word: int(count) for count, word in re.findall(r"(\d+) (passed|failed|skipped|errors?)\b", line)}


def record(name: str, outcome: dict[str, object]) -> None:
    """Keep what a part gave, in the order of the parts."""
    kept = json.loads(LAST_RUN.read_text(encoding="utf-8")) if LAST_RUN.exists() else {}
    kept[name] = outcome
    content = {part: kept[part] for part in PARTS if part in kept}
    LAST_RUN.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def commit_of(project: Path) -> str:
    """Return the commit that is checked out; "" outside of a checkout, or where a file but `LAST_RUN` has changed."""
    command = ["git", "status", "--porcelain", "--", ".", f":!{LAST_RUN.relative_to(REPOSITORY)}"]
    status = subprocess.run(command, cwd=project, check=False, capture_output=True, text=True)
    if status.returncode != 0 or status.stdout:
        return ""
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=project, check=True, capture_output=True, text=True)
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
