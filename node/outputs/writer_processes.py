"""Processes that write objects for this one, so that Python's lock does not keep it to one processor.

They get values and return bytes (`batches`), and hold no state: whatever one of them cannot do, because it ended,
raised an error or took minutes, this process does itself. They are forked from the server of the decoder processes, and
end with this process, however it ends.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing import util
from queue import Empty, SimpleQueue
from typing import Final

from node import log
from node.outputs import batches
from node.outputs.batches import Batch, EncodedObject
from node.read import decoder_processes

_MOST: Final = 4
_LIMIT_SECONDS: Final = 300.0
"""For one batch. The largest studies take some seconds."""

_CONTEXT: Final = multiprocessing.get_context("forkserver")


def count_of(setting: int | None) -> int:
    """Return how many processes write, by `report.writers`: unset, as many as processors, but none on one."""
    if setting is not None:
        return setting
    processors = len(os.sched_getaffinity(0))
    return min(processors, _MOST) if processors > 1 else 0


PRELOADED: Final = (__name__, "node.outputs.preloaded")
"""What the server imports before it forks the first writer."""


class WriterProcesses:
    """So many processes, which write at the same time; thread-safe. They run when this is made.

    Each has a pool of its own: where several shared one, a process that is killed while it waits for work leaves the
    others waiting for its lock.

    limit_seconds: after which a process that writes one batch is ended
    """

    def __init__(self, count: int, *, limit_seconds: float = _LIMIT_SECONDS) -> None:
        self._limit_seconds = limit_seconds
        self._idle = SimpleQueue[ProcessPoolExecutor]()
        writers = [_new() for _ in range(count)]
        started = [writer.submit(os.getpid) for writer in writers]
        for writer, start in zip(writers, started, strict=True):
            with suppress(BrokenProcessPool):  # it is replaced when it is to write
                start.result()
            self._idle.put(writer)

    def write(self, batch: Batch) -> tuple[EncodedObject, ...]:
        """Write a batch as `batches.write` does, once a process is idle."""
        writer = self._idle.get()
        try:
            return self._written(writer, batch)
        except BrokenProcessPool:
            log.get().warning("writer.failed", reason="ended")
            writer.shutdown(wait=False)
            writer = _new()
        except Exception as error:  # the boundary to a process: what it raised is raised again here, with its place
            log.get().warning("writer.failed", reason=type(error).__name__)
        finally:
            self._idle.put(writer)
        return batches.write(batch)

    def _written(self, writer: ProcessPoolExecutor, batch: Batch) -> tuple[EncodedObject, ...]:
        """Have a process write a batch; one that takes too long is killed, which breaks its pool."""
        written = writer.submit(batches.write, batch)
        if wait([written], self._limit_seconds).not_done:
            for process in tuple(writer._processes.values()):  # `kill_workers` from Python 3.14 on
                process.kill()
        return written.result()

    def close(self) -> None:
        """End the idle processes; one that still writes ends with this process."""
        with suppress(Empty):
            while True:
                self._idle.get_nowait().shutdown()


def _new() -> ProcessPoolExecutor:
    decoder_processes.of_this_process().start()  # should the server have ended
    return ProcessPoolExecutor(1, mp_context=_CONTEXT, initializer=_begin)


def _begin() -> None:
    """Leave signals to the process that asks, as a decoder does, and end with it."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for output in (1, 2):  # libraries may say what they doubt in a patient's data
        os.dup2(nowhere, output)
    # A process of multiprocessing runs no atexit handler, and would wait for its decoders, which leave signals alone.
    util.Finalize(None, decoder_processes.of_this_process().close, exitpriority=0)
    threading.Thread(target=_end_with_parent, name="end-with-parent", daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(0)
