"""Decoding: with kept keys and values, prepacked weights or fixed shapes, alone or in company, the same sentences."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from models.checkpoint.weights import load_generator, load_network
from models.engines import ENGINES, IntArray
from models.engines.opening import open_engine, open_first
from models.engines.proof import Precision
from models.engines.scheduler import for_person
from models.manifest import GeneratorSizes
from models.network.attention import Mlp
from models.network.packed_decoding import PackedWriter, Writing
from models.network.products import LEAST_ROWS, Activation, Form, int8_fault, product
from models.network.sentence_generator import SentenceGenerator
from models.network.static_decoding import CHECK_EVERY, ROWS, StaticWriter, Step
from models.reading.tokenizers import SENTENCE_END
from tests.drills.bench.plain_generator import PlainGenerator

RUNTIMES = pytest.mark.drill(part="runtimes")


SIZES = GeneratorSizes(
    vocabulary=50257, positions=40, width=32, layers=3, heads=4, prefix_length=5, prefix_hidden=48, max_length=30
)


@pytest.fixture(scope="module")
def generator() -> SentenceGenerator:
    """A random network whose sentences end, each at its own time."""
    torch.manual_seed(1)
    generator = SentenceGenerator(SIZES, dim=16).eval().requires_grad_(False)
    # The longer a sentence, the more every hidden state points to the end token.
    direction = torch.randn(SIZES.width)
    generator.tokens.weight[SENTENCE_END] = 1.3 * direction
    generator.positions.weight[0] -= 1.3 * direction
    generator.positions.weight.add_(torch.arange(SIZES.positions).unsqueeze(1) * direction * 0.15)
    return generator


def drawn(count: int, dim: int = 16, *, seed: int = 11) -> Tensor:
    return 3 * torch.randn(count, dim, generator=torch.Generator().manual_seed(seed))


def form_or_skip(form: Form) -> Form:
    """Return a form; int8 needs a processor that computes in it."""
    if form == "int8" and (fault := int8_fault()):
        pytest.skip(fault)
    return form


def written_without_cache(generator: SentenceGenerator, feature: Tensor, max_length: int) -> list[int]:
    """Decode one sentence by computing the whole of it again for every token."""
    ids = [SENTENCE_END]
    while len(ids) < max_length and (len(ids) == 1 or ids[-1] != SENTENCE_END):
        length = len(ids)
        visible = torch.ones(length, SIZES.prefix_length + length, dtype=torch.bool).tril(SIZES.prefix_length)
        caches = generator.remember(feature.unsqueeze(0), room=length)
        logits = generator(torch.tensor([ids]), torch.arange(length).unsqueeze(0), caches, visible)
        ids.append(int(logits[0, -1].argmax()))
    return ids


def test_sentences_are_those_of_a_decoder_without_cache(generator: SentenceGenerator) -> None:
    ids = generator.write(drawn(4), max_length=30)

    alone = [written_without_cache(generator, feature, 30) for feature in drawn(4)]
    assert len({len(sentence) for sentence in alone}) > 1, "the sentences of this test must end at different times"
    longest = max(len(sentence) for sentence in alone)
    assert longest < 30, "the sentences of this test must end before their limit"
    assert ids.tolist() == [sentence + [SENTENCE_END] * (longest - len(sentence)) for sentence in alone]
    for length in (0, 41):
        with pytest.raises(ValueError, match=r"1\.\.40"):
            generator.write(drawn(4), max_length=length)


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


class Heard(TorchDispatchMode):  # type: ignore[no-untyped-call]  # PyTorch left it without types
    """Hears every operation: its name, and the rows and the address of its first tensor."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self.heard: list[tuple[str, int, int]] = []

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        if args and isinstance(first := args[0], Tensor):
            self.heard.append((str(func), len(first) if first.dim() else 0, first.data_ptr()))
        return func(*args, **(kwargs or {}))


class WholeWriter(PackedWriter):
    """Writes sentences to their end."""

    def write(self, features: Tensor) -> Tensor:
        writing = self.start(features)
        list(self.join([writing]))
        while not writing.is_over:
            list(self.step([writing]))
        return writing.ids


def writer_of(generator: SentenceGenerator, *, form: Form = "float32", max_length: int = 30) -> WholeWriter:
    return WholeWriter(generator, max_length=max_length, form=form)


@pytest.mark.parametrize("count", [0, 1, 2, 9, ROWS[-1] + 1])
@pytest.mark.parametrize("max_length", [1, 2, CHECK_EVERY, CHECK_EVERY + 1, 40])
def test_all_decodings_write_the_same_ids(generator: SentenceGenerator, count: int, max_length: int) -> None:
    expected = generator.write(drawn(count), max_length=max_length).tolist()

    assert writer_of(generator, max_length=max_length).write(drawn(count)).tolist() == expected
    assert StaticWriter(generator, max_length=max_length).write(drawn(count)).tolist() == expected


@pytest.mark.parametrize(
    "sizes", [replace(SIZES, prefix_hidden=0), replace(SIZES, prefix_shared=True), replace(SIZES, prefix_length=1)]
)
def test_another_prefix_writes_the_same_in_both_decodings(sizes: GeneratorSizes) -> None:
    generator = SentenceGenerator(sizes, dim=16).eval().requires_grad_(False)
    features = torch.randn(3, 16)

    prefixes = generator.prefix_key_values(features)

    assert prefixes.shape == (SIZES.layers, 2, 3, SIZES.heads, generator.sizes.prefix_length, 8)
    assert bool(torch.equal(prefixes[0], prefixes[1])) == generator.sizes.prefix_shared
    packed = writer_of(generator, max_length=9).write(features)
    assert packed.tolist() == generator.write(features, max_length=9).tolist()


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
    assert len(writer.write(drawn(0))) == 0


def test_equal_features_are_computed_once_and_a_finished_sentence_leaves_the_batch(
    generator: SentenceGenerator,
) -> None:
    features, writer = drawn(9), writer_of(generator)
    repeated = features[[0, 1, 0, 2, 3, 4, 5, 1, 6, 7, 8]]

    with Heard() as seen:
        ids = writer.write(repeated)

    rows = [rows for name, rows, _ in seen.heard if name.startswith("mkldnn._linear_pointwise")]
    assert rows[0] == 9
    assert rows == sorted(rows, reverse=True) and rows[-1] < 9
    assert torch.equal(ids, writer.write(features)[[0, 1, 0, 2, 3, 4, 5, 1, 6, 7, 8]])
    products_a_step, once = 4 * generator.sizes.layers + 1, writer.write(features)
    going_on = [int((once[:, :place] == SENTENCE_END).sum(dim=1).le(1).sum()) for place in range(1, once.shape[1])]
    assert rows[1 + generator.sizes.layers :: products_a_step] == [max(LEAST_ROWS, count) for count in going_on]


def test_a_token_has_as_many_parts_as_layers_and_may_be_begun_anew_half_way(generator: SentenceGenerator) -> None:
    features, writer = drawn(4), writer_of(generator)
    writing = writer.start(features)

    assert len(list(writer.join([writing]))) == generator.sizes.layers + 1
    while not writing.is_over:
        place = writing.place
        next(writer.step([writing]))
        assert len(list(writer.step([writing]))) == generator.sizes.layers
        assert writing.place == place + 1

    assert torch.equal(writing.ids, writer.write(features))


def test_products_of_eight_bits_are_close_for_each_row() -> None:
    linear = nn.Linear(256, 64).requires_grad_(False)
    rows = drawn(29, 256) * torch.logspace(-3, 3, 29).unsqueeze(1)

    outputs = product(linear.weight, linear.bias, form=form_or_skip("int8"))(rows)
    # The largest value gives a scale of 1, and values are rounded to the nearest.
    rounded = product(torch.eye(8), None, form="int8")(torch.tensor([[127.0, 0.6, -0.6, 0.4, -0.4, 1.4, -126.6, 0.0]]))

    error = (outputs - linear(rows)).abs().amax(dim=1)
    assert (error < 0.02 * rows.abs().amax(dim=1)).all(), "each row must have a scale of its own"
    assert error.max() > 0
    torch.testing.assert_close(rounded, torch.tensor([[127.0, 1, -1, 0, 0, 1, -127, 0]]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_says_that_sentences_are_of_eight_bits(phantom_model: Path, engine: str) -> None:
    form_or_skip("int8")
    features = drawn(5, 256)[:, : load_network(phantom_model).sizes.dim].numpy()

    small = open_first(phantom_model, engine=engine, precision="int8").engine

    assert small.name == f"{engine}-int8"
    assert small.write(features).shape[0] == 5
    assert open_first(phantom_model, engine=engine).engine.name == engine


def test_the_device_is_waited_for_once_in_a_few_tokens(generator: SentenceGenerator) -> None:
    last = 2  # the sum that trims the sentences, and the check that ends them
    with Heard() as calls:
        ids = StaticWriter(generator, max_length=40).write(drawn(9))

    assert ids.shape[1] > CHECK_EVERY
    waits = [name for name, *_ in calls.heard].count("aten._local_scalar_dense.default")
    assert 1 <= waits <= ids.shape[1] / CHECK_EVERY + last


def test_a_step_is_captured_once_for_each_number_of_rows(generator: SentenceGenerator) -> None:
    captured: list[Step] = []

    def capture(step: Step) -> Step:
        """Run a step a few times, as a GPU does, before it is repeated."""
        captured.append(step)
        for _ in range(3):
            step()
        return step

    writer = StaticWriter(generator, max_length=30, repeatable=capture)
    writer.write(torch.full((8, 16), float("nan")))  # which leaves nothing behind

    for count in (3, 1, 8, 2, 33, 1):
        features = drawn(count, seed=count)
        assert torch.equal(writer.write(features), generator.write(features, max_length=30))

    assert len(captured) == len(ROWS)


def test_every_tensor_of_a_step_keeps_its_address(generator: SentenceGenerator) -> None:
    steps: list[set[int]] = []

    def watched(step: Step) -> Step:
        def run() -> None:
            with Heard() as calls:
                step()
            steps.append({place for name, _, place in calls.heard if name.split(".")[1].endswith("_")})  # in place

        return run

    writer = StaticWriter(generator, max_length=30, repeatable=watched)
    writer.write(drawn(3))
    writer.write(drawn(8, seed=2))

    assert len(steps) > 20
    assert all(written == steps[0] for written in steps)
    assert len(steps[0]) == 2 * SIZES.layers + 4, "keys and values, place, ids, the current token and what is finished"


def with_own_tokens(generator: SentenceGenerator, own_tokens: tuple[int, ...]) -> SentenceGenerator:
    """Make a generator with the same weights but those of the tokens, of which the others share a row."""
    smaller = SentenceGenerator(replace(generator.sizes, own_tokens=own_tokens), dim=16).requires_grad_(False).eval()
    weights = generator.state_dict()
    smaller.load_state_dict({**weights, "tokens.weight": smaller.tokens.weight})
    for token in own_tokens:
        smaller.tokens.weight[smaller.tokens.rows_of(torch.tensor(token))] = weights["tokens.weight"][token]
    return smaller


@RUNTIMES
def test_the_peer_writes_what_the_generator_writes(generator: SentenceGenerator) -> None:
    """GPT-2 of `transformers`, also with a small model's weights: it has fewer rows than token ids."""
    for written in (generator, with_own_tokens(generator, (*range(40), SENTENCE_END))):
        ids = written.write(drawn(3), max_length=30)

        assert ids.shape[1] < 30, "the sentences of this test must end"
        assert torch.equal(PlainGenerator(written).write(drawn(3), max_length=30), ids)


COUNTS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 29, 31, 32, 33, 58, 63, 64, 65, 100, 116, 128)
PRODUCTS: list[tuple[tuple[int, int], Activation, int]] = [
    *(((rows, 32), "gelu", threads) for rows in (100, 1024, 4096) for threads in (2, 3, 6)),
    *(((rows, 32), "gelu_tanh", threads) for rows in (100, 1024, 4096) for threads in (2, 3, 6)),
    *((shape, "none", 1) for shape in ((96, 32), (1024, 1024), (3072, 1024), (1024, 4096))),
]
"""Outputs and inputs of layers, small and as published; the last makes oneDNN multiply one row in another way."""
COMPANIES = ((1, 1), (2, 5), (29, 1, 3), (7, 29, 29, 29), (1, 1, 1, 1, 1))


@RUNTIMES
@pytest.mark.parametrize(("shape", "activation", "threads"), PRODUCTS)
@pytest.mark.parametrize("form", FORMS)
def test_no_bit_of_a_product_depends_on_the_rows_beside_it(
    form: Form, activation: Activation, shape: tuple[int, int], threads: int
) -> None:
    """Each row gives the same bits alone, with others, and at another place."""
    weight, rows, before = 0.02 * drawn(*shape), drawn(COUNTS[-1], shape[1], seed=5), torch.get_num_threads()
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(2))
    multiply = product(weight, None, form=form_or_skip(form), activation=activation)
    torch.set_num_threads(threads)
    try:
        expected = torch.cat([multiply(row.unsqueeze(0)) for row in rows])
        for count in COUNTS:
            assert torch.equal(multiply(rows[:count]), expected[:count]), count
            assert torch.equal(multiply(rows[order[:count]]), expected[order[:count]]), count
    finally:
        torch.set_num_threads(before)


@RUNTIMES
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("late", [0, 1, 3])
@pytest.mark.parametrize("company", COMPANIES)
def test_ids_are_the_same_alone_and_in_company(
    generator: SentenceGenerator, form: Form, late: int, company: tuple[int, ...]
) -> None:
    """Of several callers, each of whom joins so many tokens after the one before."""
    writer = writer_of(generator, form=form_or_skip(form))
    parts = [drawn(count, seed=place) for place, count in enumerate(company)]
    writings = [writer.start(part) for part in parts]
    active, waiting, tokens = list[Writing](), list(writings), 0

    while waiting or not all(writing.is_over for writing in active):
        new = [
            waiting.pop(0) for _ in range(len(waiting) if not late else 1) if waiting and not (late and tokens % late)
        ]
        if new:
            list(writer.join(new))
            active.extend(new)
        list(writer.step([writing for writing in active if not writing.is_over]))
        tokens += 1

    assert [writing.ids.tolist() for writing in writings] == [writer.write(part).tolist() for part in parts]


@RUNTIMES
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_an_engine_answers_films_and_people_as_if_alone(phantom_model: Path, precision: Precision) -> None:
    form_or_skip("int8" if precision == "int8" else "float32")
    engine = open_engine(phantom_model, engine="torch", precision=precision)
    dim = load_generator(phantom_model).sizes.dim
    asked = [drawn(count, dim, seed=place).numpy() for place, count in enumerate((29, 1, 29, 2, 29, 1, 7, 29))]
    with torch.inference_mode():  # a caller may be in it or not
        expected = [engine.write(features) for features in asked]

    begin = threading.Barrier(len(asked))

    def write(features: np.ndarray) -> IntArray:
        begin.wait()
        with for_person() if len(features) <= 2 else nullcontext():  # callers with few features are people
            return engine.write(features)

    with ThreadPoolExecutor(len(asked)) as pool:
        found = list(pool.map(write, asked, timeout=60))

    for ids, ids_alone in zip(found, expected, strict=True):
        assert np.array_equal(ids, ids_alone)
