"""Where a network locates the spine: by it boxes have sides, also where the patient stands beside the film's middle."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from models.engines.opening import open_engine
from models.lab.evaluation.cases import shown
from models.lab.phantoms import phantom
from models.reading.reader import ChexReader, open_reader
from models.reading.tokenizers import PromptTokenizer, SentenceTokenizer

SEED = 2_000_000


@pytest.fixture(scope="module")
def reader(phantom_model: Path) -> ChexReader:
    return open_reader(phantom_model, engine="onnx", threads=1)


@pytest.mark.parametrize("seed", [SEED, SEED + 1, SEED + 2])
@pytest.mark.parametrize("shift", [-0.1, 0.0, 0.1])
def test_the_middle_is_where_the_spine_lies(reader: ChexReader, seed: int, shift: float) -> None:
    film = phantom(seed, side=reader.manifest.input.size)
    gray = shown(film.pixels, reader.manifest.gray)
    columns = round(shift * gray.shape[1])
    padded = np.pad(gray, ((0, 0), (max(columns, 0), max(-columns, 0))), mode="edge")
    moved = padded[:, : gray.shape[1]] if columns >= 0 else padded[:, -columns:]

    middle = reader.middle(reader.look(np.ascontiguousarray(moved)))

    assert middle == pytest.approx(float(film.regions["spine"][0]) + shift, abs=0.05)


def test_a_spine_below_the_threshold_gives_no_middle(reader: ChexReader, phantom_model: Path) -> None:
    gray = np.zeros((224, 224), dtype=np.float32)
    decisions = replace(reader.manifest.decisions, box_threshold=1.0)
    certain = ChexReader(
        replace(reader.manifest, decisions=decisions),
        open_engine(phantom_model, engine="onnx", threads=1),
        PromptTokenizer(phantom_model / "vocab"),
        SentenceTokenizer(phantom_model / "vocab"),
    )

    assert certain.middle(certain.look(gray)) is None
