"""Decoding with prepacked weights generates what the other decoding generates, with less work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from models.checkpoint.weights import load_network
from models.engines import ENGINES
from models.engines.opening import open_first
from models.errors import ModelError
from models.manifest import GeneratorSizes
from models.network.attention import Mlp
from models.network.packed_decoding import PackedWriter
from models.network.products import LEAST_ROWS, Form, int8_fault, product
from models.network.sentence_generator import SentenceGenerator
from models.reading.tokenizers import SENTENCE_END
from tests.models.test_sentence_generator import SIZES
from tests.models.test_sentence_generator import (
    generator as generator,  # its fixture: sentences that end at their own times
)

FORMS: tuple[Form, ...] = ("float32", "int8")


def test_each_weight_of_the_prefixes_is_given_back_once(generator: SentenceGenerator) -> None:
    packed: list[Tensor] = []
    assert isinstance(generator.prefix, Mlp)
    weight = generator.prefix.contract.weight
    place = weight.untyped_storage().data_ptr()

    PackedWriter(generator, max_length=6, release=packed.append)

    pieces = [piece for piece in packed if piece.untyped_storage().data_ptr() == place]
    assert sum(piece.numel() for piece in pieces) == weight.numel()
    assert len({piece.data_ptr() for piece in pieces}) == len(pieces) == generator.sizes.layers


class Rows(TorchDispatchMode):  # type: ignore[no-untyped-call]  # PyTorch left it without types
    """Notes the rows of prepacked products, the operations that join tensors, and how much is gathered at once."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self.rows: list[int] = []
        self.joins: list[str] = []
        self.gathered: list[int] = []

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        name = str(func)
        if name.startswith("mkldnn._linear_pointwise") and isinstance(args[0], Tensor):
            self.rows.append(len(args[0]))
        if name.startswith(("aten.cat", "aten.stack", "aten.constant_pad")):
            self.joins.append(name)
        result = func(*args, **(kwargs or {}))
        if name.startswith("aten.index.") and isinstance(result, Tensor):
            self.gathered.append(result.numel())
        return result


def drawn(count: int, dim: int = 16, *, seed: int = 11) -> Tensor:
    return 3 * torch.randn(count, dim, generator=torch.Generator().manual_seed(seed))


def writer_of(generator: SentenceGenerator, *, form: Form = "float32", max_length: int = 30) -> PackedWriter:
    return PackedWriter(generator, max_length=max_length, form=form)


@pytest.mark.parametrize("count", [1, 2, 9, 33])
@pytest.mark.parametrize("max_length", [1, 2, 8, 40])
def test_packed_ids_are_those_of_the_generator(generator: SentenceGenerator, count: int, max_length: int) -> None:
    features = drawn(count)

    ids = writer_of(generator, max_length=max_length).write(features)

    assert torch.equal(ids, generator.write(features, max_length=max_length))


@pytest.mark.parametrize(
    "sizes", [replace(SIZES, prefix_hidden=0), replace(SIZES, prefix_shared=True), replace(SIZES, prefix_length=1)]
)
def test_another_prefix_writes_the_same_in_both_decodings(sizes: GeneratorSizes) -> None:
    generator = SentenceGenerator(sizes, dim=16).eval().requires_grad_(False)
    features = torch.randn(3, 16)

    prefixes = generator.prefix_key_values(features)

    assert prefixes.shape == (SIZES.layers, 2, 3, SIZES.heads, generator.sizes.prefix_length, 8)
    assert bool(torch.equal(prefixes[0], prefixes[1])) == generator.sizes.prefix_shared
    packed = PackedWriter(generator, max_length=9).write(features)
    assert packed.tolist() == generator.write(features, max_length=9).tolist()


@pytest.mark.parametrize("form", FORMS)
def test_no_feature_is_no_sentence_in_either_form(generator: SentenceGenerator, form: Form) -> None:
    assert len(writer_of(generator, form=form_or_skip(form)).write(drawn(0))) == 0


@pytest.mark.parametrize("form", FORMS)
def test_a_sentence_alone_and_in_company_is_the_same(generator: SentenceGenerator, form: Form) -> None:
    features, writer = drawn(32), writer_of(generator, form=form_or_skip(form))

    together = writer.write(features)

    lengths = {int((ids != SENTENCE_END).sum()) for ids in together}
    assert len(lengths) > 1, "the sentences of this test must end at different times"
    for feature, expected in zip(features, together, strict=True):
        alone = writer.write(feature.unsqueeze(0))[0]
        assert alone.tolist() == expected[: len(alone)].tolist()
        assert (expected[len(alone) :] == SENTENCE_END).all()


def test_equal_features_are_computed_once(generator: SentenceGenerator) -> None:
    features, writer = drawn(3), writer_of(generator)
    repeated = features[[0, 1, 0, 2, 1, 0]]

    with Rows() as seen:
        ids = writer.write(repeated)

    assert seen.rows[0] == 3
    assert torch.equal(ids, writer.write(features)[[0, 1, 0, 2, 1, 0]])


def test_a_finished_sentence_leaves_the_batch(generator: SentenceGenerator) -> None:
    features, writer = drawn(9), writer_of(generator)

    with Rows() as seen:
        ids = writer.write(features)

    assert seen.rows == sorted(seen.rows, reverse=True) and seen.rows[-1] < 9
    products_a_step = 4 * generator.sizes.layers + 1
    multiplied = [max(LEAST_ROWS, rows) for rows in rows_of_steps(ids)]
    assert seen.rows[1 + generator.sizes.layers :: products_a_step] == multiplied


def rows_of_steps(ids: Tensor) -> list[int]:
    """How many sentences go on at each step."""
    return [int((ids[:, :place] == SENTENCE_END).sum(dim=1).le(1).sum()) for place in range(1, ids.shape[1])]


def test_a_token_is_generated_in_as_many_parts_as_layers(generator: SentenceGenerator) -> None:
    writer = writer_of(generator)
    writing = writer.start(drawn(4))

    prefix_parts = len(list(writer.join([writing])))
    token_parts = len(list(writer.step([writing])))

    assert (prefix_parts, token_parts) == (generator.sizes.layers + 1, generator.sizes.layers)
    assert writing.place == 1


def test_a_token_that_was_left_half_way_may_be_begun_anew(generator: SentenceGenerator) -> None:
    features, writer = drawn(4), writer_of(generator)
    writing = writer.start(features)
    list(writer.join([writing]))

    while not writing.is_over:
        next(writer.step([writing]))
        list(writer.step([writing]))

    assert torch.equal(writing.ids, writer.write(features))


def test_packed_weights_give_the_shipped_model_the_same_ids(phantom_model: Path) -> None:
    network = load_network(phantom_model)
    features = drawn(5, network.sizes.dim)

    with torch.no_grad():
        expected = network.generator.write(features, max_length=24)
    assert torch.equal(writer_of(network.generator, max_length=24).write(features), expected)


def form_or_skip(form: Form) -> Form:
    """Return a form; int8 needs a processor that computes in it."""
    if form == "int8" and (fault := int8_fault()):
        pytest.skip(fault)
    return form


def test_products_of_eight_bits_are_close_for_each_row() -> None:
    linear = nn.Linear(256, 64).requires_grad_(False)
    rows = drawn(29, 256) * torch.logspace(-3, 3, 29).unsqueeze(1)
    multiply = product(linear.weight, linear.bias, form=form_or_skip("int8"))

    outputs = multiply(rows)

    error = (outputs - linear(rows)).abs().amax(dim=1)
    assert (error < 0.02 * rows.abs().amax(dim=1)).all(), "each row must have a scale of its own"
    assert error.max() > 0


def test_eight_bits_round_rows_to_the_nearest() -> None:
    # The largest value gives a scale of 1.
    row = torch.tensor([[127.0, 0.6, -0.6, 0.4, -0.4, 1.4, -126.6, 0.0]])

    rounded = product(torch.eye(8), None, form=form_or_skip("int8"))(row)

    torch.testing.assert_close(rounded, torch.tensor([[127.0, 1, -1, 0, 0, 1, -127, 0]]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_says_that_sentences_are_of_eight_bits(phantom_model: Path, engine: str) -> None:
    form_or_skip("int8")
    features = drawn(5, 256)[:, : load_network(phantom_model).sizes.dim].numpy()

    small = open_first(phantom_model, engine=engine, precision="int8").engine

    assert small.name == f"{engine}-int8"
    assert small.write(features).shape[0] == 5
    assert open_first(phantom_model, engine=engine).engine.name == engine


def test_a_gpu_engine_refuses_eight_bits(phantom_model: Path) -> None:
    with pytest.raises(ModelError, match="int8 is for a CPU"):
        open_first(phantom_model, engine="torch-cuda", precision="int8")
