"""How alike texts are, each figure by a second way: by hand, by nltk, and as recorded of pycocoevalcap."""

from __future__ import annotations

import json
import math
import socket
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from nltk.translate.bleu_score import corpus_bleu
from transformers import BertConfig, BertModel, BertTokenizer

from models.errors import ModelError
from models.lab.evaluation.published.likeness import check_folder, cider, likeness_of, words_of
from tests.lab import datasets
from tests.paths import FIXTURES

pytestmark = pytest.mark.drill(part="laboratory")

RECORDED = json.loads((FIXTURES / "pycocoevalcap.json").read_text())
TRUE: list[str] = RECORDED["true"]
GENERATED: list[str] = RECORDED["generated"]
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", ".", "no", "edema", "effusion", "pleural", "clear", "lungs", "are"]


def figure(name: str, pairs: Sequence[tuple[str, str]], files: Path | None = None) -> float:
    """A figure of pairs of a true and a generated text."""
    true, generated = zip(*pairs, strict=True)
    likeness = likeness_of(true, generated, files)
    value = likeness.figures(np.arange(len(pairs)))[name]
    assert value is not None, likeness.reasons[name]
    return value


def reason(name: str, files: Path | None = None) -> str:
    likeness = likeness_of(["Edema."], ["Edema."], files)
    assert likeness.figures(np.arange(1))[name] is None
    return likeness.reasons[name]


def test_figures_are_those_recorded_of_pycocoevalcap() -> None:
    scores = cider([words_of(text) for text in TRUE], [words_of(text) for text in GENERATED])

    assert scores == pytest.approx(RECORDED["cider"], abs=1e-8)
    pairs = list(zip(TRUE, GENERATED, strict=True))
    assert figure("bleu_1", pairs) == pytest.approx(RECORDED["bleu_1"], abs=1e-8)
    assert figure("bleu_4", pairs) == pytest.approx(RECORDED["bleu_4"], abs=1e-8)


@pytest.mark.parametrize(("name", "weights"), [("bleu_1", (1.0,)), ("bleu_4", (0.25,) * 4)])
def test_bleu_is_that_of_nltk(name: str, weights: tuple[float, ...]) -> None:
    # A text of fewer than four words has no n-gram of four; nltk counts one.
    pairs = [pair for pair in zip(TRUE, GENERATED, strict=True) if len(words_of(pair[1])) >= 4]

    expected = corpus_bleu([[words_of(own)] for own, _ in pairs], [words_of(said) for _, said in pairs], weights)

    assert figure(name, pairs) == pytest.approx(expected)


def test_cider_of_two_texts_is_that_computed_by_hand() -> None:
    # "edema" is in both true texts, so it weighs nothing; "mild" and "mild edema" weigh log 2 in the first.
    # The generated text has both once, and "no" and "no mild" beside them, which no true text has: log 2 as well.
    cosines = [1 / math.sqrt(2), 1 / math.sqrt(2), 0, 0]
    penalty = math.exp(-1 / (2 * 36))

    scores = cider([["mild", "edema"], ["edema"]], [["no", "mild", "edema"], ["edema"]])

    assert scores == pytest.approx([10 * sum(cosines) / 4 * penalty, 0])


@pytest.mark.parametrize(
    ("own", "said", "matched", "chunks"),
    [
        ("small left opacity", "small left opacity", 3, 1),
        ("small left opacity", "Small opacity", 2, 2),
        ("small fog", "small haze", 2, 1),
        ("effusions", "effusion is", 1, 1),
        ("edema", "fracture", 0, 0),
    ],
)
def test_meteor_is_that_computed_by_hand(tmp_path: Path, own: str, said: str, matched: int, chunks: int) -> None:
    # Weight 0.9 for recall, and a penalty of half the cube of chunks for each matched word.
    precision, recall = matched / len(said.split()), matched / len(own.split())
    mean = precision * recall / (0.9 * precision + 0.1 * recall) if matched else 0
    expected = mean * (1 - 0.5 * (chunks / matched) ** 3) if matched else 0

    assert figure("meteor", [(own, said)], datasets.wordnet(tmp_path)) == pytest.approx(expected)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small BERT with random weights, for BERTScore."""
    folder = tmp_path_factory.mktemp("files") / "bertscore"
    folder.mkdir()
    torch.manual_seed(5)
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
    )
    BertModel(config).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer", "do_lower_case": true}')
    return folder.parent


def test_bertscore_is_that_of_its_formula(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object) -> None:
        raise AssertionError("nothing may go over the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    pairs = [("Lungs are clear.", "edema"), ("no pleural effusion", "No effusion. No edema."), ("no edema", "")]

    expected = []
    tokens, model = BertTokenizer.from_pretrained(bert / "bertscore"), BertModel.from_pretrained(bert / "bertscore")
    for pair in pairs[:2]:
        with torch.no_grad():
            hidden = [model.eval()(**tokens(text, return_tensors="pt")).last_hidden_state for text in pair]
        own, said = (vectors[0] for vectors in hidden)
        best = [[float(torch.cosine_similarity(a, b, dim=0)) for b in own] for a in said]
        precision = np.mean([max(row) for row in best[1:-1]])
        recall = np.mean([max(column) for column in list(zip(*best, strict=True))[1:-1]])
        expected.append(2 * precision * recall / (precision + recall))
    assert figure("bertscore_f1", pairs, bert) == pytest.approx(sum(expected) / 3, abs=1e-6)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("meteor", "needs NLTK's wordnet.zip, unpacked; give it as DIR/nltk/corpora/wordnet, with --metric-files DIR"),
        ("bertscore_f1", "give it as DIR/bertscore, with --metric-files DIR"),
    ],
)
def test_what_is_missing_is_the_reason_of_a_figure(name: str, told: str) -> None:
    assert told in reason(name)


def test_a_missing_folder_and_a_damaged_one_are_reasons(tmp_path: Path) -> None:
    (tmp_path / "bertscore").mkdir()

    assert reason("meteor", tmp_path).startswith("nltk/corpora/wordnet is missing in the folder of --metric-files")
    assert reason("bertscore_f1", tmp_path).startswith("transformers failed on bertscore (")
    check_folder(tmp_path)
    with pytest.raises(ModelError, match="has none of nltk/corpora/wordnet, bertscore;"):
        check_folder(tmp_path / "bertscore")
