"""Writes objects to bytes in batches, one per part of a study, in writer processes.

A batch knows the series numbers that earlier batches used.

Several processes write, so that Python's lock does not limit writing to one processor. They get values, return bytes
and keep no state. If one ends, fails or takes minutes, this process writes the batch itself. They are forked from the
server of the decoder processes, and end with this process, however it ends.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import util
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final
from zoneinfo import ZoneInfo

from pydicom.dataset import Dataset

from node import log
from node.domain import OutputObject, Report
from node.outputs import document, writers
from node.outputs.source import from_files
from node.read import decoder_child, decoder_processes
from node.read.decoding import Thumbnail

_MOST: Final = 4
_LIMIT_SECONDS: Final = 300.0
"""Time limit for one batch. The largest studies take some seconds."""
_CONTEXT: Final = multiprocessing.get_context("forkserver")
PRELOADED: Final = (__name__, "node.outputs.preloaded")
"""Module that the server imports before it forks the first writer."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """The objects to write.

    headers, files, thumbnails: those of the films, see `from_files`
    known: all outputs of the study that were written before
    wanted: when a round is repeated, the outputs that it wrote; others are not written
    destinations: see `writers.with_receivers`
    """

    report: Report
    kinds: tuple[str, ...]
    headers: Mapping[str, Dataset]
    files: Mapping[str, Path]
    thumbnails: Mapping[str, Thumbnail]
    zone: ZoneInfo
    known: tuple[OutputObject, ...]
    wanted: frozenset[OutputObject] | None
    destinations: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EncodedObject:
    """An object in bytes; empty if it is not wanted. is_copy: see `writers.first_of_series`."""

    output: OutputObject
    content: bytes
    is_copy: bool = False


def write_batch(batch: Batch) -> tuple[EncodedObject, ...]:
    """Write the objects of a batch, in order."""
    return tuple(_written(batch))


def _written(batch: Batch) -> Iterator[EncodedObject]:
    known = list(batch.known)
    sources = from_files(batch.headers, batch.files, batch.thumbnails)
    made = writers.write_kinds(batch.report, sources, zone=batch.zone, kinds=batch.kinds)
    receivers = writers.with_receivers(map(writers.output_of, made), batch.destinations)
    for written, given in zip(made, receivers, strict=True):
        writers.replace_what_all_have(written, batch.report.predecessors, given.receivers)
        output = writers.numbered(written, known)
        first = writers.first_of_series(written, known)
        known.append(output)
        yield EncodedObject(output=output, content=_content(written.dataset, output, batch.wanted))
        if first is not None:
            known.append(copied := writers.output_of(first))
            content = _content(first.dataset, copied, batch.wanted)
            yield EncodedObject(output=copied, content=content, is_copy=True)


def _content(dataset: Dataset, output: OutputObject, wanted: Collection[OutputObject] | None) -> bytes:
    return document.save_bytes(dataset) if wanted is None or output in wanted else b""


def count_of(setting: int | None) -> int:
    """Return the number of writer processes by `report.writers`: one per processor if unset, none on one processor."""
    if setting is not None:
        return setting
    processors = len(os.sched_getaffinity(0))
    return min(processors, _MOST) if processors > 1 else 0


class WriterProcesses:
    """A fixed number of processes that write in parallel; thread-safe. Creating this starts them.

    Each has a pool of its own: in a common pool, a process that is killed while it waits for work leaves the others
    waiting for its lock.

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
        """Write a batch as `write_batch` does, once a process is idle."""
        writer = self._idle.get()
        try:
            return self._written(writer, batch)
        except BrokenProcessPool:
            log.get().warning("writer.failed", reason="ended")
            writer.shutdown(wait=False)
            writer = _new()
        except Exception as error:  # an error in a process is raised again here, with its place
            log.get().warning("writer.failed", reason=type(error).__name__)
        finally:
            self._idle.put(writer)
        return write_batch(batch)

    def _written(self, writer: ProcessPoolExecutor, batch: Batch) -> tuple[EncodedObject, ...]:
        """Write a batch in a process; one that takes too long is killed, which breaks its pool."""
        written = writer.submit(write_batch, batch)
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
    """Be as silent as a decoder, and end with the parent process."""
    decoder_child.be_silent()
    # A process of multiprocessing runs no atexit handler, and would wait for its decoders, which leave signals alone.
    util.Finalize(None, decoder_processes.of_this_process().close, exitpriority=0)
    threading.Thread(target=_end_with_parent, name="end-with-parent", daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(0)
