"""README's "Five minutes to a real PACS", followed: its commands in its order, then a film through Orthanc's page.

What they leave, and what a reader changes then, git does not see.

What is not as on a reader's machine, and nothing else: the four ports of deploy/orthanc are free ones, /var/lib is a
temporary folder, `sudo` does without a password, .venv is the environment of the tests, which `make setup` finds
finished, and Orthanc listens on 127.0.0.1 alone.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.paths import REPOSITORY
from tests.support.peers import DIRECT, LOOPBACK, free_port, require, responds, wait_until

pytestmark = pytest.mark.drill(part="packaging")

SECTION = "## Five minutes to a real PACS"
LINKED = ("LICENSE", "Makefile", "constraints.txt", "export", "language", "models", "node", "pyproject.toml")
PORTS = (8042, 4242, 11112, 8080)


def commands() -> list[str]:
    """The indented lines of the section, without their comments."""
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    section = text.partition(f"{SECTION}\n")[2].partition("\n## ")[0]
    return [line.partition(" #")[0].strip() for line in section.splitlines() if line.startswith("    ")]


def git(checkout: Path, *arguments: str) -> str:
    """What git says in a checkout."""
    done = subprocess.run(["git", *arguments], cwd=checkout, check=True, capture_output=True, text=True)
    return done.stdout


def laid_out(folder: Path, ports: dict[int, int]) -> Path:
    """The repository as a reader has it after `git clone`, with other ports and another /var/lib."""
    checkout = folder / "checkout"
    left_by_others = shutil.ignore_patterns("storage")
    shutil.copytree(REPOSITORY / "deploy" / "orthanc", checkout / "deploy" / "orthanc", ignore=left_by_others)
    for path in (checkout / "deploy" / "orthanc").iterdir():
        text = path.read_text(encoding="utf-8").replace("/var/lib", str(folder / "var"))
        numbers = re.compile("|".join(rf"\b{port}\b" for port in ports))
        path.write_text(numbers.sub(lambda found: str(ports[int(found[0])]), text), encoding="utf-8")
    shutil.copy(REPOSITORY / ".gitignore", checkout)
    for name in LINKED:
        (checkout / name).symlink_to(REPOSITORY / name)
    git(checkout, "init", "--quiet")
    git(checkout, "add", "--all")
    (checkout / ".venv").mkdir()
    for name in ("bin", "lib", "pyvenv.cfg"):
        (checkout / ".venv" / name).symlink_to(Path(sys.prefix) / name)
    (checkout / ".venv" / "installed-cpu-test").touch()
    (folder / "var").mkdir()
    return checkout


def environment_of(folder: Path) -> dict[str, str]:
    """A reader's terminal, with `sudo` that asks nobody and Orthanc's doors closed to the network."""
    programs, shim = folder / "programs", folder / "loopback.so"
    programs.mkdir()
    (programs / "sudo").write_text('#!/bin/sh\nexec "$@"\n', encoding="ascii")
    (programs / "sudo").chmod(0o755)
    source = REPOSITORY / "tests" / "support" / "loopback.c"
    subprocess.run([require("gcc"), "-shared", "-fPIC", "-o", shim, source, "-ldl"], check=True)
    outer = ("EXTRAS", "PYTHON", "TORCH_INDEX", "MAKEFLAGS", "MAKELEVEL", "MFLAGS")  # those of a make that runs us
    inherited = {name: value for name, value in os.environ.items() if name not in outer}
    path = f"{programs}:{inherited['PATH']}:/usr/sbin"
    return {**inherited, "PATH": path, "USER": getpass.getuser(), "LD_PRELOAD": str(shim)}


@contextmanager
def terminal(command: str, *, folder: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A terminal of its own for a program that stays."""
    with (folder.parent / "said.txt").open("ab") as said:
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"], cwd=folder, env=environment, stdout=said, stderr=said
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def modalities(orthanc: str) -> list[str]:
    """The modality of every series of its only study."""
    with DIRECT.open(f"{orthanc}/series?expand", timeout=30) as answer:
        return sorted(series["MainDicomTags"]["Modality"] for series in json.loads(answer.read()))


def test_the_first_steps_end_with_report_and_overlay_in_orthanc(
    tmp_path: Path, chest_film: Path, phantom_model: Path
) -> None:
    require("Orthanc")
    require("make")
    ports = {port: free_port() for port in PORTS}
    orthanc, node = (f"http://{LOOPBACK}:{ports[port]}" for port in (8042, 8080))
    ready = {"Orthanc": f"{orthanc}/system", ".venv/bin/python": f"{node}/ready"}
    checkout, environment = laid_out(tmp_path, ports), environment_of(tmp_path)

    steps = commands()
    assert [step.split()[0] for step in steps] == ["make", "cp", "Orthanc", "sudo", ".venv/bin/python"]
    with ExitStack() as terminals:
        for step in steps:
            command, program = step.replace("/var/lib", str(tmp_path / "var")), step.split()[0]
            if program not in ready:
                subprocess.run(["bash", "-c", command], cwd=checkout, env=environment, check=True, timeout=240)
                continue
            running = terminals.enter_context(terminal(command, folder=checkout, environment=environment))
            wait_until(partial(responds, ready[program]), what=step, limit_seconds=60.0)

        with DIRECT.open(f"{orthanc}/instances", chest_film.read_bytes(), 30) as answer:
            assert answer.status == 200
        # The second report is on the cardiothoracic ratio: this film shows heart and lungs whole.
        expected = ["CR", "PR", "SR", "SR"]
        wait_until(lambda: modalities(orthanc) == expected, what="reports and overlay", limit_seconds=60.0)
        with DIRECT.open(f"{orthanc}/studies", timeout=30) as answer:
            assert len(json.loads(answer.read())) == 1

        running.send_signal(signal.SIGTERM)
        assert running.wait(timeout=40) == 0
    assert (tmp_path / "var" / "chex-node").stat().st_mode & 0o777 == 0o700

    for name in ("node.toml", "orthanc.json", "route.lua"):
        with (checkout / "reading-room" / name).open("a", encoding="utf-8") as mine:
            mine.write("\n")
    assert list((checkout / "reading-room" / "storage").rglob("*"))
    assert git(checkout, "diff", "--name-only") == ""
    assert git(checkout, "ls-files", "--others", "--exclude-standard") == ""
