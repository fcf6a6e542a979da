"""Decoding with fixed shapes says what the other decoding says, and does not stop the device for every token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from models.checkpoint.weights import load_network
from models.network.sentence_generator import SentenceGenerator
from models.network.static_decoding import CHECK_EVERY, write_static
from models.reading.tokenizers import SENTENCE_END
from tests.test_sentence_generator import SIZES
from tests.test_sentence_generator import generator as generator  # its fixture: sentences that end at their own times


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


def drawn(count: int, dim: int = 16, *, seed: int = 11) -> Tensor:
    return 3 * torch.randn(count, dim, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("count", [0, 1, 9])
@pytest.mark.parametrize("max_length", [1, 2, CHECK_EVERY, CHECK_EVERY + 1, 40])
def test_ids_are_those_of_the_other_decoding(generator: SentenceGenerator, count: int, max_length: int) -> None:
    features = drawn(count)

    assert torch.equal(
        write_static(generator, features, max_length=max_length), generator.write(features, max_length=max_length)
    )


def test_sentences_of_different_lengths_are_among_them(generator: SentenceGenerator) -> None:
    ids = write_static(generator, drawn(9), max_length=30)

    lengths = (ids != SENTENCE_END).sum(dim=1)
    assert len(set(lengths.tolist())) > 1
    assert 0 < int(lengths.max()) < 28, "no sentence may end by its limit"


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


def test_keys_and_values_keep_their_shape(generator: SentenceGenerator) -> None:
    with Calls() as calls:
        write_static(generator, drawn(4), max_length=30)

    (written,) = {shape for shape in calls.shapes["aten.index_copy_.default"] if len(shape) == 4 and shape[2] > 1}
    assert written == (4, SIZES.heads, SIZES.prefix_length + 30, SIZES.width // SIZES.heads)


@pytest.mark.parametrize("max_length", [0, 41])
def test_a_length_the_network_has_no_positions_for_is_refused(generator: SentenceGenerator, max_length: int) -> None:
    with pytest.raises(ValueError, match=r"1\.\.40"):
        write_static(generator, drawn(1), max_length=max_length)
