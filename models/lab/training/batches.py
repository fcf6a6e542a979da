"""The batches of a stage: which films each has, read and augmented.

A batch depends only on the run, the stage and its number. So other processes, the loaders, can make batches before the
steps need them. A GPU needs that: it computes a step in less time than one process takes to read and augment the films.
"""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing import active_children, resource_tracker
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize

import torch
from torch.utils.data import DataLoader, Dataset

from models.errors import ModelError
from models.lab.training.augment import augment
from models.lab.training.batch import Batch, collate
from models.lab.training.catalog import Catalog
from models.lab.training.process_group import ProcessGroup
from models.lab.training.random_streams import film_numbers, stream
from models.lab.training.runfile import Run
from models.lab.training.store import FilmStore
from models.lab.training.workers import STOPPING, begin_worker

AHEAD = 4
"""How many batches each loader makes ahead."""


class StageFilms(Dataset[Batch]):
    """The part of each batch of a stage that one process of the group trains on, by the number of the batch."""

    def __init__(self, run: Run, group: ProcessGroup, *, number: int, catalog: Catalog, film_store: FilmStore) -> None:
        self._run, self._group, self._number = run, group, number
        self._catalog, self._film_store = catalog, film_store

    def __getitem__(self, place: int) -> Batch:
        """Read and augment the films of a batch, on the CPU."""
        run, stage = self._run, self._run.stages[self._number]
        own = stage.batch // self._group.size
        first = place * stage.batch + self._group.rank * own
        numbers = film_numbers(run.seed, self._number, first=first, count=own, films=len(self._film_store))
        size = run.network.image_encoder.image_size
        shown = []
        for film, number in enumerate(numbers, first):
            rng = stream(run.seed, "film", self._number, film)
            pixels, labels = self._film_store.film(number)
            shown.append(augment(pixels, labels, stage.augmentation, rng, catalog=self._catalog, size=size))
        return collate(
            shown,
            catalog=self._catalog,
            drawing=stage.drawing,
            rng=stream(run.seed, "questions", self._number, first),
            mean=run.model.mean,
            std=run.model.std,
        )


class Batches:
    """Gives out batches by number; after each one, `loaders` processes go on with those that follow it, up to `end`."""

    def __init__(self, films: StageFilms, *, end: int, loaders: int) -> None:
        self._films, self._end, self._count = films, end, loaders
        self._next = -1
        self._loaders = _Loaders((), count=0)
        self._ahead: Iterator[Batch | Exception] = iter(())

    def __getitem__(self, place: int) -> Batch:
        """Return a batch, on the CPU.

        Raises what reading its films raises, and ChildProcessError if a loader has ended unexpectedly.
        """
        if not self._count:
            return self._films[place]
        if place != self._next:
            self._ahead = self._loaded(place)
        self._next = place + 1
        try:
            with self._loaders.awaited():
                batch = next(self._ahead)
        except (OSError, EOFError, RuntimeError) as error:  # RuntimeError is torch's own for a loader that ended
            raise _ended(self._count) from error
        if isinstance(batch, Exception):
            try:
                raise batch
            finally:
                del batch  # it would refer to this frame, and the frame to it, and both would keep the loaders
        return batch

    def _loaded(self, first: int) -> Iterator[Batch | Exception]:
        """Start the loaders. A signal to stop meets them with signals blocked, because their parent handles it."""
        loader = DataLoader(
            _OrErrors(self._films),
            batch_size=None,
            sampler=range(first, self._end),
            num_workers=self._count,
            prefetch_factor=AHEAD,
            multiprocessing_context="spawn",
            worker_init_fn=begin_worker,
            generator=torch.Generator(),  # the loader would draw from the step's random numbers otherwise
        )
        resource_tracker.ensure_running()  # its start would unblock them
        others, before = set(active_children()), signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
        try:
            return iter(loader)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            self._loaders = _Loaders(set(active_children()) - others, count=self._count)
            self._loaders.watch()


class _Loaders:
    """The processes that load batches. One that ends unexpectedly raises an error, but only where a batch is awaited.

    A signal tells of its end, even while the program waits for the other half of a message. Torch's own handler of
    that signal raises its error wherever the program is, also while it handles another, and again for other processes.
    Only those of one stage are watched at a time, and only in the main thread.
    """

    def __init__(self, processes: Collection[BaseProcess], *, count: int) -> None:
        """Take the processes that were found; count: how many were started."""
        self._processes, self._count = processes, count
        self._is_awaited = False

    def watch(self) -> None:
        """Take the signal over from torch, and end them when the program exits."""
        Finalize(None, _kill, args=(self._processes,), exitpriority=1)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: self._tell())

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """Raise ChildProcessError if one of them has ended with a fault, or ends before this is left."""
        self._is_awaited = True
        try:
            self._tell()
            yield
        finally:
            self._is_awaited = False

    def _tell(self) -> None:
        has_ended = len(self._processes) < self._count or any(process.exitcode for process in self._processes)
        if self._is_awaited and has_ended:
            self._is_awaited = False
            raise _ended(self._count)


def _ended(loaders: int) -> ChildProcessError:
    return ChildProcessError(
        f"one of {loaders} loaders ended unexpectedly, usually for lack of memory or of shared memory (/dev/shm); run "
        "the command again, if necessary with fewer of them (machine.loaders)"
    )


def _kill(loaders: Iterable[BaseProcess]) -> None:
    """End loaders that are left when the program exits: it would wait for them, and they ignore its signal to end."""
    for loader in loaders:
        loader.kill()


class _OrErrors(Dataset["Batch | Exception"]):
    """Batches, or what reading their films raised: torch would put a traceback into the message."""

    def __init__(self, films: StageFilms) -> None:
        self._films = films

    def __getitem__(self, place: int) -> Batch | Exception:
        try:
            return self._films[place]
        except (ModelError, OSError, ValueError, RuntimeError, EOFError) as error:
            return error
