"""Decoding with prepacked weights generates what the other decoding generates, with less work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from models.checkpoint.weights import load_network
from models.network.packed_decoding import Choice, Form, PackedWriter, faster_form
from models.network.sentence_generator import SentenceGenerator
from models.reading.tokenizers import SENTENCE_END
from tests.test_sentence_generator import generator as generator  # its fixture: sentences that end at their own times

FORMS: tuple[Form, ...] = ("prepacked", "eager")


class Rows(TorchDispatchMode):  # type: ignore[no-untyped-call]  # PyTorch left it without types
    """Notes the rows of every prepacked product, and every operation that joins tensors."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self.rows: list[int] = []
        self.joins: list[str] = []

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
        return func(*args, **(kwargs or {}))


def drawn(count: int, dim: int = 16, *, seed: int = 11) -> Tensor:
    return 3 * torch.randn(count, dim, generator=torch.Generator().manual_seed(seed))


def writer_of(generator: SentenceGenerator, *, form: Form = "prepacked", max_length: int = 30) -> PackedWriter:
    return PackedWriter(generator, max_length=max_length, choice=Choice(form=form, reason="the test says so"))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("count", [1, 2, 9, 33])
@pytest.mark.parametrize("max_length", [1, 2, 8, 40])
def test_packed_ids_are_those_of_the_generator(
    generator: SentenceGenerator, form: Form, count: int, max_length: int
) -> None:
    features = drawn(count)

    ids = writer_of(generator, form=form, max_length=max_length).write(features)

    assert torch.equal(ids, generator.write(features, max_length=max_length))


@pytest.mark.parametrize("form", FORMS)
def test_no_feature_is_no_sentence_in_either_form(generator: SentenceGenerator, form: Form) -> None:
    assert len(writer_of(generator, form=form).write(drawn(0))) == 0


def test_a_sentence_alone_and_in_company_is_the_same(generator: SentenceGenerator) -> None:
    features, writer = drawn(32), writer_of(generator)

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
    by_step = [int((ids[:, :place] == SENTENCE_END).sum(dim=1).le(1).sum()) for place in range(1, ids.shape[1])]
    products_a_step = 4 * generator.sizes.layers + 1
    assert seen.rows[2::products_a_step] == by_step


def test_no_step_joins_or_pads_tensors(generator: SentenceGenerator) -> None:
    with Rows() as seen:
        writer_of(generator).write(drawn(9))

    assert seen.rows and not seen.joins


def test_the_writer_gives_way_between_tokens(generator: SentenceGenerator) -> None:
    packed, plain = list[int](), list[int]()

    ids = writer_of(generator).write(drawn(4), after_token=lambda: packed.append(1))
    generator.write(drawn(4), max_length=30, after_token=lambda: plain.append(1))

    assert len(packed) == len(plain) == ids.shape[1] - 2


def test_both_forms_give_the_shipped_model_the_same_ids(phantom_model: Path) -> None:
    network = load_network(phantom_model)
    features = drawn(5, network.sizes.dim)

    with torch.no_grad():
        expected = network.generator.write(features, max_length=24)
    for form in FORMS:
        assert torch.equal(writer_of(network.generator, form=form, max_length=24).write(features), expected)


def test_large_weights_are_prepacked_and_measured() -> None:
    choice = faster_form(nn.Linear(256, 256).requires_grad_(False))

    assert "times as fast as eager" in choice.reason


def test_weights_that_cannot_be_packed_stay_eager_with_a_reason() -> None:
    choice = faster_form(nn.Linear(8, 8, dtype=torch.float64).requires_grad_(False))

    assert choice.form == "eager"
    assert choice.reason.startswith("oneDNN cannot")


@pytest.mark.parametrize("max_length", [0, 41])
def test_the_packed_writer_refuses_a_length_without_positions(generator: SentenceGenerator, max_length: int) -> None:
    with pytest.raises(ValueError, match=r"1\.\.40"):
        writer_of(generator, max_length=max_length)
