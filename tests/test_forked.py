"""Processes that are forked for tests end with their own exit code, whoever waits for them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from tests.forked import Forked

_THREADS = 4
_TRIES = 20


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


def sleep(_arguments: Sequence[str]) -> int:
    time.sleep(60.0)
    return 0
