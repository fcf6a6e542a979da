import os
import pty
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from node import config
from node.config import LogSettings
from tests.paths import REPOSITORY
from tests.support.service import settings_for

pytestmark = pytest.mark.drill(part="deployment")


@contextmanager
def on_a_terminal(folder: Path, log: LogSettings, *before: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run `serve` on a terminal; the process, and our end of the terminal. before: the words before the command."""
    path = folder / "node.toml"
    settings = replace(settings_for(folder / "spool", archive_port=1), log=log)
    path.write_text(config.render(settings), encoding="utf-8")
    ours, theirs = pty.openpty()
    command = [*before, sys.executable, "-m", "node", "serve", str(path)]
    process = subprocess.Popen(command, cwd=REPOSITORY, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    try:
        yield process, ours
    finally:
        process.kill()
        process.wait()


def said_until(event: bytes, terminal: int) -> str:
    said = b""
    while event not in said:
        assert select.select([terminal], [], [], 60)[0], said
        said += os.read(terminal, 10_000)  # raises OSError when the process has ended
    return said.decode()


@pytest.mark.parametrize(("form", "begins"), [("auto", "20"), ("json", "{")])
def test_serve_on_a_terminal_writes_for_people_unless_told(
    tmp_path: Path, form: Literal["auto", "json"], begins: str
) -> None:
    with on_a_terminal(tmp_path, LogSettings(format=form)) as (_, terminal):
        said = said_until(b"service.started", terminal)
        os.close(terminal)

    assert said.replace("\x1b[2m", "").startswith(begins)


def test_a_node_ends_when_its_terminal_is_closed(tmp_path: Path) -> None:
    with on_a_terminal(tmp_path, LogSettings(format="json"), "setsid", "--ctty") as (process, terminal):
        said_until(b"service.listening", terminal)
        os.close(terminal)

        assert process.wait(timeout=60) == 0
