"""Runnable: bent associations against a listener, requests against the pages, bent files against the reading.

    python -m tests.drills.fuzz [--seconds 3600] [--seed N]

First `pdu_fuzz` of this folder for so many seconds, then 10,000 cases of `web_fuzz` and of `decoder_fuzz` (which goes
on where it was stopped, `--first`), then the properties of `test_fuzz.py` with the hypothesis profile `long`
(`tests/conftest.py`). The last line is one JSON object with `passed`.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys

from tests.paths import REPOSITORY


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.drills.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0, help="of bent associations")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    arguments = parser.parse_args()
    say(f"seed {arguments.seed}: bent associations for {arguments.seconds:g} s")
    associations = figures_of("pdu_fuzz", "--seconds", arguments.seconds, "--seed", arguments.seed)
    say(f"bent associations: {json.dumps(associations)}; requests against the pages")
    requests = figures_of("web_fuzz", "--seed", arguments.seed)
    say(f"requests: {json.dumps(requests)}; damaged pixels")
    pixels = figures_of("decoder_fuzz", "--seed", arguments.seed)
    say(f"damaged pixels: {json.dumps(pixels)}; bent files, which take as long as they take")
    is_read = bent_files(arguments.seed)
    parts = {"associations": associations, "requests": requests, "pixels": pixels}
    passed = is_read and all(part["passed"] is True for part in parts.values())
    figures = {**parts, "files": {"passed": is_read}}
    say(json.dumps({"passed": passed, **figures}))
    return 0 if passed else 1


def figures_of(name: str, *options: object) -> dict[str, object]:
    """Run a command of the tests; what it counted."""
    command = [sys.executable, "-m", f"tests.drills.{name}", *map(str, options)]
    done = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, check=False)
    said = done.stdout.splitlines()
    return json.loads(said[-1]) if said else {"passed": False, "exit_code": done.returncode}


def bent_files(seed: int) -> bool:
    """Run the properties of the reading with more examples than `make test` does; whether all held."""
    profile = ("--hypothesis-profile=long", f"--hypothesis-seed={seed}", "--timeout=0")
    command = [sys.executable, "-m", "pytest", "-q", "tests/drills/test_fuzz.py", *profile]
    return subprocess.run(command, cwd=REPOSITORY, check=False).returncode == 0


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
