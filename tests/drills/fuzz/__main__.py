"""Runnable: bent associations against a listener, bad requests against the pages, bent pixels and files against it all.

    python -m tests.drills.fuzz [--only associations,requests,pixels,files] [--seconds 420] [--cases 4000] [--seed N]
                                [--first K]

`associations` takes so many seconds, `requests` and `pixels` so many cases each, and `files` the properties of
`tests/drills/test_fuzz.py` with the hypothesis profile `long` (`tests/conftest.py`). What a seed makes, it makes again;
`pixels` goes on at case K. The last line is one JSON object with `passed`.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path

from models import progress
from models.progress import ProgressReport
from node import log
from tests.drills.fuzz import Tally, associations, pixels, requests
from tests.drills.parts import named_parts
from tests.paths import REPOSITORY

Run = Callable[[argparse.Namespace, Path, ProgressReport], Tally]


def main(words: list[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="tests.drills.fuzz", description=__doc__)
    parser.add_argument("--only", type=partial(named_parts, PARTS), default=list(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--seconds", type=float, default=420.0, help="of bent associations")
    parser.add_argument("--cases", type=int, default=4000, help="of requests, and of damaged pixels")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--first", type=int, default=0, help="the number of the first film with damaged pixels")
    options = parser.parse_args(words)
    found = dict[str, Tally]()
    with progress.on(sys.stdout) as say:
        for name in options.only:
            say(f"{name}, seed {options.seed}")
            with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
                found[name] = PARTS[name](options, Path(folder), say)
            say(f"{name}: {json.dumps(found[name].figures)}")
    passed = all(tally.passed for tally in found.values())
    figures = {name: tally.figures for name, tally in found.items()}
    sys.stdout.write(json.dumps({"passed": passed, "seed": options.seed, **figures}) + "\n")
    return 0 if passed else 1


def _associations(options: argparse.Namespace, folder: Path, say: ProgressReport) -> Tally:
    log.mute()
    with open("/dev/null", "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
        log.configure()  # it names a standard output that nobody reads
        return associations.run(folder, seed=options.seed, seconds=options.seconds)


def _requests(options: argparse.Namespace, folder: Path, say: ProgressReport) -> Tally:
    with requests.running(folder) as (node, known):
        return requests.run(node, known, cases=options.cases, seed=options.seed, say=say)


def _pixels(options: argparse.Namespace, folder: Path, say: ProgressReport) -> Tally:
    numbers = range(options.first, options.first + options.cases)
    return pixels.run(folder, numbers=numbers, seed=options.seed, say=say)


def _files(options: argparse.Namespace, folder: Path, say: ProgressReport) -> Tally:
    profile = ("--hypothesis-profile=long", f"--hypothesis-seed={options.seed}", "--timeout=0", "-k", "file")
    command = [sys.executable, "-m", "pytest", "-q", "tests/drills/test_fuzz.py", *profile]
    code = subprocess.run(command, cwd=REPOSITORY, check=False).returncode
    tally = Tally()
    tally.counts["runs of pytest"] += 1
    tally.faults |= {"pytest": f"ended with {code}"} if code else {}
    return tally


PARTS: dict[str, Run] = {
    "associations": _associations,
    "requests": _requests,
    "pixels": _pixels,
    "files": _files,
}


if __name__ == "__main__":
    sys.exit(main())
