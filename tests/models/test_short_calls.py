"""A large network's calls come in parts of their own turns, and give what one call gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

from models.checkpoint.weights import load_network
from models.engines import Engine
from models.engines.devices import Cpu
from models.engines.staged_engine import StagedEngine
from models.engines.torch_engine import most_at_once, run_by
from models.engines.turns import SHORT, UNLIMITED, Most, Turns, run_in_parts

T = TypeVar("T")


class Counted:
    """Counts the turns."""

    def __init__(self) -> None:
        self.turns = 0

    def call(self, function: Callable[[], T]) -> T:
        self.turns += 1
        return function()


def test_a_long_call_is_made_in_parts_that_keep_their_order() -> None:
    calls, inputs = Counted(), [np.arange(10.0).reshape(5, 2), np.arange(5.0)]

    outputs = run_in_parts(calls, lambda part: [part[0].sum(axis=1) + part[1]], "find", inputs, most={"find": 2})

    assert calls.turns == 3
    assert outputs[0].tolist() == [1, 6, 11, 16, 21]


@pytest.mark.parametrize(("count", "most"), [(5, UNLIMITED), (2, {"find": 2}), (0, {"find": 2})])
def test_a_short_call_is_made_at_once(count: int, most: Most) -> None:
    calls = Counted()

    (outputs,) = run_in_parts(calls, list, "find", [np.zeros((count, 3))], most=most)

    assert calls.turns == 1
    assert outputs.shape == (count, 3)


def test_an_engine_in_parts_computes_what_it_computes_at_once(phantom_model: Path) -> None:
    whole, parted = (_engine(phantom_model, most) for most in (UNLIMITED, SHORT))
    drawn = np.random.default_rng(5)
    pixels = drawn.normal(size=(3, 224, 224)).astype(np.float32)
    tokens = drawn.integers(1, 400, size=(5, 77))

    patches, prompts = whole.encode_image(pixels), whole.encode_prompts(tokens)
    queries = np.repeat(prompts[np.newaxis], 3, axis=0)

    np.testing.assert_allclose(parted.encode_image(pixels).features, patches.features, atol=2e-5)
    np.testing.assert_allclose(parted.encode_prompts(tokens), prompts, atol=2e-5)
    found, expected = parted.find(patches, queries), whole.find(patches, queries)
    np.testing.assert_allclose(found.boxes, expected.boxes, atol=2e-5)
    np.testing.assert_allclose(found.features, expected.features, atol=2e-4)


def test_only_a_large_network_is_computed_in_parts(phantom_model: Path) -> None:
    assert most_at_once(load_network(phantom_model)) is UNLIMITED


def _engine(directory: Path, most: Most) -> Engine:
    run = run_by(load_network(directory), Cpu())
    return StagedEngine("torch", run=run, write=lambda features: features.astype(np.int64), calls=Turns(), most=most)
