"""Writer processes write what this one would write, and whatever happens to them, it is written."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from highdicom import _standard_utils

from models.contract import Box
from node.domain import Finding
from node.output_kinds import OUTPUTS
from node.outputs import batches
from node.outputs.batches import Batch, EncodedObject, WriterProcesses
from tests.support import films, samples
from tests.support.forked import Forked
from tests.support.peers import wait_until
from tests.support.samples import BERLIN, film_uid

GRAY = np.full((samples.ROWS, samples.COLUMNS), 90, np.uint8)


def batch_of(*kinds: str, found: Finding | None = None) -> Batch:
    """A batch on one film with a finding."""
    return Batch(
        report=samples.report(samples.film(findings=(found or samples.finding(),))),
        kinds=kinds,
        headers=samples.sources(samples.cr(1)),
        files={},
        thumbnails={film_uid(1): samples.thumbnail_of(GRAY)},
        zone=BERLIN,
        known=(),
        wanted=None,
        destinations={},
    )


def said(written: Sequence[EncodedObject]) -> list[tuple[object, bytes, bool]]:
    return [(made.output, made.content, made.is_copy) for made in written]


def pids() -> set[int]:
    return {child.pid for child in multiprocessing.active_children() if child.pid is not None}


@pytest.fixture
def before() -> set[int]:
    """The processes that are no writers."""
    return pids()


@pytest.fixture
def processes(before: set[int]) -> Iterator[WriterProcesses]:
    processes = WriterProcesses(1)
    yield processes
    processes.close()


def test_a_writer_runs_and_has_all_that_it_needs_before_the_first_film(
    processes: WriterProcesses, before: set[int]
) -> None:
    writer = processes._idle.get()

    assert len(pids() - before) == 1
    assert writer.submit(lacked).result(timeout=60) == []
    processes._idle.put(writer)


def lacked() -> list[str]:
    """What a process would have to load before it writes."""
    writers = {kind.writer.partition(":")[0] for kind in OUTPUTS.own.values()}
    tables = (_standard_utils.get_iod_module_map, _standard_utils.get_module_attribute_map)
    return [*(writers - sys.modules.keys()), *(table.__name__ for table in tables if not table.cache_info().currsize)]


def test_writers_write_the_same_as_this_process_also_pictures(processes: WriterProcesses, tmp_path: Path) -> None:
    dataset = films.rg1()
    uid, path = str(dataset.SOPInstanceUID), films.saved(tmp_path, dataset)
    size = {"columns": dataset.Columns, "rows": dataset.Rows}
    read = replace(samples.film(), source=uid, analyzed=Box(left=0, top=0, right=900, bottom=900), **size)
    batch = replace(
        batch_of("sr", "gsps", "text", "sc"),
        report=replace(samples.report(read), study_uid=str(dataset.StudyInstanceUID)),
        headers=samples.sources(dataset),
        files={uid: path},
        thumbnails={},
    )

    written = processes.write(batch)

    assert [made.output.kind for made in written] == ["sr", "gsps", "text", "sc"]
    assert said(written) == said(batches.write_batch(batch))


def test_a_writer_that_ends_costs_no_object_and_no_signal_of_the_service_ends_it(
    processes: WriterProcesses, before: set[int]
) -> None:
    batch = batch_of("sr")
    expected = said(batches.write_batch(batch))
    [writer] = pids() - before
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(writer, number)
    assert said(processes.write(batch)) == expected
    assert pids() - before == {writer}

    for _ in range(2):
        [writer] = pids() - before
        os.kill(writer, signal.SIGKILL)
        assert said(processes.write(batch)) == expected
        assert said(processes.write(batch)) == expected
        assert pids() - before != {writer}


def test_a_writer_that_hangs_costs_no_object() -> None:
    before, batch = pids(), batch_of("sr")
    processes, expected = WriterProcesses(1, limit_seconds=2.0), said(batches.write_batch(batch))
    [writer] = pids() - before
    os.kill(writer, signal.SIGSTOP)

    assert said(processes.write(batch)) == expected
    assert writer not in pids()
    processes.close()


def test_a_writer_that_is_killed_idle_blocks_no_other() -> None:
    before, batch = pids(), batch_of("sr")
    processes = WriterProcesses(2)
    expected = said(batches.write_batch(batch))
    for _ in range(2):
        assert said(processes.write(batch)) == expected
    first, second = pids() - before

    os.kill(first, signal.SIGKILL)
    for _ in range(4):
        assert said(processes.write(batch)) == expected
    assert second in pids()
    closing = threading.Thread(target=processes.close, daemon=True)
    closing.start()
    closing.join(timeout=30)

    assert not closing.is_alive()
    wait_until(lambda: pids() == before, what="all writers end")


def test_an_error_of_a_writer_is_raised_here(processes: WriterProcesses) -> None:
    outside = Box(left=0, top=0, right=samples.COLUMNS + 1, bottom=5)

    with pytest.raises(ValueError, match="leaves the film") as raised:
        processes.write(batch_of("gsps", found=samples.finding(boxes=(outside,))))

    assert any(entry.frame.code.name == "check" for entry in raised.traceback)


def write_and_wait(_arguments: Sequence[str]) -> int:
    """Write with a writer, say which process that is, and wait for the end."""
    WriterProcesses(1).write(batch_of("sr"))
    print(*pids(), flush=True)  # the other process reads it
    threading.Event().wait()
    return 0


def test_a_writer_ends_with_a_process_that_is_killed() -> None:
    process = Forked(write_and_wait, [])
    assert process.stdout is not None
    with process.stdout as written:
        [writer] = map(int, written.readline().split())
    assert Path(f"/proc/{writer}").exists()

    process.kill()

    wait_until(lambda: not Path(f"/proc/{writer}").exists(), what="the writer ends")


def test_a_process_that_is_killed_leaves_no_line_of_another_process() -> None:
    program = (
        "import multiprocessing, os; from node.read import decoder_processes; "
        "decoder_processes.of_this_process().start(); "
        "kept = multiprocessing.get_context('forkserver').Lock(); os.kill(os.getpid(), 9)"
    )

    killed = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=60)

    assert (killed.returncode, killed.stdout, killed.stderr) == (-signal.SIGKILL, "", "")


def test_the_settings_or_else_the_processors_say_how_many_processes_write() -> None:
    assert [batches.count_of(setting) for setting in (0, 1, 7)] == [0, 1, 7]
    processors = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(processors)})
        assert batches.count_of(None) == 0
    finally:
        os.sched_setaffinity(0, processors)
    assert batches.count_of(None) == (0 if len(processors) == 1 else min(len(processors), 4))
