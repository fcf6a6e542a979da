"""The command that makes untrained models, and what a small one shows on the demonstration film."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.checkpoint.files import file_sha256
from models.contract import FilmReading, FindingState, PromptKind
from models.manifest import WEIGHTS, read_manifest
from models.random_weights import DEFAULT_SEED, main
from models.reading.reader import ChexReader, open_reader
from node.read import decoding, prompts


@pytest.fixture(scope="module")
def reader(untrained_weights: Path) -> ChexReader:
    return open_reader(untrained_weights, engine="torch", trusted="any")


@pytest.fixture(scope="module")
def reading(reader: ChexReader, chest_film: Path) -> FilmReading:
    """The demonstration film, read as the node reads it."""
    film = decoding.load(chest_film, gray=reader.manifest.gray, square=reader.square)
    return reader.report(reader.look(film.gray), prompts.load("chexpert14").prompts)


def test_equal_seeds_give_equal_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "other"):
        assert main(["--size", "small", str(tmp_path / name)]) == 0
        assert f"seed {DEFAULT_SEED}" in capsys.readouterr().out

    manifest = read_manifest(tmp_path / "one")
    assert read_manifest(tmp_path / "other") == manifest
    # Of numpy's raw streams, the same everywhere and for ever.
    assert manifest.files[WEIGHTS] == "a68d59ebdff033fddbe6f2cd472b60f5481ca246eb5c2db6717ebba78239848e"
    assert all(file_sha256(tmp_path / "one" / name) == sha256 for name, sha256 in manifest.files.items())


def test_the_demonstration_film_shows_findings_of_every_state(reader: ChexReader, reading: FilmReading) -> None:
    findings = [prompt for prompt in reading.prompts if prompt.kind is PromptKind.PATHOLOGY]
    states = [finding.state for finding in findings]
    decisions = reader.manifest.decisions

    assert 3 <= states.count(FindingState.PRESENT) <= 6
    assert states.count(FindingState.INDETERMINATE) >= 1
    assert states.count(FindingState.ABSENT) >= 1
    for finding in findings:
        assert finding.probability is not None
        threshold = decisions.threshold(finding.key)
        # Far from what another processor's rounding could change.
        assert abs(finding.probability - threshold) > 5e-3
        assert abs(finding.probability - threshold + decisions.review_band) > 5e-3
