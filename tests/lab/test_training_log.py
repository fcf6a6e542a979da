"""What a training keeps of its steps, how it goes on, and how it shares work."""

from __future__ import annotations

import csv
import math
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch

from models.checkpoint.assembly import PARTS
from models.decisions import sigmoid
from models.errors import ModelError
from models.lab.training import loop, model_writer, workers
from models.lab.training import store as film_store
from models.lab.training.loop import (
    CHECKPOINT,
    Outcome,
    Progress,
    StageTrainer,
    load_checkpoint,
    save_checkpoint,
    train_by,
)
from models.lab.training.model_writer import TABLE, _origins
from models.lab.training.runfile import Data, Run
from models.lab.training.trained_model import TrainedModel
from models.lab.training.workers import do_all
from models.manifest import WEIGHTS, Ages, read_manifest, write_manifest
from models.reading.tokenizers import VOCABULARIES


def run_at(folder: Path, *, processes: int = 1) -> Run:
    stages = (
        SimpleNamespace(name="contrast", losses={"sentences": 1.0}),
        SimpleNamespace(name="joint", losses={"sentences": 1.0, "boxes": 2.0}),
    )
    machine = SimpleNamespace(processes=processes)
    return cast("Run", SimpleNamespace(output=str(folder), stages=stages, machine=machine))


def test_a_run_goes_on_only_from_its_own_checkpoint(tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path, fingerprint="a") is None
    torch.save({"fingerprint": "a", "progress": {"step": 3}}, tmp_path / CHECKPOINT)

    kept = load_checkpoint(tmp_path, fingerprint="a")
    assert kept is not None and kept["progress"] == {"step": 3}
    with pytest.raises(ModelError, match="other settings"):
        load_checkpoint(tmp_path, fingerprint="b")

    (tmp_path / CHECKPOINT).write_bytes(b"PK no")
    with pytest.raises(ModelError, match="delete it to start"):
        load_checkpoint(tmp_path, fingerprint="a")


def test_a_run_is_refused_that_is_done_or_has_other_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(ModelError, match=r"machine\.processes is 2, and 1 run.*--nproc-per-node 2"):
        train_by(run_at(tmp_path, processes=2), Event())
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ModelError, match=r"machine\.processes is 1, and 3 run"):
        train_by(run_at(tmp_path), Event())

    (tmp_path / "model").mkdir()
    with pytest.raises(ModelError, match="model exists already"):
        train_by(run_at(tmp_path), Event())


def test_a_checkpoint_has_all_that_a_run_goes_on_with(tmp_path: Path) -> None:
    network, heads = torch.nn.Linear(2, 1), torch.nn.Linear(1, 1)
    optimizer = torch.optim.AdamW([*network.parameters(), *heads.parameters()])
    network(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    trainer = SimpleNamespace(
        run=SimpleNamespace(output=str(tmp_path), fingerprint="a"),
        model=SimpleNamespace(network=network, heads=heads),
        optimizer=optimizer,
        scaler=torch.amp.GradScaler("cpu", init_scale=8.0),
    )

    save_checkpoint(cast("StageTrainer", trainer), Progress(stage=1, step=5, seconds=2.5, counted=3))

    kept = load_checkpoint(tmp_path, fingerprint="a")
    assert kept is not None
    torch.testing.assert_close(kept["network"], dict(network.state_dict()))
    torch.testing.assert_close(kept["heads"], dict(heads.state_dict()))
    torch.testing.assert_close(dict(kept["optimizer"]), dict(optimizer.state_dict()))
    assert kept["scaler"] == trainer.scaler.state_dict() and kept["scaler"]
    progress = Progress(**kept["progress"])
    assert (progress.stage, progress.step, progress.seconds, progress.counted) == (1, 5, 2.5, 3)


@pytest.mark.parametrize(
    ("halt", "first", "rows", "saved"),
    [
        (None, 0, [("2", "0.5"), ("4", "2.5"), ("5", "4")], [3, 5]),
        (3, 0, [("2", "0.5")], [3]),
        (4, 0, [("2", "0.5"), ("4", "2.5")], [3, 4]),
        (5, 0, [("2", "0.5"), ("4", "2.5"), ("5", "4")], [3, 5]),
        (None, 2, [("4", "2.5"), ("5", "4")], [3, 5]),
    ],
)
def test_a_stage_is_logged_and_kept_at_its_intervals_and_when_it_is_stopped(
    halt: int | None,
    first: int,
    rows: list[tuple[str, str]],
    saved: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every step's loss and gradient are its number, from 0."""
    kept = list[int]()

    def step(_trainer: object, number: int, _batches: object, *, stop: bool) -> Outcome:
        assert not stop
        return Outcome(losses=torch.tensor([float(number)]), gradient=float(number), halt=number + 1 == halt)

    monkeypatch.setattr(loop, "take_step", step)
    monkeypatch.setattr(loop, "disturbed", lambda *_: nullcontext())
    monkeypatch.setattr(loop, "save_checkpoint", lambda _, progress: kept.append(progress.step))
    stage = SimpleNamespace(name="contrast", losses={"sentences": 3.0}, batch=4, accumulation=2, noise=None)
    begun = list[int]()
    trainer = SimpleNamespace(
        run=SimpleNamespace(
            output=str(tmp_path),
            stages=[stage, SimpleNamespace(losses={"sentences": 1.0, "boxes": 2.0})],
            machine=SimpleNamespace(log=2, checkpoint=3),
        ),
        stage=stage,
        steps=5,
        model=SimpleNamespace(network=torch.nn.Linear(1, 1)),
        batches=begun.append,
        rate=lambda step: step / 10,
    )

    done = loop._train_stage(
        cast("StageTrainer", trainer),
        Progress(step=first, sums=torch.zeros(2), rows=[{"stage": "view", "step": "7"}]),
        stopped=lambda: False,
        report=lambda *_: None,
    )

    assert done is (halt in (None, 5)) and begun == [first]
    with (tmp_path / TABLE).open(newline="") as file:
        before, *told = csv.DictReader(file)
    columns = "stage step seconds pictures_per_second learning_rate gradient total sentences boxes"
    assert list(before) == columns.split() and (before["stage"], before["step"]) == ("view", "7")
    assert [(row["step"], row["gradient"]) for row in told] == rows
    assert kept == saved
    for row in told:
        assert row["sentences"] == row["gradient"] and float(row["total"]) == pytest.approx(3 * float(row["sentences"]))
        assert float(row["learning_rate"]) == pytest.approx((int(row["step"]) - 1) / 10)


# --- jobs in several processes, here in threads -----------------------------------------------------------------------


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Use threads for processes; returns how many were asked for."""
    asked = list[int]()

    def pool(count: int, **_: object) -> ThreadPoolExecutor:
        asked.append(count)
        return ThreadPoolExecutor(count)

    monkeypatch.setattr(workers, "ProcessPoolExecutor", pool)
    return asked


@pytest.mark.parametrize(("jobs", "count", "pools"), [(7, 3, [3]), (3, 1, []), (1, 4, [])])
def test_every_job_is_done_once_and_counted(jobs: int, count: int, pools: list[int], threads: list[int]) -> None:
    done, told = list[int](), list[int]()

    work = [partial(done.append, number) for number in range(jobs)]
    assert do_all(work, workers=count, stopped=lambda: False, finished=told.append)

    assert (sorted(done), told, threads) == ([*range(jobs)], [*range(1, jobs + 1)], pools)


@pytest.mark.parametrize("count", [1, 2])
def test_a_stop_starts_no_further_job_and_waits_for_those_that_run(count: int, threads: list[int]) -> None:
    done, told = list[int](), list[int]()

    def work(number: int) -> None:
        Event().wait(0.005)
        done.append(number)

    jobs = [partial(work, number) for number in range(20)]
    assert not do_all(jobs, workers=count, stopped=lambda: len(told) >= 4, finished=told.append)

    assert len(threads) == count - 1
    assert 4 <= len(done) < 4 + 2 * count and len(told) == len(done)


def test_a_job_that_fails_ends_the_others(threads: list[int]) -> None:
    done = list[int]()

    def fail() -> None:
        raise OSError("no space")

    work = [fail, *([partial(Event().wait, 0.005)] * 20)]
    for count in (1, 2):
        with pytest.raises(OSError, match="no space"):
            do_all(work, workers=count, stopped=lambda: False, finished=done.append)
    assert len(done) < 10 and threads == [2]


def test_a_process_that_was_killed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: object, **__: object) -> bool:
        raise BrokenProcessPool

    monkeypatch.setattr(workers, "_do_in", die)
    monkeypatch.setattr(workers, "ProcessPoolExecutor", lambda *_, **__: ThreadPoolExecutor(1))

    with pytest.raises(ChildProcessError, match=r"one of 3 processes ended unexpectedly.*machine\.renderers"):
        do_all([lambda: None] * 4, workers=3, stopped=lambda: False, finished=lambda _: None)


def test_another_process_ignores_the_signals_that_stop_a_run_and_ends_with_its_parent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done = list[object]()
    begun = list[Callable[[], None]]()
    parents = [None, SimpleNamespace(join=lambda: done.append("parent ended"))]

    def thread(*, target: Callable[[], None], daemon: bool) -> object:
        assert daemon
        return SimpleNamespace(start=partial(begun.append, target))

    monkeypatch.setattr("models.lab.training.workers.signal.signal", lambda *own: done.append(own))
    monkeypatch.setattr("models.lab.training.workers.threading.Thread", thread)
    monkeypatch.setattr("models.lab.training.workers.os._exit", done.append)
    monkeypatch.setattr("models.lab.training.workers.multiprocessing.parent_process", lambda: parents.pop(0))

    workers.begin_worker()
    for _ in range(2):
        begun[0]()

    assert set(done[:2]) == {(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    assert done[2:] == ["parent ended", 1], "where there is a parent"


# --- where the weights of a written model came from -------------------------------------------------------------------


NAMES = (
    "image_encoder.x prompt_encoder.x detector.box.x detector.score.x post_decoder.x generator.prefix.x generator.x"
).split()


def origins(*stages: tuple[tuple[str, ...], tuple[str, ...]], start: str = "") -> dict[str, str]:
    """The origins of a model after stages, each with what it trains and what it leaves frozen."""
    model = SimpleNamespace(network=SimpleNamespace(state_dict=lambda: dict.fromkeys(NAMES)))
    run = SimpleNamespace(
        stages=[SimpleNamespace(train=train, frozen=frozen) for train, frozen in stages],
        start=start,
        seed=7,
        model=SimpleNamespace(name="mine", version="2", trained_on="films"),
    )
    return _origins(cast("Run", run), cast("TrainedModel", model))


def test_parts_that_were_not_trained_keep_their_origin(tmp_path: Path) -> None:
    every = ("image_encoder", "prompt_encoder", "detector", "post_decoder", "generator")
    assert origins((every, ())) == origins((every[:2], ()), (every[2:], ("detector.box",))) == {}

    own = "mine 2, trained on films"
    first = origins((("detector", "generator"), ("generator.prefix", "detector.box")))
    assert first == dict.fromkeys(PARTS, "not trained yet, seed 7") | {"detector": own, "generator": own}

    theirs = {"image_encoder": "CheXzero", "generator.prefix": "never trained"}
    shipped = read_manifest(VOCABULARIES.parent)
    write_manifest(tmp_path, replace(shipped, name="theirs", version="1", trained_on="others", origins=theirs))
    assert origins((("detector",), ()), start=str(tmp_path)) == {
        **dict.fromkeys(PARTS, "theirs 1, trained on others"),
        "image_encoder": "CheXzero",
        "generator.prefix": "not trained yet, seed 7",
        "detector": own,
    }


def test_a_manifest_has_the_settings_of_the_run_and_what_was_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = replace(read_manifest(VOCABULARIES.parent).sizes, views=None)
    told = {"name": "mine", "version": "2", "licence": "none", "trained_on": "films", "intended_use": "tests"}
    told |= {"gray": "mimic_jpg", "ages": Ages(least=18)}
    heads = SimpleNamespace(scale=torch.tensor(2.0), offset=torch.tensor(-1.0))
    vocabulary = SimpleNamespace(learned=("lung", "heart"))
    model = SimpleNamespace(network=SimpleNamespace(sizes=sizes), heads=heads, vocabulary=vocabulary)
    run = SimpleNamespace(model=SimpleNamespace(**told, resize="via_256"), network=sizes)
    monkeypatch.setattr(model_writer, "_origins", lambda *_: {})

    made = model_writer._manifest(cast("Run", run), cast("TrainedModel", model))

    assert {name: getattr(made, name) for name in told} == told
    assert (made.input.resize, made.input.size) == ("via_256", sizes.image_encoder.image_size)
    assert (made.sizes, made.vocabulary) == (sizes, ("lung", "heart"))
    # At a difference of cosines of 0.5 the learned logit, exp(2) * x - 1, is what the manifest's temperature gives.
    assert made.decisions.probability("edema", np.array(0.5)) == pytest.approx(sigmoid(np.array(math.exp(2) * 0.5)))
    assert made.decisions.default_threshold == pytest.approx(float(sigmoid(np.array(1.0))))


def test_weights_keep_a_share_of_those_of_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = {"a": torch.tensor([4.0]), "b": torch.tensor([1.0])}
    model = SimpleNamespace(network=SimpleNamespace(state_dict=lambda: trained, sizes=None))
    monkeypatch.setattr(model_writer, "trained_weights", lambda *_: {"a": torch.tensor([8.0])})

    def averaged(share: float) -> dict[str, float]:
        run = SimpleNamespace(start="there", start_share=share)
        state = model_writer._averaged(cast("Run", run), cast("TrainedModel", model))
        return {name: float(weight) for name, weight in state.items()}

    assert averaged(0.0) == {"a": 4.0, "b": 1.0}
    assert averaged(0.25) == {"a": 5.0, "b": 1.0}


@pytest.mark.parametrize("store", ["float32", "half"])
def test_a_model_is_written_with_its_weights_in_the_asked_precision(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = list[object]()
    state = {"a": torch.zeros(2), "b": torch.zeros(1)}
    monkeypatch.setattr(model_writer, "save_weights", lambda path, own, half: done.append((path.name, own, half)))
    monkeypatch.setattr(model_writer, "complete", lambda _aside, manifest, card: done.append((manifest, card)))
    monkeypatch.setattr(model_writer, "_averaged", lambda *_: state)
    monkeypatch.setattr(model_writer, "_manifest", lambda *_: "manifest")
    monkeypatch.setattr(model_writer, "_card", lambda *_, parameters: f"card of {parameters}")
    run = SimpleNamespace(output=str(tmp_path), model=SimpleNamespace(store=store))

    written = model_writer.write_model(cast("Run", run), cast("TrainedModel", None))

    assert written == tmp_path / "model" and written.is_dir()
    assert done == [(WEIGHTS, state, store == "half"), ("manifest", "card of 3")]


def test_a_shelf_is_named_by_all_that_its_films_depend_on(tmp_path: Path) -> None:
    places = np.zeros((2500, 2), np.int64)

    def names(*, side: int = 64, jpeg: bool = True, index: str = "films-a.places") -> list[str]:
        data = cast("Data", SimpleNamespace(side=side, jpeg=jpeg))
        made = list(film_store._cut(tmp_path / index, places, data=data))
        assert sum(len(own) for _, own in made) == len(places) and all(len(own) for _, own in made)
        return [path.name for path, _ in made]

    every = [names(), names(side=32), names(jpeg=False), names(index="films-b.places")]
    assert len({name for some in every for name in some}) == sum(len(some) for some in every)
    assert all(name.startswith("films-a-64-0") for name in names())
