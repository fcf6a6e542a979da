"""Runs jobs in parallel processes.

Signals that stop the command are handled by the first process, which waits for running jobs and starts no more. The
other processes ignore them and exit when the first process has ended, even if it was killed.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice

import cv2

Job = Callable[[], None]
Stopped = Callable[[], bool]


def do_all(jobs: Sequence[Job], *, workers: int, stopped: Stopped, finished: Callable[[int], None]) -> bool:
    """Run jobs, which must be picklable. Returns False if the run was stopped.

    finished: called with the number of jobs that are done
    Raises what a job raises, and ChildProcessError if a process ends unexpectedly; no further job is started then.
    """
    if min(workers, len(jobs)) <= 1:
        return _do_here(jobs, stopped=stopped, finished=finished)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(jobs)), mp_context=context, initializer=begin_worker) as pool:
        try:
            return _do_in(pool, jobs, workers=workers, stopped=stopped, finished=finished)
        except BrokenProcessPool as error:
            raise ChildProcessError(
                f"one of {workers} processes ended unexpectedly, usually for lack of memory; run the command again, "
                "if necessary with fewer of them (machine.renderers, or --processes)"
            ) from error


def _do_in(
    pool: Executor, jobs: Sequence[Job], *, workers: int, stopped: Stopped, finished: Callable[[int], None]
) -> bool:
    """Submit no more jobs than there are processes, so that a stop or a failure only waits for the running ones."""
    waiting, running, done = iter(jobs), set[Future[None]](), 0
    while done < len(jobs):
        running |= {pool.submit(job) for job in islice(waiting, 0 if stopped() else workers - len(running))}
        if not running:
            return False
        ended, running = wait(running, return_when=FIRST_COMPLETED)
        for future in ended:
            future.result()
            done += 1
            finished(done)
    return True


def _do_here(jobs: Sequence[Job], *, stopped: Stopped, finished: Callable[[int], None]) -> bool:
    cv2.setNumThreads(1)
    for done, job in enumerate(jobs, 1):
        if stopped():
            return False
        job()
        finished(done)
    return True


def begin_worker() -> None:
    """Let this process ignore the signals that stop a run, use one thread, and end when its parent ends."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    cv2.setNumThreads(1)
    threading.Thread(target=_leave_with_parent, daemon=True).start()


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
