"""What a training keeps of its steps, how it goes on, how it shares work, and how its films are made ready."""

from __future__ import annotations

import csv
import fcntl
import json
import math
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import cast

import cv2
import numpy as np
import pytest
import torch

from models.checkpoint.assembly import PARTS
from models.decisions import sigmoid
from models.errors import ModelError
from models.lab import phantoms
from models.lab.training import loop, model_writer, workers
from models.lab.training import store as film_store
from models.lab.training.catalog import catalog_of
from models.lab.training.loop import (
    CHECKPOINT,
    Outcome,
    Progress,
    StageTrainer,
    load_checkpoint,
    train_by,
)
from models.lab.training.model_writer import TABLE, _origins
from models.lab.training.runfile import Data, FilmSource, Run
from models.lab.training.store import open_film_store, stock
from models.lab.training.trained_model import TrainedModel
from models.lab.training.workers import do_all
from models.manifest import Ages, read_manifest, write_manifest
from models.progress import quiet
from models.reading.tokenizers import VOCABULARIES
from tests.support import peers


def run_at(folder: Path, *, processes: int = 1) -> Run:
    return cast("Run", SimpleNamespace(output=str(folder), machine=SimpleNamespace(processes=processes)))


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


@pytest.mark.parametrize(
    ("halt", "first", "logged", "saved"),
    [
        (None, 0, {"2": 0.5, "4": 2.5, "5": 4.0}, [3, 5]),
        (3, 0, {"2": 0.5}, [3]),
        (4, 0, {"2": 0.5, "4": 2.5}, [3, 4]),
        (5, 0, {"2": 0.5, "4": 2.5, "5": 4.0}, [3, 5]),
        (None, 2, {"4": 2.5, "5": 4.0}, [3, 5]),
    ],
)
def test_a_stage_is_logged_and_kept_at_its_intervals_and_when_it_is_stopped(
    halt: int | None,
    first: int,
    logged: dict[str, float],
    saved: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every step's loss and gradient are its number, from 0."""
    kept, begun = list[int](), list[int]()

    def step(_trainer: object, number: int, _batches: object, *, stop: bool) -> Outcome:
        assert not stop
        return Outcome(losses=torch.tensor([float(number)]), gradient=float(number), halt=number + 1 == halt)

    monkeypatch.setattr(loop, "take_step", step)
    monkeypatch.setattr(loop, "disturbed", lambda *_: nullcontext())
    monkeypatch.setattr(loop, "save_checkpoint", lambda _, progress: kept.append(progress.step))
    stage = SimpleNamespace(name="contrast", losses={"sentences": 3.0}, batch=4, accumulation=2, noise=None)
    stages = [stage, SimpleNamespace(losses={"sentences": 1.0, "boxes": 2.0})]
    trainer = SimpleNamespace(
        run=SimpleNamespace(output=str(tmp_path), stages=stages, machine=SimpleNamespace(log=2, checkpoint=3)),
        stage=stage,
        steps=5,
        model=SimpleNamespace(network=torch.nn.Linear(1, 1)),
        batches=begun.append,
        rate=lambda step: step / 10,
    )
    progress = Progress(step=first, sums=torch.zeros(2), rows=[{"stage": "view", "step": "7"}])

    done = loop._train_stage(cast("StageTrainer", trainer), progress, stopped=lambda: False, report=lambda *_: None)

    assert (done, begun, kept) == (halt in (None, 5), [first], saved)
    with (tmp_path / TABLE).open(newline="") as file:
        before, *told = csv.DictReader(file)
    columns = "stage step seconds pictures_per_second learning_rate gradient total sentences boxes"
    assert list(before) == columns.split() and (before["stage"], before["step"]) == ("view", "7")
    assert [row["step"] for row in told] == [*logged]
    for row in told:
        value, rate = logged[row["step"]], (int(row["step"]) - 1) / 10
        said = [float(row[name]) for name in ("gradient", "sentences", "total", "learning_rate")]
        assert said == pytest.approx([value, value, 3 * value, rate])


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

    def work() -> None:
        Event().wait(0.005)

    for count in (1, 2):
        with pytest.raises(OSError, match="no space"):
            do_all([fail, *[work] * 20], workers=count, stopped=lambda: False, finished=done.append)
    assert len(done) < 10 and threads == [2]


def test_a_process_that_was_killed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: object, **__: object) -> bool:
        raise BrokenProcessPool

    monkeypatch.setattr(workers, "_do_in", die)
    monkeypatch.setattr(workers, "ProcessPoolExecutor", lambda *_, **__: ThreadPoolExecutor(1))

    with pytest.raises(ChildProcessError, match=r"one of 3 processes ended unexpectedly.*machine\.renderers"):
        do_all([lambda: None] * 4, workers=3, stopped=lambda: False, finished=lambda _: None)


def test_another_process_ignores_the_signals_that_stop_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    done = list[object]()
    monkeypatch.setattr("models.lab.training.workers.signal.signal", lambda *own: done.append(own))
    monkeypatch.setattr("models.lab.training.workers.threading.Thread", lambda **_: SimpleNamespace(start=lambda: None))

    workers.begin_worker()

    assert set(done) == {(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}


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
    told: dict[str, object] = {"name": "mine", "version": "2", "licence": "none", "gray": "mimic_jpg"}
    told |= {"trained_on": "films", "intended_use": "tests", "ages": Ages(least=18)}
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


# ---- films made ready for training: in little memory, by several processes, and gone on with after a kill


CATALOG = catalog_of(["chexpert"])
LIMIT_SECONDS = 120
SHELVES = 20


@pytest.fixture(autouse=True)
def cv2_threads() -> Iterator[None]:
    threads = cv2.getNumThreads()
    yield
    cv2.setNumThreads(threads)


def films_file(folder: Path, *, count: int) -> Path:
    """A file of films that share one picture; each is known by its sentence."""
    folder.mkdir(exist_ok=True)
    picture = np.random.default_rng(0).integers(0, 255, (64, 80), dtype=np.uint8)
    cv2.imwrite(str(folder / "film.png"), picture)
    said = {"positive": False, "findings": [], "regions": [], "boxes": []}
    lines = [
        {"file": "film.png", "patient": f"p{number}", "truth": {"said": [said | {"text": f"Film {number}."}]}}
        for number in range(count)
    ]
    path = folder / "films.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def data_of(path: Path, *, side: int = 64) -> Data:
    return Data(films=(FilmSource(file=str(path)),), side=side)


def make(data: Data, folder: Path) -> list[int]:
    """Make films in this process; returns how many shards were to be made, each time one was done."""
    totals: list[int] = []

    def report(stage: str, done: int = 0, total: int = 0) -> None:
        totals.extend([total] if total else [])

    assert stock(data, folder, renderers=1, report=report)
    return totals


MAKE = """
    import sys
    from pathlib import Path
    from models.progress import quiet
    from models.lab.training.runfile import Data, FilmSource
    from models.lab.training.store import stock

    if __name__ == "__main__":
        data = Data(films=(FilmSource(file=sys.argv[1]),), side=64)
        stock(data, Path(sys.argv[2]), renderers=2, report=quiet)
"""


def kill_in_the_middle(path: Path, store: Path, repository: Path) -> list[Path]:
    """Kill the parent of two workers once some shards are made; returns these, none where it was over before.

    The workers must leave with it.
    """
    script = store.with_suffix(".py")
    script.write_text(textwrap.dedent(MAKE))
    command = [sys.executable, str(script), str(path), str(store)]
    program = subprocess.Popen(
        command, cwd=repository, env={"PYTHONPATH": str(repository)}, stderr=subprocess.PIPE, text=True
    )
    children: list[str] = []
    try:
        peers.wait_until(
            lambda: len(list(store.glob("*.jsonl"))) >= 3 or program.poll() is not None,
            what="the run",
            limit_seconds=LIMIT_SECONDS,
        )
        if program.poll() is None:
            children = Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text().split()
    finally:
        program.kill()
        _, told = program.communicate()
    assert program.returncode in (0, -signal.SIGKILL), told
    peers.wait_until(
        lambda: not any(peers.is_running(pid) for pid in children), what="the run", limit_seconds=LIMIT_SECONDS
    )
    made = sorted(store.glob("*.jsonl"))
    return made if children and len(made) < SHELVES else []


@pytest.mark.drill(part="laboratory")
def test_a_killed_run_makes_only_the_shelves_that_are_missing(tmp_path: Path, repository: Path) -> None:
    path = films_file(tmp_path, count=SHELVES * 200)
    # A test that is kept waiting may come too late for its kill, and then tries again.
    store, made = next(
        (store, made)
        for store in (tmp_path / name for name in "abc")
        if (made := kill_in_the_middle(path, store, repository))
    )
    times = {shard: shard.stat().st_mtime_ns for shard in made}

    totals = make(data_of(path), store)

    # What had lines is kept; no worker had more than one shard in hand.
    assert totals == [SHELVES - len(made)] * (SHELVES - len(made))
    assert {shard: shard.stat().st_mtime_ns for shard in made} == times
    # Two workers and a kill leave the same bytes as one worker.
    make(data_of(path), tmp_path / "whole")
    ours, whole = (
        {path.name: path.read_bytes() for path in folder.iterdir()} for folder in (store, tmp_path / "whole")
    )
    assert ours == whole
    assert not list(store.glob("*.part"))


@pytest.mark.drill(part="laboratory")
def test_films_are_read_back_in_their_order(tmp_path: Path) -> None:
    path = films_file(tmp_path, count=450)
    make(data_of(path, side=32), tmp_path / "store")

    film_store = open_film_store(data_of(path, side=32), tmp_path / "store", CATALOG)

    assert len(film_store) == 450
    for number in (0, 199, 200, 449):
        pixels, truth = film_store.film(number)
        assert pixels.shape == (32, 32) and pixels.std() > 10
        assert truth.said[0].text == f"Film {number}."
    assert film_store.texts() == {f"Film {number}." for number in range(450)}


@pytest.mark.drill(part="laboratory")
def test_a_stop_ends_after_the_shelf_in_hand(tmp_path: Path) -> None:
    path = films_file(tmp_path, count=500)
    store = tmp_path / "store"
    finished: list[int] = []

    def report(stage: str, done: int = 0, total: int = 0) -> None:
        finished.extend([done] if total else [])

    assert not stock(data_of(path), store, renderers=1, report=report, stopped=lambda: bool(finished))
    assert finished == [1]
    assert make(data_of(path), store) == [2, 2]
    assert stock(data_of(path), store, renderers=1, report=quiet)


def test_smaller_sources_repeat_to_the_size_of_the_largest(tmp_path: Path) -> None:
    many, few = (films_file(tmp_path / name, count=count) for name, count in (("many", 25), ("few", 10)))
    sources = FilmSource(file=str(many), balanced=True), FilmSource(file=str(few), repeat=3, balanced=True)
    data = Data(films=sources, side=16)
    make(data, tmp_path / "store")

    # As the published sampler rounds it: 3 x 25 / 10 is 7.5, and halves go to the even number.
    assert len(open_film_store(data, tmp_path / "store", CATALOG)) == 25 + 8 * 10


def test_phantoms_are_made_anew_by_another_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = Data(phantoms=1, side=32)
    assert (make(data, tmp_path), make(data, tmp_path)) == ([1], [])

    monkeypatch.setattr(phantoms, "__path__", [str(tmp_path)])

    assert make(data, tmp_path) == [1]


def test_two_runs_do_not_make_the_same_films_at_once_and_a_damaged_shelf_is_told(tmp_path: Path) -> None:
    path = films_file(tmp_path, count=3)
    store = tmp_path / "store"
    make(data_of(path), store)
    [lines], [pixels] = store.glob("*.jsonl"), store.glob("*.npy")

    with (store / "lock").open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(ModelError, match="another run makes films in"):
            make(data_of(path, side=32), store)
    assert make(data_of(path, side=32), store) == [1]

    text = lines.read_text()
    lines.write_text(text.partition("\n")[0] + "\n")
    with pytest.raises(ModelError, match="do not belong together; delete both"):
        open_film_store(data_of(path), store, CATALOG)
    lines.write_text(text)
    pixels.write_bytes(pixels.read_bytes()[:1000])
    with pytest.raises(ModelError, match=r"cannot be read .*; delete"):
        open_film_store(data_of(path), store, CATALOG)
