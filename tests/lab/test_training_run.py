"""Whole runs: stopped, killed, gone on, and finished as a model directory that a reader opens."""

from __future__ import annotations

import csv
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event

import numpy as np
import pytest
import torch

from models.checkpoint.weights import load_network
from models.contract import PromptKind, ReaderPrompt
from models.errors import ModelError
from models.lab.phantoms.picture import phantom
from models.lab.training.catalog import catalog_of
from models.lab.training.loop import CHECKPOINT, load_checkpoint, train, train_by
from models.lab.training.runfile import Run, read_run
from models.lab.training.trained_model import build_model
from models.manifest import read_manifest
from models.reading.reader import open_reader
from tests.support.training import STAGES, stocked, write_run

pytestmark = [pytest.mark.drill(part="laboratory"), pytest.mark.usefixtures("one_thread")]

LIMIT_SECONDS = 200


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


def wait_for(event: Callable[[], bool]) -> None:
    limit = time.monotonic() + LIMIT_SECONDS
    while not event():
        assert time.monotonic() < limit
        time.sleep(0.02)


def losses(folder: Path) -> list[dict[str, float]]:
    told = ("seconds", "pictures_per_second", "stage")
    return [{key: float(value) for key, value in row.items() if value and key not in told} for row in rows(folder)]


def kill_in_the_middle(path: Path, repository: Path, *, after: int) -> bool:
    """Kill a run once so many rows are written; False where it was over before."""
    program = start(path, repository)
    try:
        wait_for(lambda: len(rows(path.with_suffix(""))) >= after or program.poll() is not None)
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

    assert continued is not None
    assert whole is not None
    ours, theirs = (model.network.detector.box_tokens for model in (continued, whole))
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)
    began = build_model(run_file("whole"), catalog_of(["chexpert"]), []).network.detector.box_tokens
    assert (theirs - began).abs().max() > 10 * 4 * 1e-3, "more than four steps can do: they were set"


def test_two_processes_stop_together_when_they_are_told_to(tmp_path: Path, store: Path, repository: Path) -> None:
    path = write_run(tmp_path / "run.toml", store=store, stages=("contrast",), processes=2, steps=1_000_000)

    program = start(path, repository, processes=2)
    try:
        wait_for(lambda: len(rows(tmp_path / "run")) >= 1 or program.poll() is not None)
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


def test_a_run_can_start_with_the_words_of_a_trained_model(tmp_path: Path, store: Path) -> None:
    first = read_run(write_run(tmp_path / "first.toml", store=store, stages=("text",), steps=1))
    directory = train_by(first, Event())
    assert directory is not None
    path = write_run(tmp_path / "next.toml", store=store, stages=("look",), start=directory, words="start")

    begun = build_model(read_run(path), catalog_of(["chexpert"]), ["Edema."])

    manifest, network = read_manifest(directory), load_network(directory)
    assert manifest.vocabulary and begun.vocabulary.learned == manifest.vocabulary
    assert begun.network.sizes == manifest.sizes
    assert all(torch.equal(weight, network.state_dict()[name]) for name, weight in begun.network.state_dict().items())
    with pytest.raises(ModelError, match="does not know these words of the run's films: gizzard;"):
        build_model(read_run(path), catalog_of(["chexpert"]), ["Edema of the gizzard."])


def test_weights_can_keep_a_share_of_those_of_the_start(tmp_path: Path, store: Path) -> None:
    directory = train_by(read_run(write_run(tmp_path / "first.toml", store=store, stages=("text",), steps=1)), Event())
    assert directory is not None
    path = write_run(tmp_path / "next.toml", store=store, stages=("joint",), rate=0.1, start=directory, words="start")
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


def test_a_finished_model_is_left_alone(tmp_path: Path, store: Path, repository: Path) -> None:
    path = write_run(tmp_path / "run.toml", store=store)
    (tmp_path / "run" / "model").mkdir(parents=True)

    program = start(path, repository)
    _, told = program.communicate(timeout=LIMIT_SECONDS)

    assert program.returncode == 2 and "exists already" in told


def test_a_checkpoint_of_other_settings_is_refused(tmp_path: Path, store: Path) -> None:
    run = read_run(write_run(tmp_path / "run.toml", store=store, stages=("contrast",), steps=1))
    (tmp_path / "run").mkdir()
    assert train(run) is not None

    changed = read_run(write_run(tmp_path / "run.toml", store=store, stages=("contrast",), steps=1, rate=2e-3))

    with pytest.raises(ModelError, match="other settings"):
        train(changed)


def test_a_damaged_checkpoint_is_told(tmp_path: Path) -> None:
    (tmp_path / CHECKPOINT).write_bytes(b"PK no")

    with pytest.raises(ModelError, match="delete it to start"):
        load_checkpoint(tmp_path, fingerprint="a")
