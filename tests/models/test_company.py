"""A sentence is the same alone and in any company: to the token through the engine, to the bit in its products."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from models.checkpoint.weights import load_generator
from models.engines import Engine, IntArray
from models.engines.opening import open_engine
from models.engines.proof import Precision
from models.engines.turns import for_person
from models.network.packed_decoding import PackedWriter, Writing
from models.network.products import LEAST_ROWS, Activation, Form, Product, product, with_least_rows
from models.network.sentence_generator import SentenceGenerator
from tests.models.test_packed_decoding import drawn, form_or_skip
from tests.models.test_sentence_generator import (
    generator as generator,  # its fixture: sentences that end at their own times
)

pytestmark = pytest.mark.drill(part="runtimes")

FORMS: tuple[Form, ...] = ("float32", "int8")
ROWS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 29, 31, 32, 33, 58, 63, 64, 65, 100, 116, 128)
SHAPES = ((96, 32), (1024, 1024), (3072, 1024), (1024, 4096))
"""Outputs and inputs of layers, small and as published; the last makes oneDNN multiply one row in another way."""
COMPANIES = ((1, 1), (2, 5), (29, 1, 3), (7, 29, 29, 29), (1, 1, 1, 1, 1))


def alone(writer: PackedWriter, features: Tensor) -> list[list[int]]:
    return [[int(token) for token in ids] for ids in writer.write(features)]


def together(writer: PackedWriter, parts: list[Tensor], *, late: int) -> list[list[list[int]]]:
    """Generate the sentences of several callers; each joins so many tokens after the one before it."""
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
    return [[[int(token) for token in ids] for ids in writing.ids] for writing in writings]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", SHAPES)
def test_no_bit_of_a_product_depends_on_the_rows_beside_it(form: Form, shape: tuple[int, int]) -> None:
    weight, rows = 0.02 * drawn(*shape), drawn(ROWS[-1], shape[1], seed=5)

    assert_alone_and_in_company(product(weight, None, form=form_or_skip(form)), rows)


@pytest.mark.parametrize("threads", [2, 3, 6])
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
@pytest.mark.parametrize("outputs", [1024, 4096, 100])
@pytest.mark.parametrize("form", FORMS)
def test_no_bit_of_an_activation_depends_on_the_rows_beside_it(
    form: Form, outputs: int, activation: Activation, threads: int
) -> None:
    weight, rows, before = 0.2 * drawn(outputs, 32), drawn(ROWS[-1], 32, seed=5), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert_alone_and_in_company(product(weight, None, form=form_or_skip(form), activation=activation), rows)
    finally:
        torch.set_num_threads(before)


def assert_alone_and_in_company(multiply: Product, rows: Tensor) -> None:
    """Require that each row gives the same bits alone, with others, and at another place."""
    expected = torch.cat([multiply(row.unsqueeze(0)) for row in rows])
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(2))
    for count in ROWS:
        assert torch.equal(multiply(rows[:count]), expected[:count]), count
        assert torch.equal(multiply(rows[order[:count]]), expected[order[:count]]), count


def test_one_row_is_multiplied_as_two() -> None:
    seen = list[Tensor]()

    def multiply(rows: Tensor) -> Tensor:
        seen.append(rows)
        return rows + 1

    outputs = [with_least_rows(multiply)(torch.ones(count, 4)) for count in (0, 1, 2, 29)]

    assert [len(rows) for rows in seen] == [0, LEAST_ROWS, LEAST_ROWS, 29]
    assert not seen[1][1:].any()
    assert [len(made) for made in outputs] == [0, 1, 2, 29]
    assert all((made == 2).all() for made in outputs)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("late", [0, 1, 3])
@pytest.mark.parametrize("company", COMPANIES)
def test_ids_are_the_same_alone_and_in_company(
    generator: SentenceGenerator, form: Form, late: int, company: tuple[int, ...]
) -> None:
    writer = PackedWriter(generator, max_length=30, form=form_or_skip(form))
    parts = [drawn(count, seed=place) for place, count in enumerate(company)]

    found = together(writer, parts, late=late)

    assert found == [alone(writer, part) for part in parts]


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_an_engine_answers_films_and_people_as_if_alone(phantom_model: Path, precision: Precision) -> None:
    form_or_skip("int8" if precision == "int8" else "float32")
    engine = open_engine(phantom_model, engine="torch", precision=precision)
    dim = load_generator(phantom_model).sizes.dim
    asked = [drawn(count, dim, seed=place).numpy() for place, count in enumerate((29, 1, 29, 2, 29, 1, 7, 29))]
    expected = [engine.write(features) for features in asked]

    found = _at_once(engine, asked)

    for ids, ids_alone in zip(found, expected, strict=True):
        assert np.array_equal(ids, ids_alone)


def test_a_caller_may_be_in_inference_mode_or_not(phantom_model: Path) -> None:
    engine = open_engine(phantom_model, engine="torch")
    features = drawn(3, load_generator(phantom_model).sizes.dim).numpy()

    with torch.inference_mode():
        found = engine.write(features)

    assert np.array_equal(found, engine.write(features))


def _at_once(engine: Engine, asked: list[np.ndarray]) -> list[IntArray]:
    """Let callers write at the same time; those with few features are people."""
    found: dict[int, IntArray] = {}
    begin = threading.Barrier(len(asked))

    def write(place: int) -> None:
        begin.wait()
        if len(asked[place]) > 2:
            found[place] = engine.write(asked[place])
            return
        with for_person():
            found[place] = engine.write(asked[place])

    threads = [threading.Thread(target=write, args=(place,)) for place in range(len(asked))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return [found[place] for place in range(len(asked))]
