"""A model with the thresholds of an import speaks: each sentence that may leave is marked, each other has a reason."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from models.checkpoint.importer import PUBLISHED_DECISIONS
from models.contract import FindingState, PromptKind, SentenceRule
from models.manifest import read_manifest, write_manifest
from node.commands import demo
from node.domain import Film
from node.outputs import wording
from node.read import open_film, prompts
from node.read.film import film_of
from node.read.manifest import not_calibrated
from node.read.model import Reading, open_reader

PROMPTS = prompts.load("chexpert14")


@pytest.fixture(scope="module")
def uncalibrated(tmp_path_factory: pytest.TempPathFactory, phantom_model: Path) -> Path:
    """The demonstration model with the decisions that an import writes."""
    directory = tmp_path_factory.mktemp("published") / "model"
    shutil.copytree(phantom_model, directory)
    write_manifest(directory, replace(read_manifest(phantom_model), decisions=PUBLISHED_DECISIONS))
    return directory


def read(directory: Path, path: Path, *, sentences: SentenceRule) -> tuple[Reading, Film]:
    reader = open_reader(directory, prompts=PROMPTS, engine="onnx", threads=1, sentences=sentences)
    image = open_film.load(path, reader)
    reading = reader.read(image, PROMPTS)
    return reading, film_of(reading, image, PROMPTS, source="1.2.3", model=reader.identity)


@pytest.mark.parametrize("path", demo.FILMS, ids=lambda path: path.stem)
def test_every_sentence_leaves_marked_or_has_a_reason(uncalibrated: Path, path: Path) -> None:
    raw, _ = read(uncalibrated, path, sentences="raw")
    said, film = read(uncalibrated, path, sentences="checked")

    left = {sentence.text.removeprefix("Possible, please review: "): sentence.by for sentence in said.sentences}
    reasons = {withheld.text: withheld.reason for withheld in said.withheld}
    assert set(left.values()) <= {"network_uncalibrated"}
    assert {sentence.text for sentence in raw.sentences} == {*left, *reasons}
    whole_film = {prompt.key for prompt in PROMPTS.prompts if prompt.kind is PromptKind.NO_FINDING}
    assert {withheld.prompt for withheld in said.withheld if withheld.reason == "not_measured"} <= whole_film
    assert all("no" in text.lower().split() for text, reason in reasons.items() if reason == "denial")
    assert film.in_state(FindingState.PRESENT) == film.in_state(FindingState.INDETERMINATE) == ()


def test_what_is_not_calibrated_is_named_to_readers_and_on_the_console(uncalibrated: Path, phantom_model: Path) -> None:
    _, film = read(uncalibrated, demo.FILMS[0], sentences="checked")
    text, shipped = not_calibrated(uncalibrated, PROMPTS) or "", not_calibrated(phantom_model, PROMPTS) or ""

    assert "its threshold was not measured on such films: pneumonia and opacity." in wording.limits(film)
    assert {sentence.by for sentence in film.sentences} == {"network_uncalibrated"}
    assert "edema" in text
    assert f"python -m models.calibrate --model {uncalibrated} FILMS" in text
    assert "edema" not in shipped
    assert "cardiomegaly" in shipped, "its threshold was measured on phantoms alone"
    assert "fracture" not in shipped, "it is left out"
