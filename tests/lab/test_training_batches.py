"""Batches that other processes prepare are those that the training process would have made itself."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import fields, replace
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch

from models.lab.training.batch import Batch
from models.lab.training.batches import Batches, StageFilms
from models.lab.training.catalog import catalog_of
from models.lab.training.loop import train
from models.lab.training.process_group import ProcessGroup
from models.lab.training.runfile import Run, read_run
from models.lab.training.store import open_film_store
from tests.support.training import stocked, write_run

pytestmark = pytest.mark.drill(part="laboratory")

ALONE = ProcessGroup(rank=0, size=1)
CATALOG = catalog_of(["chexpert"])
SECONDS = 30.0


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    store = stocked(tmp_path_factory.mktemp("films") / "films")
    return read_run(write_run(store.parent / "run.toml", store=store, stages=("joint",), steps=3))


@pytest.fixture(scope="module")
def films(run: Run) -> StageFilms:
    film_store = open_film_store(run.data, run.store, CATALOG)
    return StageFilms(run, ALONE, number=0, catalog=CATALOG, film_store=film_store)


def same(first: Batch, second: Batch) -> bool:
    """Compare all that two batches hold, floats bit for bit."""
    return plain(first) == plain(second)


def plain(batch: Batch) -> object:
    arrays = {
        field.name: value.numpy()
        for field in fields(batch)
        if isinstance(value := getattr(batch, field.name), torch.Tensor)
    }
    asked = [[(question.text, question.boxes, question.is_placed) for question in film] for film in batch.asked]
    said = [[(sentence.text, sentence.boxes, sentence.regions) for sentence in film] for film in batch.said]
    return [(name, array.dtype.str, array.tobytes()) for name, array in arrays.items()], str(asked), str(said)


def loaders_of() -> set[BaseProcess]:
    return set(multiprocessing.active_children())


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


def test_loaders_give_any_batch_and_end_with_their_stage(films: StageFilms) -> None:
    before = loaders_of()
    batches = Batches(films, end=5, loaders=2)

    assert all(same(batches[place], films[place]) for place in (0, 1, 3))

    assert not same(films[0], films[1])
    assert len(loaders_of() - before) >= 2
    assert same(batches[4], films[4])
    with pytest.raises(StopIteration):
        batches[5]
    assert not ended(loaders_of() - before)


def ended(loaders: set[BaseProcess]) -> set[BaseProcess]:
    """Wait for loaders to end; returns those that did not."""
    for loader in loaders:
        loader.join(timeout=SECONDS)
    return {loader for loader in loaders if loader.is_alive()}


def test_a_signal_that_stops_the_run_leaves_starting_loaders(films: StageFilms) -> None:
    before = loaders_of()
    batches = Batches(films, end=3, loaders=1)
    signalled = []

    def stop() -> None:
        while not (starting := loaders_of() - before):
            time.sleep(0.001)
        (loader,) = starting
        assert loader.pid
        os.kill(loader.pid, signal.SIGTERM)
        signalled.append(loader.pid)

    stopping = threading.Thread(target=stop)
    stopping.start()

    assert all(same(batches[place], films[place]) for place in range(3))
    stopping.join(timeout=SECONDS)
    assert len(signalled) == 1


ENDED = "one of 1 loaders ended unexpectedly.*machine.loaders"


def test_a_killed_loader_is_told_where_a_batch_is_awaited(films: StageFilms) -> None:
    before = loaders_of()
    batches = Batches(films, end=500, loaders=1)
    batches[0]
    (loader,) = loaders_of() - before

    loader.kill()
    assert wait([loader.sentinel], timeout=SECONDS) == [loader.sentinel], "and nothing was raised here"
    with pytest.raises(ChildProcessError, match=ENDED):
        batches[1]
    signal.raise_signal(signal.SIGCHLD)  # as any other process that ends


def test_a_loader_killed_while_a_batch_is_awaited_is_told(films: StageFilms) -> None:
    before = loaders_of()
    batches = Batches(films, end=500, loaders=1)
    batches[0]
    (loader,) = loaders_of() - before
    assert loader.pid
    os.kill(loader.pid, signal.SIGSTOP)
    killing = threading.Timer(0.5, loader.kill)
    killing.start()

    began = time.monotonic()
    with pytest.raises(ChildProcessError, match=ENDED):
        for place in range(1, 500):
            batches[place]
    assert time.monotonic() - began < 4, "torch itself looks every five seconds"
    killing.join()


_LEAVES_A_LOADER = """
import sys
from pathlib import Path
from models.lab.training.batches import Batches, StageFilms
from models.lab.training.catalog import catalog_of
from models.lab.training.process_group import ProcessGroup
from models.lab.training.runfile import read_run
from models.lab.training.store import open_film_store

if __name__ == "__main__":
    run, catalog = read_run(Path(sys.argv[1])), catalog_of(["chexpert"])
    film_store = open_film_store(run.data, run.store, catalog)
    films = StageFilms(run, ProcessGroup(rank=0, size=1), number=0, catalog=catalog, film_store=film_store)
    batches = Batches(films, end=500, loaders=1)
    batches[0]
"""


def test_a_program_that_has_loaders_left_ends(run: Run, tmp_path: Path, repository: Path) -> None:
    script = tmp_path / "leaves.py"
    script.write_text(_LEAVES_A_LOADER, encoding="ascii")
    path = write_run(tmp_path / "run.toml", store=run.store, stages=("joint",), steps=500)

    done = subprocess.run(
        [sys.executable, script, path],
        cwd=repository,
        env={**os.environ, "PYTHONPATH": str(repository)},
        timeout=2 * SECONDS,
        capture_output=True,
        text=True,
    )

    assert (done.returncode, done.stderr) == (0, "")


def test_what_a_loader_cannot_read_is_told_as_it_is(run: Run, tmp_path: Path) -> None:
    store = tmp_path / "films"
    shutil.copytree(run.store, store)
    moved = replace(run, data=replace(run.data, store=str(store)))
    film_store = open_film_store(moved.data, moved.store, CATALOG)
    for path in store.glob("*.npy"):
        path.unlink()
    films = StageFilms(moved, ALONE, number=0, catalog=CATALOG, film_store=film_store)

    with pytest.raises(FileNotFoundError) as refused:
        Batches(films, end=5, loaders=1)[0]

    assert "\n" not in str(refused.value) and str(store) in str(refused.value)
