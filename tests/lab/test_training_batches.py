"""Batches that other processes prepare are those that the training process would have made itself."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from dataclasses import fields, replace
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch

from models.lab.training.batch import Batch, StageFilms, load
from models.lab.training.catalog import catalog_of
from models.lab.training.loop import train
from models.lab.training.runfile import Run, read_run
from models.lab.training.store import open_film_store
from tests.support.training import stocked, write_run

pytestmark = pytest.mark.drill(part="laboratory")

CATALOG = catalog_of(["chexpert"])
SECONDS = 30.0


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    store = stocked(tmp_path_factory.mktemp("films") / "films")
    return read_run(write_run(store.parent / "run.toml", store=store, stages=("joint",), steps=3))


@pytest.fixture(scope="module")
def films(run: Run) -> StageFilms:
    film_store = open_film_store(run.data, run.store, CATALOG)
    return StageFilms(run, number=0, catalog=CATALOG, film_store=film_store)


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
        assert train(replace(run, output=str(output), machine=machine)) is not None
        rows = (output / "log.csv").read_text().splitlines()
        titles = rows[0].split(",")
        kept = [place for place, title in enumerate(titles) if title not in {"seconds", "pictures_per_second"}]
        logs.append([[row.split(",")[place] for place in kept] for row in rows])

    assert len(logs[0]) == 4
    assert logs[0] == logs[1]


def test_loaders_give_the_batches_of_their_places_and_end_with_them(films: StageFilms) -> None:
    before = loaders_of()
    batches = load(films, range(1, 4), loaders=2)

    loaders = loaders_of() - before
    assert len(loaders) >= 2
    assert all(same(batch, films[place]) for place, batch in enumerate(batches, 1))
    assert not same(films[0], films[1])
    for loader in loaders:
        loader.join(timeout=SECONDS)
    assert not any(loader.is_alive() for loader in loaders)


_LEAVES_A_LOADER = """
import sys
from pathlib import Path
from models.lab.training.batch import StageFilms, load
from models.lab.training.catalog import catalog_of
from models.lab.training.runfile import read_run
from models.lab.training.store import open_film_store

if __name__ == "__main__":
    run, catalog = read_run(Path(sys.argv[1])), catalog_of(["chexpert"])
    film_store = open_film_store(run.data, run.store, catalog)
    films = StageFilms(run, number=0, catalog=catalog, film_store=film_store)
    batches = load(films, range(500), loaders=1)
    next(batches)
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
