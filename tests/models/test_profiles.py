"""Engines are built for what the reader asks, and what is more than that goes through in parts or is refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from export.to_onnx import load_graph
from models.contract import PromptKind, ReaderPrompt
from models.engines import FloatArray
from models.engines.proof import FLOAT16_STAGES, graph_path
from models.engines.staged_engine import RANGES, Inputs, StagedEngine, in_parts
from models.errors import ModelError
from models.manifest import read_manifest
from models.reading.reader import ChexReader
from models.reading.tokenizers import PromptTokenizer, SentenceTokenizer
from node.read import prompts


class Doubling:
    """A runtime that doubles its first input, and remembers how much it was given at once."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def __call__(self, stage: str, inputs: Inputs) -> Sequence[FloatArray]:
        first = np.asarray(next(iter(inputs.values())), dtype=np.float32)
        self.counts.append(len(first))
        return [2 * first, first]


def test_every_free_axis_of_the_graphs_has_a_range(phantom_model: Path) -> None:
    axes = {
        size.dim_param
        for stage in FLOAT16_STAGES
        for value in load_graph(graph_path(phantom_model, stage)).graph.input
        for size in value.type.tensor_type.shape.dim
        if size.dim_param
    }

    assert axes == set(RANGES)


def test_ranges_hold_what_the_reader_asks() -> None:
    chexpert = prompts.load("chexpert14").prompts

    assert all(1 == span.least <= span.usual <= span.most for span in RANGES.values())
    assert RANGES["prompt"].usual == len(chexpert)
    assert RANGES["prompt"].most >= 60
    assert RANGES["film"].usual == 1


@given(count=st.integers(1, 200))
def test_parts_are_joined_in_their_order(count: int) -> None:
    run = Doubling()
    given = np.arange(2 * count, dtype=np.float32).reshape(count, 2)

    doubled, first = in_parts(run)("encode_image", {"x": given})

    most = RANGES["film"].most
    assert np.array_equal(first, given) and np.array_equal(doubled, 2 * given)
    assert max(run.counts) <= most
    assert len(run.counts) == -(-count // most)


@pytest.mark.parametrize(("stage", "axis"), [("find", "prompt"), ("describe", "box")])
def test_more_prompts_than_an_engine_takes_are_refused(stage: str, axis: str) -> None:
    most = RANGES[axis].most
    run = in_parts(Doubling())

    def asked(count: int) -> Inputs:
        inputs = {name: np.zeros((9, count, 3), np.float32) for name in ("boxes", "prompts", "prompted")}
        return {"patches": np.zeros((9, 2), np.float32), **inputs}

    run(stage, asked(most))
    with pytest.raises(ModelError, match=f"{most + 1} {axis} inputs in one call"):
        run(stage, asked(most + 1))


def test_a_prompt_set_too_large_for_the_engine_is_refused_early(phantom_model: Path) -> None:
    vocabularies = phantom_model / "vocab"
    reader = ChexReader(
        read_manifest(phantom_model),
        StagedEngine("tensorrt", run=Doubling(), write=lambda features: features.astype(np.int64)),
        PromptTokenizer(vocabularies),
        SentenceTokenizer(vocabularies),
    )
    asked = prompts.load("chexpert14").prompts
    more = [ReaderPrompt(key=f"zone_{n}", kind=PromptKind.REGION, phrases=("zone",), negatives=()) for n in range(36)]

    reader.check([*asked, *more[:-1]])
    with pytest.raises(ModelError, match="65 prompts are asked, but engine tensorrt takes 64; use fewer prompts"):
        reader.check([*asked, *more])
