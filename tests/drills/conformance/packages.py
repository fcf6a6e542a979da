"""Runnable: fetches what the tests use from npm, at one version and with a checked hash; `make viewers` calls it.

    python -m tests.drills.conformance.packages

Only the packages themselves are fetched, not what they depend on: they hold the built viewer or checker. Without npm or
a registry it says what is missing and goes on, for the tests that need it then skip; with CI=true it fails.
"""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from node.store import files
from tests.paths import REPOSITORY
from tests.support.peers import missing

FOLDER: Final = REPOSITORY / ".venv" / "npm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A package of npm at one version; sha512: of its archive, in base64 as npm writes it."""

    name: str
    version: str
    sha512: str

    @property
    def folder(self) -> Path:
        """Where its files lie when it was fetched."""
        return FOLDER / f"{self.name.strip('@').replace('/', '-')}-{self.version}"


OHIF: Final = Package(
    name="@ohif/app",
    version="3.13.2",
    sha512="WZdxmpmG7rqFgW9ZJLcbgr3XCtLi1KDNPoMaeY5PPe6j4G4fjEjjkycZM6C6Zk2F87BKxFfpq+jd5xXZB9E8EA==",
)
AXE: Final = Package(
    name="axe-core",
    version="4.14.1",
    sha512="FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ==",
)
PACKAGES: Final = (OHIF, AXE)


def fetched(package: Package) -> Path:
    """Return the folder of a package; a test without it ends as one that is `missing` something."""
    if not package.folder.is_dir():
        missing(f"{package.name} {package.version} is not here: make viewers")
    return package.folder


def main() -> int:
    wanted = [package for package in PACKAGES if not package.folder.is_dir()]
    try:
        for package in wanted:
            fetch(package)
    except (OSError, subprocess.CalledProcessError, ValueError) as error:
        names = ", ".join(f"{package.name} {package.version}" for package in wanted)
        sys.stderr.write(f"not all of {names} were fetched ({error}); tests that need them are skipped\n")
        return 1 if os.environ.get("CI") == "true" else 0
    return 0


def fetch(package: Package) -> None:
    """Fetch one package. Raises OSError without npm, CalledProcessError, or ValueError for another hash."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with files.lock(FOLDER / "lock"), tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        command = ["npm", "pack", "--silent", "--pack-destination", folder, f"{package.name}@{package.version}"]
        subprocess.run(command, check=True, cwd=folder, capture_output=True, timeout=600)
        (archive,) = Path(folder).glob("*.tgz")
        unpack(archive, package)


def unpack(archive: Path, package: Package) -> None:
    """Unpack an archive into the package's folder, all of it or nothing. Raises ValueError for another hash."""
    found = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if found != package.sha512:
        raise ValueError(f"{package.name} {package.version} has the hash sha512-{found}, not the one that was expected")
    with tarfile.open(archive) as content:
        content.extractall(archive.parent, filter="data")
    if not package.folder.exists():  # another process may have been faster
        (archive.parent / "package").rename(package.folder)


if __name__ == "__main__":
    sys.exit(main())
