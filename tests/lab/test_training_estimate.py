"""What a run takes is measured by a few of its own steps before it begins, and nothing is written."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest
import torch

from models.errors import ModelError
from models.lab.training import checkpoints
from models.lab.training.catalog import catalog_of
from models.lab.training.command import train_by
from models.lab.training.estimate import estimate
from models.lab.training.estimate_text import text
from models.lab.training.loop import train
from models.lab.training.made_up import write_made_up
from models.lab.training.noise import disturbed
from models.lab.training.process_group import ProcessGroup
from models.lab.training.runfile import FilmSource, Run, read_run
from models.lab.training.stage_trainer import open_trainer, take_step
from models.lab.training.store import open_film_store, stock
from models.lab.training.trained_model import build_model
from models.progress import quiet
from models.train import main
from tests.lab.published import shortened
from tests.paths import REPOSITORY
from tests.support.training import stocked, write_run

pytestmark = [pytest.mark.drill(part="laboratory"), pytest.mark.usefixtures("one_thread")]

RUNS = REPOSITORY / "models" / "lab" / "training" / "runs"
PUBLISHED = ["published_1", "published_2", "published_text", "published_3"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stocked(tmp_path_factory.mktemp("films") / "films")


def small(name: str, folder: Path) -> Run:
    """A published run with small widths, whose films are not there."""
    return shortened(read_run(RUNS / f"{name}.toml"), folder)


def bytes_of(content: object) -> int:
    """The bytes of all tensors in a checkpoint."""
    if isinstance(content, torch.Tensor):
        return content.nbytes
    inner = content.values() if isinstance(content, Mapping) else ()
    return sum(map(bytes_of, inner))


def test_an_estimate_is_printed_and_leaves_nothing_behind(
    tmp_path: Path, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_run(tmp_path / "run.toml", store=store, stages=("contrast", "tell"), steps=400, processes=2)

    assert main([str(path), "--estimate"]) == 0

    told = capsys.readouterr().out
    assert "nothing was trained and nothing written" in told and "made up" not in told
    assert "steps:  800 in " in told and "for each of 2 processes" in told
    assert [line.split()[0] for line in told.splitlines() if " x 1 " in line] == ["contrast", "tell"]
    assert list(tmp_path.iterdir()) == [path]


def test_hours_are_the_steps_times_the_measured_seconds(tmp_path: Path, store: Path) -> None:
    run = read_run(write_run(tmp_path / "run.toml", store=store, stages=("contrast",), steps=7200))
    made = estimate(run, films=None, report=quiet)
    loaded = replace(made.stages[0], seconds=0.5, steps=7200)

    told = text(run, replace(made, stages=(loaded,)))

    assert made.stages[0].steps == 7200 and made.stages[0].seconds == made.stages[0].updating > 0
    assert "steps:  7,200 in 1 hours" in told


def test_loaders_take_the_reading_off_a_step(tmp_path: Path, store: Path) -> None:
    run = read_run(write_run(tmp_path / "run.toml", store=store, stages=("contrast",)))
    run = replace(run, machine=replace(run.machine, loaders=2))

    made = estimate(run, films=None, report=quiet)

    [stage] = made.stages
    at_once = min(2, len(os.sched_getaffinity(0)))
    assert stage.reading > 0
    assert stage.seconds == max(stage.updating - stage.reading, stage.reading / at_once)
    # Of 4 films of 64 x 64 numbers of 4 bytes each.
    assert "; 2 loaders beside it, and 0.000524 GB of /dev/shm" in text(run, made)


def test_disk_is_what_the_run_then_takes(tmp_path: Path, store: Path) -> None:
    run = read_run(write_run(tmp_path / "run.toml", store=store, stages=("contrast", "tell"), steps=1))
    made = estimate(run, films=None, report=quiet)

    directory = train_by(run, Event())

    assert directory is not None
    films = sum(path.stat().st_size for path in store.glob("*.[jn]*"))
    assert made.stored is not None
    assert made.stored * made.film_bytes == pytest.approx(films, rel=0.01)
    checkpoint = checkpoints.load(Path(run.output), fingerprint=run.fingerprint)
    assert checkpoint is not None
    assert made.checkpoint_bytes == pytest.approx(bytes_of(checkpoint), rel=0.01)
    assert made.model_bytes == pytest.approx((directory / "weights.safetensors").stat().st_size, rel=0.1, abs=20_000)


def test_films_that_are_not_there_are_made_up_and_said_so(tmp_path: Path) -> None:
    run = small("published_1", tmp_path)
    [stage] = run.stages
    run = replace(run, start=str(tmp_path / "none"), stages=(replace(stage, epochs=50, steps=0),))

    known, unknown = (estimate(run, films=films, report=quiet) for films in (1000, None))

    assert known.stages[0].steps == 50 * 1000 // (stage.batch * stage.accumulation)
    assert known.missing == tuple(source.file for source in run.data.films) and known.is_random
    assert f"made up:    the films, since {known.missing[0]}, " in text(run, known)
    assert "made up:    the weights, since" in text(run, known)
    assert unknown.stages[0].steps is None and "give their number by --films" in text(run, unknown)


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_loss_of_a_published_run_sees_made_up_films(name: str, tmp_path: Path) -> None:
    run = small(name, tmp_path)
    catalog = catalog_of(run.data.classes)
    path = write_made_up(tmp_path, run.data, catalog, count=8)
    run = replace(run, data=replace(run.data, films=(FilmSource(file=str(path)),)))
    assert stock(run.data, run.store, renderers=1, report=quiet)
    film_store = open_film_store(run.data, run.store, catalog)
    model = build_model(run, catalog, ())
    alone = ProcessGroup(rank=0, size=1)
    trainer = open_trainer(run, alone, number=0, catalog=catalog, film_store=film_store, model=model)

    with disturbed(model.network.train(), trainer.stage.noise):
        outcome = take_step(trainer, 0, stop=False)

    assert (outcome.losses > 0).all()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--films", "10"], "goes with --estimate"),
        (["--estimate", "--films", "0"], "must be above 0"),
    ],
)
def test_an_estimate_refuses_odd_options(
    tmp_path: Path, arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([str(tmp_path / "run.toml"), *arguments])

    assert complaint in capsys.readouterr().err


def test_a_view_head_has_no_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(RUNS / "views.toml"), "--estimate"]) == 2
    assert "takes minutes; --estimate is for the other runs" in capsys.readouterr().err


def test_an_estimate_needs_the_device_of_the_run(tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    run = read_run(write_run(tmp_path / "run.toml", store=store))

    with pytest.raises(ModelError, match="estimate on the machine of the run"):
        estimate(replace(run, machine=replace(run.machine, device="cuda")), films=None, report=quiet)


def test_words_of_a_model_that_is_not_there_cannot_be_made_up(tmp_path: Path, store: Path) -> None:
    run = read_run(write_run(tmp_path / "run.toml", store=store, start=tmp_path / "none", words="start"))

    with pytest.raises(ModelError, match="the run takes its words; make it, or correct start"):
        estimate(run, films=None, report=quiet)


def test_a_run_says_its_steps_and_then_the_hours_left(tmp_path: Path, store: Path) -> None:
    run = read_run(write_run(tmp_path / "run.toml", store=store, stages=("contrast",), steps=6))
    run = replace(run, machine=replace(run.machine, log=2))
    Path(run.output).mkdir()
    told: list[str] = []

    train(run, ProcessGroup(rank=0, size=1), report=lambda stage, done=0, total=0: told.append(stage))

    assert "stage contrast: 6 steps to take" in told
    [left] = [line for line in told if "hours left of this stage" in line]
    assert told.index(left) == told.index("stage contrast: 6 steps to take") + 2, "after the second step"
