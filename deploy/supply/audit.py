"""Runnable: asks what is known against the packages of the default install, by pip-audit.

    python -m deploy.supply.audit [OPTION OF pip-audit...]      `make audit`; -s osv asks OSV instead of PyPI

It needs the package index, and the service that knows the faults. Exit status 0: every package was looked up, and
nothing is known against any; 1: something is; 2: not every package was looked up. pip-audit alone ends with 0 where
its service knows none of the packages: it calls them skipped.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deploy.supply import NotLookedUp, one_line
from deploy.supply.packages import hashed
from node import VERSION_LINE

REPOSITORY: Final = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """A package and what is known against it: the fault's name, and the versions without it."""

    name: str
    is_known: bool
    faults: tuple[str, ...]


def main(arguments: list[str], *, project: Path = REPOSITORY) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m deploy.supply.audit",
        description="Ask for known faults of the default install; further options are those of pip-audit.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=VERSION_LINE)
    _, options = parser.parse_known_args(arguments)
    try:
        packages = audited(hashed(project, "cpu"), options)
    except NotLookedUp as error:
        print(f"nothing was looked up: {error}", file=sys.stderr)
        return 2
    return told(packages)


def told(packages: list[Audited]) -> int:
    """Say what was found; returns the exit status."""
    unknown = [package.name for package in packages if not package.is_known]
    faults = [f"{package.name}: {fault}" for package in packages for fault in package.faults]
    if len(unknown) == len(packages):
        print(f"nothing was looked up: the service knows none of the {len(packages)} packages", file=sys.stderr)
        return 2
    for fault in faults:
        print(fault)
    print(f"packages looked up: {len(packages) - len(unknown)}, known faults: {len(faults)}")
    if unknown:
        print(f"not looked up: {', '.join(unknown)}", file=sys.stderr)
    return 1 if faults else 2 if unknown else 0


def audited(requirements: str, options: list[str], *, patience_seconds: float = 60.0) -> list[Audited]:
    """Let pip-audit look up packages, each with its version and hashes. Raises NotLookedUp, also after a minute."""
    with tempfile.TemporaryDirectory() as folder:
        listed, found = Path(folder, "requirements.txt"), Path(folder, "found.json")
        listed.write_text(requirements, encoding="utf-8")
        command = [sys.executable, "-m", "pip_audit", "--disable-pip", "--progress-spinner", "off", "--desc", "off"]
        command += ["--format", "json", "--output", str(found), "--requirement", str(listed), *options]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=patience_seconds)
        except subprocess.TimeoutExpired as error:
            raise NotLookedUp(
                f"pip-audit has not ended after {patience_seconds:g} s; its service does not answer, or is slow: try "
                "again, or ask another one (-s osv)"
            ) from error
        if not found.exists():  # its exit status is 1 both for a fault that is known and for one of its own
            said = done.stderr.strip().rpartition("\n")[2]
            raise NotLookedUp(f"pip-audit ended with {one_line(said)}; it needs its service with the known faults")
        dependencies = json.loads(found.read_text(encoding="utf-8"))["dependencies"]
    return [
        Audited(
            name=f"{package['name']} {package.get('version', '')}".strip(),
            is_known="skip_reason" not in package,
            faults=tuple(
                f"{fault['id']}, fixed in {' or '.join(fault['fix_versions']) or 'no version yet'}"
                for fault in package.get("vulns", ())
            ),
        )
        for package in dependencies
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
