"""Whole runs: stopped, killed, gone on, in parts, in several processes, and finished as a model directory."""

from __future__ import annotations

import csv
import json
import multiprocessing
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from threading import Event
from typing import cast
from unittest.mock import patch

import cv2
import numpy as np
import pytest
import torch
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from models.checkpoint.files import verify
from models.checkpoint.weights import load_network
from models.contract import PromptKind, ReaderPrompt
from models.errors import ModelError
from models.join import main as join
from models.lab.phantoms.picture import phantom
from models.lab.training import loop
from models.lab.training.batch import Batch, StageFilms, load
from models.lab.training.catalog import catalog_of
from models.lab.training.loop import load_checkpoint, train, train_by
from models.lab.training.model_writer import write_model
from models.lab.training.runfile import FilmSource, Run, read_run
from models.lab.training.stages import Augmentation, Drawing, Noise, Objective
from models.lab.training.store import open_film_store, stock
from models.lab.training.trained_model import build_model
from models.manifest import read_manifest
from models.reading.reader import open_reader
from tests.support import peers
from tests.support.training import PUBLISHED_NAMES, STAGES, stocked, write_run

pytestmark = [pytest.mark.drill(part="laboratory"), pytest.mark.usefixtures("one_thread")]

LIMIT_SECONDS = 200
CATALOG = catalog_of(["chexpert"])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stocked(tmp_path_factory.mktemp("films") / "films")


def start(path: Path, repository: Path, *, processes: int = 1) -> subprocess.Popen[str]:
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command = [sys.executable, *(torchrun if processes > 1 else []), "-m", "models.train", str(path)]
    return subprocess.Popen(command, cwd=repository, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def rows(folder: Path) -> list[dict[str, str]]:
    path = folder / "log.csv"
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return [row for row in csv.DictReader(file) if None not in row.values()]


def losses(folder: Path) -> list[dict[str, float]]:
    told = ("seconds", "pictures_per_second", "stage")
    return [{key: float(value) for key, value in row.items() if value and key not in told} for row in rows(folder)]


def kill_in_the_middle(path: Path, repository: Path, *, after: int) -> bool:
    """Kill a run once so many rows are written; False where it was over before."""
    program = start(path, repository)
    try:
        peers.wait_until(
            lambda: len(rows(path.with_suffix(""))) >= after or program.poll() is not None,
            what="the run",
            limit_seconds=LIMIT_SECONDS,
        )
    finally:
        program.kill()
        _, told = program.communicate()
    assert program.returncode in (0, -signal.SIGKILL), told
    return program.returncode != 0


def test_a_killed_run_goes_on_as_if_it_had_not_been(tmp_path: Path, store: Path, repository: Path) -> None:
    def run_file(name: str) -> Path:
        return write_run(tmp_path / f"{name}.toml", store=store, stages=("contrast", "joint"), steps=12, checkpoint=4)

    (tmp_path / "whole").mkdir()
    assert train(read_run(run_file("whole"))) is not None
    # In either stage, somewhere between two checkpoints, or in the middle of one. A test that is kept waiting may come
    # too late for its kill, and then tries again.
    after = int(np.random.default_rng().integers(1, 16))
    killed = next(path for path in map(run_file, "abcde") if kill_in_the_middle(path, repository, after=after))
    written = len(rows(killed.with_suffix("")))

    assert train(read_run(killed)) is not None

    ours, theirs = losses(killed.with_suffix("")), losses(tmp_path / "whole")
    assert len(ours) == len(theirs) == 24
    for here, there in zip(ours, theirs, strict=True):
        assert here == pytest.approx(there, rel=1e-3), f"killed after {written} rows"


def test_a_continued_stage_does_not_start_its_boxes_again(tmp_path: Path, store: Path) -> None:
    def run_file(name: str) -> Run:
        (tmp_path / name).mkdir(exist_ok=True)
        return read_run(write_run(tmp_path / f"{name}.toml", store=store, stages=("joint",), steps=4, checkpoint=1))

    wishes = iter([False, True])
    assert train(run_file("stopped"), stopped=lambda: next(wishes)) is None

    continued, whole = train(run_file("stopped")), train(run_file("whole"))

    assert continued is not None and whole is not None
    ours, theirs = (model.network.detector.box_tokens for model in (continued, whole))
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)
    began = build_model(run_file("whole"), CATALOG, []).network.detector.box_tokens
    assert (theirs - began).abs().max() > 10 * 4 * 1e-3, "more than four steps can do: they were set"


def test_two_processes_stop_together_when_they_are_told_to(tmp_path: Path, store: Path, repository: Path) -> None:
    path = write_run(tmp_path / "run.toml", store=store, stages=("contrast",), processes=2, steps=1_000_000)

    program = start(path, repository, processes=2)
    try:
        peers.wait_until(
            lambda: len(rows(tmp_path / "run")) >= 1 or program.poll() is not None,
            what="the run",
            limit_seconds=LIMIT_SECONDS,
        )
        program.send_signal(signal.SIGTERM)
        _, told = program.communicate(timeout=LIMIT_SECONDS)
    finally:
        program.kill()

    assert program.returncode and "to continue from here" in told
    standing = load_checkpoint(tmp_path / "run", fingerprint=read_run(path).fingerprint)
    assert standing is not None and standing["progress"]["step"] == len(rows(tmp_path / "run"))
    assert not (tmp_path / "run" / "model").exists()


def test_two_processes_train_all_stages_to_a_model(tmp_path: Path, store: Path, repository: Path) -> None:
    path = write_run(tmp_path / "run.toml", store=store, processes=2, steps=1)
    with pytest.raises(ModelError, match="torchrun --standalone --nproc-per-node 2"):
        train_by(read_run(path), Event())

    program = start(path, repository, processes=2)
    try:
        out, told = program.communicate(timeout=LIMIT_SECONDS)
    finally:
        program.kill()

    assert program.returncode == 0, told
    assert [(row["stage"], row["step"]) for row in rows(tmp_path / "run")] == [(name, "1") for name in STAGES]
    model = tmp_path / "run" / "model"
    assert out.startswith(str(model)) and out.count("\n") == 1
    reader = open_reader(model, engine="torch", threads=1)
    prompt = ReaderPrompt(key="edema", kind=PromptKind.PATHOLOGY, phrases=("Edema",), negatives=("No edema",))
    film = phantom(3, side=64).pixels.astype(np.float32) / np.float32(255)
    reading = reader.report(reader.look(film), [prompt])
    assert reading.prompts[0].probability is not None and reading.prompts[0].boxes
    card = (model / "MODEL_CARD.md").read_text()
    assert "not calibrated" in card and "phantoms, seeds 0 to 11" in card and "| joint | 1 |" in card
    assert reader.manifest.decisions.temperature == pytest.approx(0.1, rel=0.1)


def test_weights_can_keep_a_share_of_those_of_the_start(tmp_path: Path, store: Path) -> None:
    directory = train_by(read_run(write_run(tmp_path / "first.toml", store=store, stages=("text",), steps=1)), Event())
    assert directory is not None
    path = write_run(tmp_path / "next.toml", store=store, stages=("joint",), start=directory)
    path.write_text(path.read_text().replace("learning_rate = 0.001", "learning_rate = 0.1"))
    run = replace(read_run(path), start_share=0.25)

    written = train_by(run, Event())

    assert written is not None
    kept = load_checkpoint(Path(run.output), fingerprint=run.fingerprint)
    assert kept is not None
    trained = kept["network"]
    begun, averaged = (load_network(place).state_dict() for place in (directory, written))
    for name, weight in averaged.items():
        torch.testing.assert_close(weight, 0.75 * trained[name] + 0.25 * begun[name], rtol=1e-3, atol=1e-5)
    assert not torch.equal(trained["detector.box.expand.weight"], begun["detector.box.expand.weight"])
    assert "- Weights: 0.25 of those of tiny 1, which" in (written / "MODEL_CARD.md").read_text()


def test_a_run_can_start_with_the_words_of_a_trained_model(tmp_path: Path, store: Path) -> None:
    first = read_run(write_run(tmp_path / "first.toml", store=store, stages=("text",), steps=1))
    directory = train_by(first, Event())
    assert directory is not None
    path = write_run(tmp_path / "next.toml", store=store, stages=("look",), start=directory)

    begun = build_model(read_run(path), CATALOG, ["Edema."])

    manifest, network = read_manifest(directory), load_network(directory)
    assert manifest.vocabulary and begun.vocabulary.learned == manifest.vocabulary
    assert begun.network.sizes == manifest.sizes
    assert all(torch.equal(weight, network.state_dict()[name]) for name, weight in begun.network.state_dict().items())
    with pytest.raises(ModelError, match="does not know these words of the run's films: gizzard;"):
        build_model(read_run(path), CATALOG, ["Edema of the gizzard."])


@pytest.fixture(scope="module")
def stage_films(store: Path) -> StageFilms:
    run = read_run(write_run(store.parent / "run.toml", store=store, stages=("joint",), steps=3))
    return StageFilms(run, number=0, catalog=CATALOG, film_store=open_film_store(run.data, run.store, CATALOG))


def plain(batch: Batch) -> object:
    """All that a batch holds, floats bit for bit."""
    arrays = {
        field.name: value.numpy()
        for field in fields(batch)
        if isinstance(value := getattr(batch, field.name), torch.Tensor)
    }
    asked = [[(question.text, question.boxes, question.is_placed) for question in film] for film in batch.asked]
    said = [[(sentence.text, sentence.boxes, sentence.regions) for sentence in film] for film in batch.said]
    return [(name, array.dtype.str, array.tobytes()) for name, array in arrays.items()], str(asked), str(said)


def test_loaders_give_the_batches_of_their_places_and_end_with_them(stage_films: StageFilms) -> None:
    before = set(multiprocessing.active_children())
    batches = load(stage_films, range(1, 4), loaders=2)

    loaders = set(multiprocessing.active_children()) - before
    assert len(loaders) >= 2
    assert all(plain(batch) == plain(stage_films[place]) for place, batch in enumerate(batches, 1))
    assert plain(stage_films[0]) != plain(stage_films[1])
    for loader in loaders:
        loader.join(timeout=LIMIT_SECONDS)
    assert not any(loader.is_alive() for loader in loaders)


DIFFERENT = 4
# Each is a mean over films, and compares a film with no other; neither draws anything once all classes are asked for.
LOSSES: Mapping[Objective, float] = {"patho-cls": 1.0, "presence": 2.0}


def run_of(folder: Path, *, batch: int, accumulation: int, processes: int) -> Run:
    """A run without noise, whose films all differ."""
    truths = [
        {"present": {name: (n + k) % 3 == 0 for k, name in enumerate(PUBLISHED_NAMES[:22])}} for n in range(DIFFERENT)
    ]
    for number in range(DIFFERENT):
        pixels = np.random.default_rng(number).integers(0, 255, (64, 64), dtype=np.uint8)
        cv2.imwrite(str(folder / f"{number}.png"), pixels)
    lines = [{"file": f"{n}.png", "patient": str(n), "truth": truth} for n, truth in enumerate(truths)]
    (folder / "films.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = read_run(write_run(folder / "run.toml", store=folder / "store", stages=("joint",), processes=processes))
    stage = replace(
        run.stages[0],
        steps=1,
        batch=batch,
        accumulation=accumulation,
        losses=LOSSES,
        clip=1e6,
        noise=Noise(),
        augmentation=Augmentation(),
        drawing=Drawing(classes=1e6, together=0.0),
        start_box_tokens=None,
    )
    films = (FilmSource(file=str(folder / "films.jsonl")),)
    data = replace(run.data, classes=("vindr",), phantoms=0, films=films, words="full", jpeg=False)
    return replace(run, data=data, stages=(stage,), output=str(folder / f"{batch}-{accumulation}-{processes}"))


def train_and_note(run: Run) -> None:
    """Train in a process that torchrun started; a file says whether it made the films."""

    def make(*given: object, **more: object) -> bool:
        is_made = stock(*given, **more)  # type: ignore[arg-type] # as they were given
        (run.store / f"made by {loop.rank()}").touch()
        return is_made

    with patch.object(loop, "stock", make):
        assert train_by(run, Event()) is not None


def gradients(run: Run) -> torch.Tensor:
    """All gradients of the only update: AdamW keeps a tenth of them."""
    processes = run.machine.processes
    if processes == 1:
        train_and_note(run)
    else:
        here = LaunchConfig(1, 1, processes, rdzv_backend="c10d", rdzv_endpoint="localhost:0", max_restarts=0)
        elastic_launch(here, train_and_note)(run)
    kept = load_checkpoint(Path(run.output), fingerprint=run.fingerprint)
    assert kept is not None
    states = cast("dict[int, dict[str, torch.Tensor]]", kept["optimizer"]["state"])
    return torch.cat([state["exp_avg"].flatten() * 10 for state in states.values()])


@pytest.mark.parametrize(
    ("batch", "accumulation", "processes"), [(2, 2, 1), (4, 1, 2)], ids=["one after another", "in two processes"]
)
def test_parts_of_a_batch_give_the_gradients_of_the_whole(
    tmp_path: Path, batch: int, accumulation: int, processes: int
) -> None:
    expected = gradients(run_of(tmp_path, batch=4, accumulation=1, processes=1))

    parts = run_of(tmp_path, batch=batch, accumulation=accumulation, processes=processes)
    parts = replace(parts, data=replace(parts.data, store=str(tmp_path / "store-of-parts")))
    found = gradients(parts)

    assert [path.name for path in parts.store.glob("made by *")] == ["made by 0"], "the first process alone"
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-6)
    half = gradients(run_of(tmp_path, batch=2, accumulation=1, processes=1))
    assert (half - expected).abs().max() > 0.01


def trained(path: Path, store: Path, *stages: str, start: Path | None = None) -> Path:
    """Train for a step; returns the model directory."""
    run = read_run(write_run(path, store=store, stages=stages, steps=1, start=start, words="full"))
    Path(run.output).mkdir()
    model = train(run)
    assert model is not None
    return write_model(run, model)


@pytest.fixture(scope="module")
def models(store: Path) -> tuple[Path, Path]:
    """One of stage 2, and one of texts only."""
    return (
        trained(store.parent / "stage_2.toml", store, "detect", "look"),
        trained(store.parent / "text.toml", store, "text"),
    )


def test_stage_3_goes_on_from_stage_2_and_text_only_training(
    tmp_path: Path, store: Path, models: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    joined = tmp_path / "joined"

    assert join([*map(str, models), str(joined), "--json"]) == 0

    document = json.loads(capsys.readouterr().out)
    manifest = read_manifest(joined)
    verify(joined, manifest)
    assert document["weights_sha256"] == manifest.files["weights.safetensors"]
    whole, regions, sentences = (load_network(path).state_dict() for path in (joined, *models))
    for name, weight in whole.items():
        assert torch.equal(weight, (sentences if name.startswith("generator.") else regions)[name]), name
    model = trained(tmp_path / "stage_3.toml", store, "tell", start=joined)
    after = load_network(model).state_dict()
    changed = {name.split(".")[0] for name, weight in after.items() if not torch.equal(weight, whole[name])}
    assert changed == {"post_decoder", "generator"}


def test_models_that_do_not_belong_together_and_a_directory_that_is_there_are_refused(
    tmp_path: Path, store: Path, models: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    stage_2, text = models
    other = trained(tmp_path / "other.toml", store, "contrast", "text")
    refusals = [
        (text, stage_2, tmp_path / "joined", "its post_decoder was not trained; name the model of stage 2 first"),
        (stage_2, other, tmp_path / "joined", "have different prompt encoders"),
        (stage_2, text, tmp_path, f"{tmp_path} exists already; name a new directory, or delete it first"),
    ]

    for first, second, out, complaint in refusals:
        assert join([str(first), str(second), str(out)]) == 2
        assert complaint in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "joined").exists()
