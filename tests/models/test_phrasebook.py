"""Phrases are encoded without their padding, each once, and have the vectors that they have with it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from export.to_onnx import load_graph
from models.contract import Side
from models.engines import ENGINES, IntArray
from models.engines.comparison import FLOAT32
from models.engines.onnx_engine import open_onnx
from models.engines.opening import open_engine
from models.engines.proof import graph_path
from models.engines.turns import MOST_TOKENS
from models.errors import ModelError
from models.reading.phrasebook import Phrasebook
from tests.support.directories import linked_copy
from tests.support.scripted_engine import EDEMA, FRACTURE, PROMPTS, ScriptedEngine, reader_of

TEXTS = (
    "No focal consolidation, pleural effusion or pneumothorax is seen.",
    "!",
    "Edema",
    "heart " * 100,
    "Edema",
    "The heart<|endoftext|> is enlarged",
    *(f"Mass number {number} in the left upper zone" for number in range(23)),
)


class Watched(ScriptedEngine):
    """Keeps the tokens that it was given."""

    given: list[IntArray]

    def encode_prompts(self, tokens: IntArray) -> np.ndarray:
        self.given = [*getattr(self, "given", []), tokens]
        return super().encode_prompts(tokens)


@pytest.mark.parametrize("name", ENGINES)
def test_a_cut_text_has_the_vector_of_the_padded_one(phantom_model: Path, name: str) -> None:
    engine = open_engine(phantom_model, engine=name)

    cut = Phrasebook(engine, PROMPTS).embed(TEXTS)

    padded = engine.encode_prompts(PROMPTS.encode(TEXTS))
    assert cut.shape == padded.shape
    assert np.abs(cut - padded).max() <= FLOAT32.features * max(1.0, float(np.abs(padded).max()))


def test_texts_are_encoded_once_in_parts_without_their_padding() -> None:
    engine = Watched(probabilities=[], said=[])

    Phrasebook(engine, PROMPTS).embed(TEXTS)

    ends = [tokens.argmax(axis=1) + 1 for tokens in engine.given]
    assert all(tokens.size <= MOST_TOKENS for tokens in engine.given)
    assert all(tokens.shape[1] == lengths.max() for tokens, lengths in zip(engine.given, ends, strict=True))
    assert sum(len(tokens) for tokens in engine.given) == len(set(TEXTS))


def test_a_prepared_reader_encodes_only_sentences_of_a_film() -> None:
    engine = Watched(probabilities=[0.78, 0.22], said=["Edema is seen.", "No fracture."])
    reader, prompts = reader_of(engine), (EDEMA, FRACTURE)

    reader.prepare(prompts)

    phrases = ["Edema", "No edema", "Fracture", "No fracture"]
    sided = [f"{side} {name}" for name in ("Edema", "Fracture") for side in ("left", "right")]
    before = [_text(row) for tokens in engine.given for row in tokens]
    assert sorted(before) == sorted(_text(row) for row in PROMPTS.encode([*phrases, *sided, "Spine"]))
    reader.report(reader.look(np.zeros((8, 8), dtype=np.float32)), prompts, side_of=lambda _x, _width: Side.LEFT)
    after = [_text(row) for tokens in engine.given for row in tokens][len(before) :]
    assert sorted(after) == sorted(_text(row) for row in PROMPTS.encode(engine.said))


def _text(row: IntArray) -> tuple[int, ...]:
    return tuple(row[: row.argmax() + 1].tolist())


def test_a_graph_for_phrases_of_one_length_is_refused(phantom_model: Path, tmp_path: Path) -> None:
    model = linked_copy(phantom_model, tmp_path / "model")
    path = graph_path(model, "encode_prompts")
    graph = load_graph(path)
    graph.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 77
    path.unlink()
    onnx.save(graph, path)

    with pytest.raises(ModelError, match=r"one length only; run .*export\.build"):
        open_onnx(model)
