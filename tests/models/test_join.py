"""The way to stage 3 in small: stage 2 and the text-only pre-training, joined, and trained on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from models.checkpoint.files import verify
from models.checkpoint.weights import load_network
from models.join import main
from models.lab.training.finish import write_model
from models.lab.training.loop import train
from models.lab.training.runfile import read_run
from models.manifest import read_manifest
from tests.support.training import stocked, write_run

pytestmark = [pytest.mark.drill(part="laboratory"), pytest.mark.usefixtures("one_thread")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stages")


@pytest.fixture(scope="module")
def store(folder: Path) -> Path:
    return stocked(folder / "films")


def trained(path: Path, store: Path, *stages: str, start: Path | None = None) -> Path:
    """Train for a step; returns the model directory."""
    run = read_run(write_run(path, store=store, stages=stages, steps=1, start=start, words="full"))
    Path(run.output).mkdir()
    model = train(run)
    assert model is not None
    return write_model(run, model)


@pytest.fixture(scope="module")
def stage_2(folder: Path, store: Path) -> Path:
    return trained(folder / "stage_2.toml", store, "detect", "look")


@pytest.fixture(scope="module")
def text(folder: Path, store: Path) -> Path:
    return trained(folder / "text.toml", store, "text")


def test_stage_3_goes_on_from_stage_2_and_text_only_training(
    folder: Path, store: Path, stage_2: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    joined = folder / "joined"

    assert main([str(stage_2), str(text), str(joined), "--json"]) == 0

    document = json.loads(capsys.readouterr().out)
    manifest = read_manifest(joined)
    verify(joined, manifest)
    assert document["weights_sha256"] == manifest.files["weights.safetensors"]
    whole, regions, sentences = (load_network(path).state_dict() for path in (joined, stage_2, text))
    for name, weight in whole.items():
        assert torch.equal(weight, (sentences if name.startswith("generator.") else regions)[name]), name
    model = trained(folder / "stage_3.toml", store, "tell", start=joined)
    after = load_network(model).state_dict()
    changed = {name.split(".")[0] for name, weight in after.items() if not torch.equal(weight, whole[name])}
    assert changed == {"post_decoder", "generator"}


def test_models_that_were_exchanged_are_refused(
    tmp_path: Path, stage_2: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(text), str(stage_2), str(tmp_path / "joined")]) == 2

    told = capsys.readouterr().err.splitlines()[-1]
    assert "its post_decoder was not trained; name the model of stage 2 first" in told
    assert not (tmp_path / "joined").exists()


def test_models_with_different_prompt_encoders_are_refused(
    tmp_path: Path, store: Path, stage_2: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = trained(tmp_path / "other.toml", store, "contrast", "text")

    assert main([str(stage_2), str(other), str(tmp_path / "joined")]) == 2

    assert "have different prompt encoders" in capsys.readouterr().err.splitlines()[-1]


def test_a_directory_that_is_there_is_left_alone(
    tmp_path: Path, stage_2: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(stage_2), str(text), str(tmp_path)]) == 2

    assert capsys.readouterr().err == f"error: {tmp_path} exists already; name a new directory, or delete it first\n"
