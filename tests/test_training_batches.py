"""Batches that other processes prepare are those that the training process would have made itself."""

from __future__ import annotations

import multiprocessing
import os
import signal
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

from models.training.batch import Batch
from models.training.batches import Batches, StageFilms
from models.training.catalog import catalog_of
from models.training.loop import train
from models.training.process_group import ProcessGroup
from models.training.runfile import Run, read_run
from models.training.store import open_library
from tests.training import stocked, write_run

ALONE = ProcessGroup(rank=0, size=1)
CATALOG = catalog_of(["chexpert"])
SECONDS = 30.0


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    store = stocked(tmp_path_factory.mktemp("films") / "films")
    return read_run(write_run(store.parent / "run.toml", store=store, stages=("joint",), steps=3))


@pytest.fixture(scope="module")
def films(run: Run) -> StageFilms:
    library = open_library(run.data, run.store, CATALOG)
    return StageFilms(run, ALONE, number=0, catalog=CATALOG, library=library)


def same(one: Batch, other: Batch) -> bool:
    pairs = [(getattr(one, field.name), getattr(other, field.name)) for field in fields(Batch)]
    arrays = [pair for pair in pairs if isinstance(pair[0], Tensor)]
    asked = [[question.text for question in film] for batch in (one, other) for film in batch.asked]
    return (
        all(np.array_equal(first.numpy(), second.numpy()) for first, second in arrays)
        and asked[: len(one.asked)] == asked[len(one.asked) :]
        and [len(said) for said in one.said] == [len(said) for said in other.said]
    )


def test_a_run_with_loaders_has_the_losses_of_one_without(run: Run, tmp_path: Path) -> None:
    logs = []
    for loaders in (0, 1):
        output = tmp_path / str(loaders)
        output.mkdir()
        machine = replace(run.machine, loaders=loaders, log=1)
        assert train(replace(run, output=str(output), machine=machine), ALONE) is not None
        rows = (output / "log.csv").read_text().splitlines()
        titles = rows[0].split(",")
        kept = [place for place, title in enumerate(titles) if title not in {"seconds", "pictures_per_second"}]
        logs.append([[row.split(",")[place] for place in kept] for row in rows])

    assert len(logs[0]) == 4
    assert logs[0] == logs[1]


def test_loaders_prepare_any_batch_and_end_with_the_stage(films: StageFilms) -> None:
    before = set(multiprocessing.active_children())
    batches = Batches(films, end=5, loaders=1)
    assert same(batches[0], films[0]) and not same(batches[1], films[0])
    (loader,) = set(multiprocessing.active_children()) - before
    os.kill(loader.pid or 0, signal.SIGTERM)  # as a terminal or a supervisor that stops the run does

    assert all(same(batches[place], films[place]) for place in (2, 3, 4, 1, 2))

    (later,) = set(multiprocessing.active_children()) - before
    assert later != loader
    del batches
    later.join(timeout=SECONDS)
    assert not later.is_alive()
