"""Processes that are forked for tests end with their own exit code, and with the process that asked for them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from tests.support import peers
from tests.support.forked import Forked

_THREADS = 4
_TRIES = 20

_PROGRAM: Final = """
from tests.support.forked import Forked
from tests.node.read.test_forked import sleep

if __name__ == "__main__":
    process = Forked(sleep, [])
    print(process.pid, flush=True)
    process.wait()
"""


def test_every_thread_that_waits_gets_the_same_exit_code() -> None:
    codes = set()
    with ThreadPoolExecutor(_THREADS) as threads:
        for _ in range(_TRIES):
            process = Forked(sleep, [])
            waiting = [threads.submit(process.wait, 30.0) for _ in range(_THREADS)]
            process.kill()
            codes |= {future.result() for future in waiting}
            if process.stdout is not None:
                process.stdout.close()

    assert codes == {-9}


def test_a_process_ends_with_the_one_that_asked_for_it(tmp_path: Path, repository: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(repository)}
    asked = subprocess.Popen([sys.executable, str(program)], env=environment, stdout=subprocess.PIPE, text=True)
    assert asked.stdout is not None
    with asked, asked.stdout as told:
        forked = int(told.readline())
        asked.kill()

    try:
        peers.wait_until(lambda: not peers.is_running(forked), what="the forked process ends")
    finally:
        if peers.is_running(forked):
            os.kill(forked, signal.SIGKILL)


def sleep(_arguments: Sequence[str]) -> int:
    time.sleep(60.0)
    return 0
