"""Runnable: lists what a release of this program still lacks; changes nothing; a person sets the tag.

    python -m deploy.release      `make release-check`, which exports the graphs before

One line for each thing that is missing, with what to do, and exit status 1; 0 if nothing is. It does not run the tests.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from models.program import VERSION_LINE
from tests.drills.parts import PARTS

REPOSITORY: Final = Path(__file__).parents[1]
PROOF: Final = "models/weights/phantom/parity.json"
DIGESTS: Final = "deploy/image/digests.env"
DRILLS: Final = "tests/drills/last_run.json"
PROGRAM: Final = ("node", "models", "export", "language")
PACKAGES: Final = ("deploy/image/cpu.txt", "deploy/image/gpu.txt", "deploy/image/build.txt")

VERSIONS: Final = {
    "models/program.py": r'^__version__ = "(.*)"$',
    "CITATION.cff": r"^version: (.*)$",
    "Dockerfile": r"^ARG VERSION=(.*)$",
    "helm/Chart.yaml": r"^version: (.*)$",
    "docs/integrate/conformance.md": r"^\| ChEX Node \| (\S*) \|",
}
"""Where the version stands; the first is the one that the others must equal."""
_APP_VERSION = r"^appVersion: (.*)$"
_FAULTS_URL = r'^FAULTS_URL = "(https://\S+)"$'
_RELEASED = r"\d+\.\d+\.\d+"
_SECTIONS = ("What it does", "What it needs", "Known limits")
_NOT_CHECKED = "Not checked here: make test, make audit, make gpu-proof on a machine with a GPU."


def main(arguments: list[str]) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m deploy.release", description="What does a release lack?")
    parser.add_argument("--version", action="version", version=VERSION_LINE)
    parser.add_argument("--project", type=Path, default=REPOSITORY, help="the repository")
    project: Path = parser.parse_args(arguments).project
    lacking = [*missing(project), *undrilled(project), *unsaved(project)]
    for line in lacking:
        print(f"missing: {line}")
    print(_NOT_CHECKED)
    if not lacking:
        print(f"Nothing else is missing. Whoever releases sets the tag: git tag --sign v{version_of(project)}")
    return 1 if lacking else 0


def version_of(project: Path) -> str:
    """Return the version that the program says it has, or ""."""
    place, pattern = next(iter(VERSIONS.items()))
    return _found(project / place, pattern)


def missing(project: Path) -> Iterator[str]:
    """Yield faults of the repository's files."""
    version = version_of(project)
    if not re.fullmatch(_RELEASED, version):
        yield f"models/program.py: {version or 'no version'} is no version of a release, as 1.0.0 is"
    patterns = [*VERSIONS.items(), ("helm/Chart.yaml", _APP_VERSION)]
    for place, pattern in patterns:
        if (found := _found(project / place, pattern)) != version:
            yield f"{place}: the version {version}; it has {found or 'none'}"
    if not _found(project / "models/program.py", _FAULTS_URL):
        yield 'models/program.py: the public page where faults are reported, FAULTS_URL = "https://..."'
    yield from _notes(project, version)
    yield from _digests(project)
    yield from _proof(project)


def undrilled(project: Path) -> Iterator[str]:
    """Give which parts of the drills did not pass on this program."""
    last = json.loads(_text(project / DRILLS) or "{}")
    for part in PARTS:
        if part not in last or last[part]["passed"] is not True:
            yield f"{DRILLS}: a run of the part {part} that passed; make drills ONLY={part}"
        elif _git(project, "diff", "--quiet", last[part]["commit"], "HEAD", "--", *PROGRAM) is None:
            yield f"{DRILLS}: a run of the part {part} on this program; it ran on {last[part]['commit'][:12]}"


def unsaved(project: Path) -> Iterator[str]:
    """Yield faults of the git state: uncommitted changes, or a tag that is taken."""
    status = _git(project, "status", "--porcelain")
    if status is None:
        yield "a git checkout: whether all is committed cannot be seen"
        return
    if status:
        yield f"a commit of {len(status.splitlines())} changed files: git status names them"
    tag = f"v{version_of(project)}"
    if _git(project, "tag", "--list", tag):
        yield f"a version of its own: the tag {tag} is there already"


def _notes(project: Path, version: str) -> Iterator[str]:
    """Yield faults of the release notes: a missing section of the version, first and with a date, or parts of it."""
    notes = _text(project / "CHANGELOG.md")
    first = notes.partition("\n## ")[2].partition("\n## ")[0]
    heading = first.partition("\n")[0]
    if not heading.startswith(f"{version} "):
        yield f"CHANGELOG.md: a first section ## {version}; it begins with {heading or 'nothing'}"
        return
    for section in _SECTIONS:
        if f"\n### {section}\n" not in first:
            yield f"CHANGELOG.md: the part ### {section} of {version}"
    date = _found(project / "CITATION.cff", r"^date-released: ['\"]?(\d{4}-\d\d-\d\d)['\"]?$")
    if not date:
        yield "CITATION.cff: the day of the release, date-released: YYYY-MM-DD"
    elif heading != f"{version} ({date})":
        yield f"CHANGELOG.md: the day of the release, as CITATION.cff has it: ## {version} ({date})"


def _digests(project: Path) -> Iterator[str]:
    """Give which images have no digest, and which packages no hashes."""
    lines = _text(project / DIGESTS).splitlines()
    chosen = [line for line in lines if line and not line.startswith("#")]
    if not chosen:
        yield f"{DIGESTS}: the digests of the images; make digests looks them up"
    for line in chosen:
        if not re.search(r"@sha256:[0-9a-f]{64}$", line):
            yield f"{DIGESTS}: a digest of {line.partition('=')[0]}; run make digests"
    for place in PACKAGES:
        if "--hash=sha256:" not in _text(project / place):
            yield f"{place}: hashes of the packages; make digests looks them up"


def _proof(project: Path) -> Iterator[str]:
    """Give which graph of the shipped model has no proof for its bytes."""
    path = project / PROOF
    if not path.is_file():
        yield f"{PROOF}: the proof of the shipped model's graphs; run make model"
        return
    proof = json.loads(path.read_text(encoding="utf-8"))
    if proof["passed"] is not True:
        yield f"{PROOF}: a proof that passed; the graphs do not compute what the weights compute"
    for name, expected in {**proof["graphs"], "weights.safetensors": proof["weights_sha256"]}.items():
        file = path.parent / name
        if not file.is_file() or hashlib.sha256(file.read_bytes()).hexdigest() != expected:
            yield f"{PROOF}: a proof for the {name} that is here; run make model"


def _found(path: Path, pattern: str) -> str:
    """Return the match of a pattern's group in a file, or ""."""
    found = re.search(pattern, _text(path), re.MULTILINE)
    return found[1].strip() if found else ""


def _text(path: Path) -> str:
    """Return a file's text; that of a file which is not there is empty."""
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _git(project: Path, *arguments: str) -> str | None:
    """Return git's output; None outside of a checkout."""
    done = subprocess.run(["git", *arguments], cwd=project, check=False, capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
