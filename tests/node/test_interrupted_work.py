"""Work that may end the process: it is counted, and what was in hand when a process ended is done alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import pytest

from node.store import interrupted_work
from node.store.interrupted_work import MOST_INTERRUPTIONS, BegunWork
from tests.support.damage import FILM, STUDY, Bench
from tests.support.peers import wait_until

Turn = Callable[[], AbstractContextManager[None]]
LIMIT_SECONDS = 30.0


class Worker:
    """A thread that takes a turn, and has it until it is told to leave."""

    def __init__(self, turn: Turn) -> None:
        self.is_in, self._leave = threading.Event(), threading.Event()
        self._turn = turn
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with self._turn():
            self.is_in.set()
            self._leave.wait(LIMIT_SECONDS)
        self.is_in.clear()

    def close(self) -> None:
        self._leave.set()
        self._thread.join(LIMIT_SECONDS)


@contextmanager
def waiting(turn: Turn) -> Iterator[Worker]:
    """A worker that waits for its turn."""
    worker = Worker(turn)
    with closing(worker):
        assert not worker.is_in.wait(timeout=0.1)
        yield worker


def test_works_together_unless_some_is_done_alone_one_after_the_other() -> None:
    work = BegunWork()
    first, second = Worker(work.together), Worker(work.together)
    assert first.is_in.wait(LIMIT_SECONDS) and second.is_in.wait(LIMIT_SECONDS)

    # Who comes late goes behind, or who works alone might never begin.
    with waiting(work.alone) as alone, waiting(work.together) as late:
        first.close()
        assert not alone.is_in.wait(timeout=0.1)
        second.close()
        assert alone.is_in.wait(LIMIT_SECONDS)
        assert not late.is_in.is_set()
        alone.close()
        assert late.is_in.wait(LIMIT_SECONDS)
    first = Worker(work.alone)
    assert first.is_in.wait(LIMIT_SECONDS)
    with waiting(work.alone) as second:
        first.close()
        assert second.is_in.wait(LIMIT_SECONDS)


def test_what_was_in_hand_at_a_death_is_done_alone(tmp_path: Path) -> None:
    path, work = tmp_path / "film.begun", BegunWork()
    path.write_text("1")
    beside = Worker(work.together)
    assert beside.is_in.wait(LIMIT_SECONDS)

    with waiting(lambda: work.counted(path)) as suspect:
        assert interrupted_work.count(path) == 1  # nobody blames it while it waits
        beside.close()
        assert suspect.is_in.wait(LIMIT_SECONDS)
        assert interrupted_work.count(path) == 2

    wait_until(lambda: not path.exists(), what="the work returned")


def test_an_orderly_end_blames_nobody_and_forgets_nothing(tmp_path: Path) -> None:
    new, suspect, late = (tmp_path / f"{name}.begun" for name in ("new", "suspect", "late"))
    suspect.write_text("2")

    counts = []
    for path in (new, suspect):
        work = BegunWork()
        with work.counted(path):
            work.end()
            counts.append(interrupted_work.count(path))
    with work.counted(late):  # which begins during the end
        counts.append(interrupted_work.count(late))

    assert counts == [0, 2, 0]


def test_the_last_try_waits_until_the_process_has_worked_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interrupted_work, "_SETTLED_SECONDS", 1.0)
    good, path, work = tmp_path / "good.begun", tmp_path / "suspect.begun", BegunWork()
    path.write_text(str(MOST_INTERRUPTIONS - 1))

    with waiting(lambda: work.counted(path)) as suspect:
        assert interrupted_work.count(path) == MOST_INTERRUPTIONS - 1  # who kills the service now blames nothing
        with work.counted(good):  # does not wait
            assert not suspect.is_in.is_set()
        assert suspect.is_in.wait(LIMIT_SECONDS)
        assert interrupted_work.count(path) == MOST_INTERRUPTIONS

    path.write_text(str(MOST_INTERRUPTIONS - 1))
    work = BegunWork()
    with waiting(lambda: work.counted(path)) as suspect:
        work.end()  # which does not wait for it
        assert suspect.is_in.wait(LIMIT_SECONDS)
        assert interrupted_work.count(path) == MOST_INTERRUPTIONS - 1


def test_a_part_of_work_that_returns_clears_no_count(tmp_path: Path) -> None:
    path = tmp_path / "writing.begun"
    path.write_text("2")

    with BegunWork().counted(path, is_part=True):
        assert interrupted_work.count(path) == 3

    assert interrupted_work.count(path) == 2


def test_a_study_whose_writing_ends_processes_is_parked(bench: Bench) -> None:
    path, begun = bench.keep(FILM), bench.folder / "studies" / STUDY / "writing.begun"
    plan = bench.plan()
    assert bench.steps.read(STUDY, path.name) == "read"
    begun.write_text(str(MOST_INTERRUPTIONS))

    assert bench.steps.write(plan) is None
    [row] = bench.ledger.parked()
    assert (row.study, row.stage) == (STUDY, "write")
    assert row.reason.startswith("interrupted: the process ended 4 times while the outputs")

    bench.spool.forget_interrupted_readings(STUDY)  # as the retry of a person does
    assert bench.spool.interruptions(STUDY) == 0
    begun.write_text("1")
    assert bench.steps.write(plan) is not None
    assert bench.spool.interruptions(STUDY) == 0
    assert not [*bench.folder.rglob("*.begun")]
