import os
import pty
import select
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from node import config
from node.config import LogSettings
from tests.paths import REPOSITORY
from tests.support.service import settings_for

pytestmark = pytest.mark.drill(part="deployment")


def on_a_terminal(path: Path) -> str:
    """What `serve` prints on a terminal until it has started."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "node", "serve", str(path)]
    process = subprocess.Popen(command, cwd=REPOSITORY, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    try:
        said = b""
        while b"service.started" not in said:
            assert select.select([ours], [], [], 60)[0], said
            said += os.read(ours, 10_000)  # raises OSError when the process has ended
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    return said.decode()


@pytest.mark.parametrize(("form", "begins"), [("auto", "20"), ("json", "{")])
def test_serve_on_a_terminal_writes_for_people_unless_told(
    tmp_path: Path, form: Literal["auto", "json"], begins: str
) -> None:
    path = tmp_path / "node.toml"
    settings = replace(settings_for(tmp_path / "spool", archive_port=1), log=LogSettings(format=form))
    path.write_text(config.render(settings), encoding="utf-8")

    said = on_a_terminal(path)

    assert "service.started" in said
    assert said.replace("\x1b[2m", "").startswith(begins)


def test_a_node_ends_when_its_terminal_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    settings = replace(settings_for(tmp_path / "spool", archive_port=1), log=LogSettings(format="json"))
    path.write_text(config.render(settings), encoding="utf-8")
    ours, theirs = pty.openpty()
    command = ["setsid", "--ctty", sys.executable, "-m", "node", "serve", str(path)]
    process = subprocess.Popen(command, cwd=REPOSITORY, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    try:
        said = b""
        while b"service.listening" not in said:
            said += os.read(ours, 10_000)
        os.close(ours)

        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
