"""Decoding with fixed shapes says what the other decoding says, and does not stop the device for every token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from models.checkpoint.weights import load_network
from models.network.sentence_generator import SentenceGenerator
from models.network.static_decoding import CHECK_EVERY, ROWS, StaticWriter, Step
from models.reading.tokenizers import SENTENCE_END
from tests.drills.bench.plain_generator import PlainGenerator
from tests.models.test_sentence_generator import SIZES
from tests.models.test_sentence_generator import (
    generator as generator,  # its fixture: sentences that end at their own times
)

pytestmark = pytest.mark.drill(part="runtimes")


class Calls(TorchDispatchMode):  # type: ignore[no-untyped-call]  # PyTorch left it without types
    """Hears every operation, with the shapes of its tensors."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self.shapes: dict[str, list[tuple[int, ...]]] = {}

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        self.shapes.setdefault(str(func), []).extend(tuple(arg.shape) for arg in args if isinstance(arg, Tensor))
        return func(*args, **(kwargs or {}))


class Addresses(TorchDispatchMode):  # type: ignore[no-untyped-call]  # as above
    """Notes the address of every tensor that is changed in place."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self.written: set[int] = set()

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        if str(func).partition(".")[2].partition(".")[0].endswith("_") and isinstance(args[0], Tensor):
            self.written.add(args[0].data_ptr())
        return func(*args, **(kwargs or {}))


def drawn(count: int, dim: int = 16, *, seed: int = 11) -> Tensor:
    return 3 * torch.randn(count, dim, generator=torch.Generator().manual_seed(seed))


def write_static(generator: SentenceGenerator, features: Tensor, *, max_length: int) -> Tensor:
    return StaticWriter(generator, max_length=max_length).write(features)


@pytest.mark.parametrize("count", [0, 1, 2, 9, ROWS[-1] + 1])
@pytest.mark.parametrize("max_length", [1, 2, CHECK_EVERY, CHECK_EVERY + 1, 40])
def test_ids_are_those_of_the_other_decoding(generator: SentenceGenerator, count: int, max_length: int) -> None:
    features = drawn(count)

    assert torch.equal(
        write_static(generator, features, max_length=max_length), generator.write(features, max_length=max_length)
    )


def test_both_decodings_give_the_shipped_model_the_same_ids(phantom_model: Path) -> None:
    network = load_network(phantom_model)
    generator, features = network.generator, drawn(3, network.sizes.dim)

    with torch.no_grad():
        expected = generator.write(features, max_length=24)
    assert torch.equal(write_static(generator, features, max_length=24), expected)


def test_the_device_is_waited_for_once_in_a_few_tokens(generator: SentenceGenerator) -> None:
    features, last = drawn(9), 2  # the sum that trims the sentences, and the check that ends them
    with Calls() as calls:
        ids = write_static(generator, features, max_length=40)

    assert ids.shape[1] > CHECK_EVERY
    waits = len(calls.shapes.get("aten._local_scalar_dense.default", []))
    assert 1 <= waits <= ids.shape[1] / CHECK_EVERY + last


class Repeating:
    """Captures a step as a GPU does: runs it a few times, then repeats it, and every tensor must stay where it is."""

    def __init__(self) -> None:
        self.captured = 0
        self.repeated = 0

    def __call__(self, step: Step) -> Step:
        self.captured += 1
        for _ in range(3):
            step()

        def repeat() -> None:
            self.repeated += 1
            step()

        return repeat


def test_a_step_is_captured_once_for_each_number_of_rows(generator: SentenceGenerator) -> None:
    repeating = Repeating()
    writer = StaticWriter(generator, max_length=30, repeatable=repeating)

    for count in (3, 1, 8, 2, 33, 1):
        features = drawn(count, seed=count)
        assert torch.equal(writer.write(features), generator.write(features, max_length=30))

    assert repeating.captured == len(ROWS)


def test_every_tensor_of_a_step_keeps_its_address(generator: SentenceGenerator) -> None:
    steps: list[set[int]] = []

    def watched(step: Step) -> Step:
        def run() -> None:
            with Addresses() as addresses:
                step()
            steps.append(addresses.written)

        return run

    writer = StaticWriter(generator, max_length=30, repeatable=watched)
    writer.write(drawn(3))
    writer.write(drawn(8, seed=2))

    assert len(steps) > 20
    assert all(written == steps[0] for written in steps)
    assert len(steps[0]) == 2 * SIZES.layers + 4, "keys and values, place, ids, the current token and what is finished"


def test_an_earlier_sentence_leaves_nothing_behind(generator: SentenceGenerator) -> None:
    writer = StaticWriter(generator, max_length=30)
    writer.write(torch.full((8, 16), float("nan")))

    assert torch.equal(writer.write(drawn(8)), generator.write(drawn(8), max_length=30))


def with_own_tokens(generator: SentenceGenerator, own_tokens: tuple[int, ...]) -> SentenceGenerator:
    """Make a generator with the same weights but those of the tokens, of which the others share a row."""
    smaller = SentenceGenerator(replace(generator.sizes, own_tokens=own_tokens), dim=16).requires_grad_(False).eval()
    weights = generator.state_dict()
    smaller.load_state_dict({**weights, "tokens.weight": smaller.tokens.weight})
    for token in own_tokens:
        smaller.tokens.weight[smaller.tokens.rows_of(torch.tensor(token))] = weights["tokens.weight"][token]
    return smaller


def test_the_peer_writes_what_the_generator_writes(generator: SentenceGenerator) -> None:
    """GPT-2 of `transformers`, also with a small model's weights: it has fewer rows than token ids."""
    for written in (generator, with_own_tokens(generator, (*range(40), SENTENCE_END))):
        ids = written.write(drawn(3), max_length=30)

        assert ids.shape[1] < 30, "the sentences of this test must end"
        assert torch.equal(PlainGenerator(written).write(drawn(3), max_length=30), ids)
