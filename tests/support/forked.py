"""Processes forked from one that has imported the program: a start costs milliseconds instead of seconds of imports.

Each is a process of its own all the same: it has its own memory, locks and descriptors, and `kill -9` ends it alone.
It ends when the process that asked for it ends, so a test or benchmark that is killed leaves none behind.
What a fresh interpreter imports, and in which order, is tried where `Popen` starts `python -m node`, as in
`tests/node/test_startup.py`.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import connection, reduction
from multiprocessing.context import ForkServerContext
from typing import IO, Final

from node.outputs import batches
from node.read import decoder_processes
from tests.support.peers import killed_after

_PRELOADED: Final = (
    *decoder_processes.PRELOADED,
    "tests.support.one_server",
    "tests.support.scripted_node",
    "node.commands.read_files",
    *batches.PRELOADED,
    "models.engines.onnx_engine",
    "models.engines.torch_engine",
    "models.reading.reader",
    "tests.support.warm",
)
"""Imported before the first process is forked; what is missing, as without PyTorch, is left out."""

_CONTEXT: Final[ForkServerContext] = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(list(_PRELOADED))


class Forked:
    """Runs a function with arguments in a process of its own, with what `Service` needs of `Popen`.

    descriptors: the soft limit of the process on open files, where it is not the one of this process
    errors: a file for its standard error, where that is not the one of this process
    """

    def __init__(
        self,
        main: Callable[[Sequence[str]], int],
        arguments: Sequence[str],
        *,
        descriptors: int | None = None,
        errors: IO[str] | None = None,
    ) -> None:
        reading, writing = os.pipe()
        self.stdout: IO[str] | None = os.fdopen(reading, encoding="utf-8")
        outputs = [_Output(writing), *([] if errors is None else [_Output(errors.fileno())])]
        self._process = _CONTEXT.Process(target=_run, args=(main, list(arguments), outputs, descriptors), daemon=True)
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
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.returncode is None:
            with suppress(ProcessLookupError):  # it ends at this moment
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


def run(
    main: Callable[[Sequence[str]], int], arguments: Sequence[str], *, longest_seconds: float = 120.0
) -> subprocess.CompletedProcess[str]:
    """Run a function to its end, as `subprocess.run` does with what a process writes; one that hangs is killed."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as errors:
        process = Forked(main, arguments, errors=errors)
        assert process.stdout is not None
        with killed_after(longest_seconds, process.kill), process.stdout as written:
            output = written.read()
            code = process.wait()
        errors.seek(0)
        return subprocess.CompletedProcess(list(arguments), code, output, errors.read())


class _Output:
    """What goes to the new process and takes the place of one of its outputs."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __reduce__(self) -> tuple[type[_Taken], tuple[object]]:
        return _Taken, (reduction.DupFd(self.descriptor),)


class _Taken:
    """The same in the new process."""

    def __init__(self, duplicate: object) -> None:
        self.descriptor: int = duplicate.detach()  # type: ignore[attr-defined]


def _run(
    main: Callable[[Sequence[str]], int], arguments: Sequence[str], outputs: Sequence[_Taken], descriptors: int | None
) -> None:
    threading.Thread(target=_end_with_parent, name="end-with-parent", daemon=True).start()
    if descriptors is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    multiprocessing.current_process().daemon = False  # a daemon may start no processes, and a node has some
    gc.freeze()  # what was imported before is no garbage, and to look through it copies every page of it
    for output, stream in zip(outputs, (sys.stdout, sys.stderr), strict=False):
        os.dup2(output.descriptor, stream.fileno())
        os.close(output.descriptor)
    try:
        code = main(arguments)
    except SystemExit as end:  # of `argparse`
        code = int(end.code or 0)
    sys.stdout.flush()
    os._exit(code)


def _end_with_parent() -> None:
    """Wait for the end of the process that asked for this one, then end this one at once."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGKILL)
