"""`make container-test` removes nothing through a mount; tried without root, with programs that only write down calls.

The fakes keep the mounts in a file: `debootstrap` leaves /proc and a file system in it mounted, as Debian's does,
`findmnt` prints the file, and `umount` takes a line out of it unless that mount is busy.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.paths import REPOSITORY

pytestmark = pytest.mark.drill(part="deployment")

FAKES: Mapping[str, str] = {
    "findmnt": 'cat "$STATE/mounts"',
    "umount": 'grep -qxF "$1" "$STATE/busy" || sed -i "\\\\|^$1\\$|d" "$STATE/mounts"',
    "debootstrap": 'mkdir -p "$4/etc/ssl/certs"; printf "%s\\n" "$4/proc" "$4/proc/sys/fs" >>"$STATE/mounts"',
    "rm": 'exec /bin/rm "$@"',
    "tar": ': >"$5"',
    "podman": "true",
    "buildah": "exit 1",  # what comes after the stand-in is not this test's
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A folder of fakes, and what they keep and were called with."""

    folder: Path

    def has_mounted(self, *places: Path | str, busy: Sequence[str] = ()) -> None:
        (self.folder / "mounts").write_text("".join(f"{place}\n" for place in ("/", "/proc", *places)))
        (self.folder / "busy").write_text("".join(f"{place}\n" for place in busy))

    def run(self, command: Sequence[str], **environment: str) -> subprocess.CompletedProcess[str]:
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        known = {**os.environ, "PATH": path, "STATE": str(self.folder), **environment}
        return subprocess.run(command, cwd=REPOSITORY, env=known, capture_output=True, text=True, timeout=60)

    def remove_tree(self, folder: Path) -> subprocess.CompletedProcess[str]:
        return self.run(["sh", "-euc", '. tests/container-clean-up.sh; remove_tree "$1"', "sh", str(folder)])

    def calls(self, *programs: str) -> list[str]:
        lines = (self.folder / "calls").read_text(encoding="utf-8").splitlines()
        return [line for line in lines if line.split()[0] in programs]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    folder = tmp_path / "machine"
    (folder / "bin").mkdir(parents=True)
    for name, body in FAKES.items():
        program = folder / "bin" / name
        program.write_text(f'#!/bin/sh\necho "{name} $*" >>"$STATE/calls"\n{body}\n', encoding="utf-8")
        program.chmod(0o755)
    (folder / "calls").touch()
    return Machine(folder=folder)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    (folder / "base" / "proc").mkdir(parents=True)
    return folder


def test_the_deepest_mounts_are_unmounted_first(machine: Machine, work: Path) -> None:
    machine.has_mounted(f"{work}/base/proc", f"{work}/base/proc/sys/fs", f"{work}-of-another")

    done = machine.remove_tree(work)

    assert (done.returncode, done.stderr) == (0, "")
    assert machine.calls("umount", "rm") == [
        f"umount {work}/base/proc/sys/fs",
        f"umount {work}/base/proc",
        f"rm -rf --one-file-system {work}",
    ]
    assert not work.exists()


@pytest.mark.parametrize(
    ("findmnt", "said"), [(FAKES["findmnt"], "still mounted"), ("exit 1", "nobody knows what is mounted")]
)
def test_nothing_is_removed_while_something_is_or_may_be_mounted(
    machine: Machine, work: Path, findmnt: str, said: str
) -> None:
    machine.has_mounted(f"{work}/base/proc", busy=[f"{work}/base/proc"])
    (machine.folder / "bin" / "findmnt").write_text(f"#!/bin/sh\n{findmnt}\n", encoding="utf-8")

    done = machine.remove_tree(work)

    assert done.returncode == 1
    assert said in done.stderr and str(work) in done.stderr
    assert machine.calls("rm") == []
    assert work.exists()


def test_the_script_packs_and_removes_only_after_unmounting_proc(machine: Machine, tmp_path: Path) -> None:
    machine.has_mounted()

    done = machine.run(["sh", "tests/container.sh"], TMPDIR=str(tmp_path), PYTHON=sys.executable)

    calls = [line.split()[0] for line in machine.calls("debootstrap", "umount", "tar", "rm")]
    assert calls == ["debootstrap", "umount", "umount", "tar", "rm", "rm", "rm"]
    assert all("--one-file-system" in line for line in machine.calls("tar"))
    assert done.returncode == 1  # of the fake buildah
    assert [path for path in tmp_path.iterdir() if path != machine.folder] == []
