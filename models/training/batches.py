"""The batches of a stage: which films each has, read and augmented.

A batch depends only on the run, the stage and its number. So other processes can prepare batches before the steps need
them. A GPU needs that: it computes a step in less time than one process takes to prepare the films.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

from models.training.augment import augment
from models.training.batch import Batch, collate
from models.training.catalog import Catalog
from models.training.process_group import ProcessGroup
from models.training.random_streams import film_numbers, stream
from models.training.runfile import Run
from models.training.store import Library
from models.training.workers import begin_worker

_Kept = TypeVar("_Kept")
_AHEAD = 4
"""How many batches each process prepares ahead."""


class StageFilms(Dataset[Batch]):
    """The part of each batch of a stage that one process of the group trains on, by the number of the batch."""

    def __init__(self, run: Run, group: ProcessGroup, *, number: int, catalog: Catalog, library: Library) -> None:
        self._run, self._group, self._number = run, group, number
        self._catalog, self._library = catalog, library

    def __getitem__(self, place: int) -> Batch:
        """Read and augment the films of a batch, on the CPU."""
        run, stage = self._run, self._run.stages[self._number]
        own = stage.batch // self._group.size
        first = place * stage.batch + self._group.rank * own
        numbers = film_numbers(run.seed, self._number, first=first, count=own, films=len(self._library))
        size = run.network.image_encoder.image_size
        shown = []
        for film, number in enumerate(numbers, first):
            rng = stream(run.seed, "film", self._number, film)
            pixels, labels = self._library.film(number)
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
        self._films, self._end, self._loaders = films, end, loaders
        self._next = -1
        self._ahead: Iterator[Batch] = iter(())

    def __getitem__(self, place: int) -> Batch:
        """Return a batch, on the CPU."""
        if not self._loaders:
            return self._films[place]
        if place != self._next:
            self._ahead = self._prepared(place)
        self._next = place + 1
        return next(self._ahead)

    def _prepared(self, first: int) -> Iterator[Batch]:
        return iter(
            DataLoader(
                self._films,
                batch_size=None,
                sampler=range(first, self._end),
                collate_fn=_as_it_is,
                num_workers=self._loaders,
                prefetch_factor=_AHEAD,
                multiprocessing_context="spawn",
                worker_init_fn=_begin,
                generator=torch.Generator(),  # the loader would draw from the step's random numbers otherwise
            )
        )


def _as_it_is(batch: _Kept) -> _Kept:
    """Return what `StageFilms` made, which is a batch already."""
    return batch


def _begin(_number: int) -> None:
    begin_worker()
