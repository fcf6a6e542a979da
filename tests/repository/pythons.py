"""Runnable: the quick tests on every other Python that the program supports and this machine has.

    python -m tests.repository.pythons [--pythons 3.12 3.13]

Each Python gets an environment of its own below dist/, with the versions of constraints.txt but without PyTorch and the
ONNX libraries, which are gigabytes. A test that needs one of these is reported as skipped. Exit 0: every Python that
was found passes; 1: one fails; 2: none was found.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.paths import REPOSITORY
from tests.support.without_torch import LEFT_OUT

SUPPORTED: Final = ("3.11", "3.12", "3.13")
PASSED: Final = "passed"


def main(arguments: list[str]) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.repository.pythons", description="Test on other Pythons.")
    parser.add_argument("--pythons", nargs="+", metavar="VERSION", default=SUPPORTED, help="default: %(default)s")
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    outcomes = {version: _outcome(version) for version in parser.parse_args(arguments).pythons if version != own}
    for version, outcome in outcomes.items():
        print(f"Python {version}: {outcome or 'not on this machine, so not tested'}")
    found = [outcome for outcome in outcomes.values() if outcome]
    if not found:
        return 2
    return 0 if set(found) == {PASSED} else 1


def _outcome(version: str) -> str | None:
    """Run the tests on one Python; None where this machine does not have it."""
    interpreter = _interpreter(version)
    if interpreter is None:
        return None
    print(f"Python {version}: installing and testing", flush=True)
    environment = REPOSITORY / "dist" / f"python{version}"
    python = environment / "bin" / "python"
    pip = (python, "-m", "pip", "--disable-pip-version-check", "--quiet", "install", "--no-deps")
    if not _runs(interpreter, "-m", "venv", environment):
        return "no environment could be made"
    if not _runs(*pip, *_libraries()):
        return "the libraries could not be installed, so not tested"
    options = "-q --quick -rfE -n 2 --dist loadfile -p tests.support.without_torch -p no:cacheprovider".split()
    suite = "not drill and not full_size and not gpu"
    return PASSED if _runs(python, "-m", "pytest", *options, "-m", suite) else "failed"


def _runs(*command: str | Path) -> bool:
    """Run a command in the repository and say whether it succeeded."""
    return subprocess.run(command, cwd=REPOSITORY, check=False).returncode == 0


def _interpreter(version: str) -> str | None:
    """Find a Python on the path or among those of pyenv, whose own commands only answer for chosen versions."""
    name = f"python{version}"
    for command in (name, *map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/{name}"))):
        try:
            subprocess.run([command, "-c", ""], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        return command
    return None


def _libraries() -> list[str]:
    """List what `make setup` installs at the versions of constraints.txt, without the libraries that are left out."""
    default, _rest = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").split("\n\n", maxsplit=1)
    return [line for line in default.splitlines() if not line.startswith(("#", *LEFT_OUT))]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
