"""Processes forked from one that has imported the program: a start costs milliseconds instead of seconds of imports.

Each is a process of its own all the same: it has its own memory, locks and descriptors, and `kill -9` ends it alone.
What a fresh interpreter imports, and in which order, is tried where `Popen` starts `python -m node serve`.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import connection, reduction
from multiprocessing.context import ForkServerContext
from subprocess import TimeoutExpired
from typing import IO, Final

_PRELOADED: Final = ("tests.scripted_node", "node.outputs.writers")
_CONTEXT: Final[ForkServerContext] = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(list(_PRELOADED))


class Forked:
    """Runs a function with arguments in a process of its own, with what `Service` needs of `Popen`.

    descriptors: the soft limit of the process on open files, where it is not the one of this process
    """

    def __init__(
        self, main: Callable[[Sequence[str]], int], arguments: Sequence[str], *, descriptors: int | None = None
    ) -> None:
        reading, writing = os.pipe()
        self.stdout: IO[str] | None = os.fdopen(reading, encoding="utf-8")
        handed_on = _Output(writing)
        self._process = _CONTEXT.Process(target=_run, args=(main, list(arguments), handed_on, descriptors), daemon=True)
        self._process.start()
        os.close(writing)
        self._asking = (
            threading.Lock()
        )  # `exitcode` takes the code out of a pipe: of two that ask at once, one gets 255

    @property
    def pid(self) -> int:
        """The process."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal; None while the process runs."""
        with self._asking:
            return self._process.exitcode

    def poll(self) -> int | None:
        """Like `returncode`."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; its exit code. Raises TimeoutExpired."""
        connection.wait([self._process.sentinel], timeout)
        code = self.returncode
        if code is None:
            raise TimeoutExpired(str(self.pid), timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.returncode is None:
            with suppress(ProcessLookupError):  # it ends at this moment
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


class _Output:
    """The end of a pipe that goes to the new process."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __reduce__(self) -> tuple[type[_Taken], tuple[object]]:
        return _Taken, (reduction.DupFd(self.descriptor),)


class _Taken:
    """The same in the new process."""

    def __init__(self, duplicate: object) -> None:
        self.descriptor: int = duplicate.detach()  # type: ignore[attr-defined]


def _run(
    main: Callable[[Sequence[str]], int], arguments: Sequence[str], output: _Taken, descriptors: int | None
) -> None:
    if descriptors is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    gc.freeze()  # what was imported before is no garbage, and to look through it copies every page of it
    os.dup2(output.descriptor, sys.stdout.fileno())
    os.close(output.descriptor)
    code = main(arguments)
    sys.stdout.flush()
    os._exit(code)
