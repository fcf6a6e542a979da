"""Texts of the paper: what marks and how alike they are, each figure by a second way."""

from __future__ import annotations

import csv
import json
import shutil
import socket
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from sklearn.metrics import precision_recall_fscore_support
from transformers import BertConfig, BertModel, BertTokenizer

from language.labels import RuleLabeler
from models.errors import ModelError
from models.evaluate import main
from models.lab.evaluation.published.chexbert import ChexbertLabeler
from models.lab.evaluation.published.clinical_efficacy import (
    FIVE,
    Marks,
    Told,
    counts_of,
    efficacy_of,
    mark,
)
from models.lab.evaluation.published.text_metrics import FIGURES, check_folder, cider, likeness_of, words_of
from models.lab.evaluation.statistics import Figures
from models.lab.tasks.labels import CHEXPERT
from models.progress import quiet
from models.reading.tokenizers import VOCABULARIES
from tests.lab import datasets
from tests.paths import FIXTURES

RATES = ("precision", "recall", "f1")
EDEMA: Marks = {"edema": "positive"}
FRACTURE: Marks = {"fracture": "positive"}
NORMAL: Marks = {"no_finding": "positive"}


def efficacy(*texts: tuple[int, Marks, Marks]) -> Figures:
    """Figures of texts: the film of each, and the marks of the true and of the generated one."""
    films, true, generated = zip(*texts, strict=True)
    return efficacy_of(counts_of(films, true, generated), np.arange(max(films) + 1))


def test_figures_are_those_counted_by_hand() -> None:
    made = efficacy(
        (0, {**EDEMA, **FRACTURE}, EDEMA),
        (0, NORMAL, EDEMA),
        (1, FRACTURE, NORMAL),
    )

    # One hit; "edema" and "no finding" are said in vain; "fracture" twice and "no finding" are missed.
    expected = {"ce_14_micro_precision": 1 / 3, "ce_14_micro_recall": 1 / 4, "ce_14_micro_f1": 2 / 7}
    # Of 14 classes only edema has a hit: precision 1/2, recall 1.
    expected |= {"ce_14_macro_f1": 2 / 3 / 14, "ce_14_f1_edema": 2 / 3, "ce_14_f1_fracture": 0}
    # The first film has one hit of two and of three; the second has none, and as published no F1.
    expected |= {"ce_14_example_precision": (1 / 2 + 0) / 2, "ce_14_example_recall": (1 / 3 + 0) / 2}
    expected |= {"ce_14_example_f1": 2 / 5, "ce_14_example_f1_of_all": (2 / 5 + 0) / 2}
    # Of the five classes the second film has nothing, neither there nor said.
    expected |= {"ce_5_example_f1_of_all": 2 / 3, "ce_5_micro_f1": 2 / 3}
    assert {name: made[name] for name in expected} == pytest.approx(expected)
    assert made["ce_14_f1_pneumonia"] is None


def test_uncertain_counts_in_five_plus_alone_and_an_empty_text_finds_nothing() -> None:
    made = efficacy((0, {"edema": "uncertain"}, EDEMA))

    names = ("ce_5_plus_micro_f1", "ce_5_micro_f1", "ce_14_micro_f1", "ce_14_f1_edema", "ce_5_micro_recall")
    assert [made[name] for name in names] == [1, 0, 0, 0, None]
    marked = mark(RuleLabeler(), "report_mimic", [("film", Told((" ",), ("Edema.",)))], quiet)
    assert (marked.true, marked.generated) == ([NORMAL], [EDEMA])


@pytest.mark.parametrize("name", ["14", "5", "5_plus"])
def test_scikit_learn_finds_the_same(name: str) -> None:
    rng = np.random.default_rng(3)
    choices = [None, "positive", "negative", "uncertain"]
    drawn = rng.choice(4, size=(2, 60, 14), p=[0.4, 0.3, 0.1, 0.2])
    true, generated = (
        [{key: choices[n] for key, n in zip(CHEXPERT, row, strict=True) if n} for row in side] for side in drawn
    )
    made = efficacy(*zip(range(60), true, generated, strict=True))

    own = [CHEXPERT.index(key) for key in (CHEXPERT if name == "14" else FIVE)]
    there, said = np.isin(drawn[:, :, own], [1, 3] if name == "5_plus" else [1])
    for average in ("micro", "macro"):
        expected = precision_recall_fscore_support(there, said, average=average, zero_division=np.nan)
        assert [made[f"ce_{name}_{average}_{key}"] for key in RATES] == pytest.approx(list(expected[:3]))
    of_films = precision_recall_fscore_support(there, said, average="samples", zero_division=np.nan)
    assert made[f"ce_{name}_example_f1_of_all"] == pytest.approx(of_films[2])


VOCABULARY = "[PAD] [UNK] [CLS] [SEP] . no edema effusion pleural clear lungs are ##s".split()
TEXTS = ["No pleural effusions.", "  Lungs are\n clear. ", "Edema, no effusion. Lungs", "", "lungs are clear . " * 200]
CONDITIONS = (
    "Enlarged Cardiomediastinum, Cardiomegaly, Lung Opacity, Lung Lesion, Edema, Consolidation, Pneumonia, "
    "Atelectasis, Pneumothorax, Pleural Effusion, Pleural Other, Fracture, Support Devices, No Finding"
).split(", ")
MARKS = ["", "positive", "negative", "uncertain"]


def small_bert(*, seed: int, positions: int = 512) -> tuple[BertConfig, BertModel]:
    """A BERT with random weights."""
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=positions,
    )
    return config, BertModel(config)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file as chexbert.pth, with names that begin with module, and what belongs beside it."""
    folder = tmp_path_factory.mktemp("chexbert")
    config, model = small_bert(seed=1)
    state = {f"module.bert.{name}": value for name, value in model.state_dict().items()}
    state["module.bert.embeddings.position_ids"] = torch.arange(512)[None]
    for number, name in enumerate(CONDITIONS):
        head = torch.nn.Linear(16, 2 if name == "No Finding" else 4)
        state |= {f"module.linear_heads.{number}.{key}": value for key, value in head.state_dict().items()}
    torch.save({"epoch": 3, "model_state_dict": state, "optimizer_state_dict": {}}, folder / "chexbert.pth")
    config.to_json_file(folder / "config.json")
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    return folder / "chexbert.pth"


def marks_by_a_second_program(weights: Path, text: str) -> dict[str, str]:
    state = torch.load(weights, weights_only=True)["model_state_dict"]
    bert = BertModel(BertConfig.from_pretrained(weights.parent)).eval()
    bert.load_state_dict(
        {name[12:]: value for name, value in state.items() if "bert" in name and "position_ids" not in name}
    )
    tokenizer = BertTokenizer(str(weights.parent / "vocab.txt"))
    tokens = ["[CLS]", *tokenizer.tokenize(text)[:510], "[SEP]"]
    with torch.no_grad():
        first = bert(torch.tensor([tokenizer.convert_tokens_to_ids(tokens)]))[0][:, 0]
    marks = {}
    for number, name in enumerate(CONDITIONS):
        weight, bias = (state[f"module.linear_heads.{number}.{part}"] for part in ("weight", "bias"))
        marks[name.lower().replace(" ", "_")] = MARKS[int((first @ weight.T + bias).argmax())]
    return {name: mark for name, mark in marks.items() if mark}


def test_texts_are_marked_as_by_a_second_program(weights: Path) -> None:
    labeler = ChexbertLabeler(weights)

    found = [dict(labeler.label(text)) for text in TEXTS]

    assert found == [marks_by_a_second_program(weights, text) for text in TEXTS]
    assert len({mark for marks in found for mark in marks.values()}) == 3
    assert [name.lower().replace(" ", "_") for name in CONDITIONS] == list(labeler.classes)
    assert labeler.name.startswith("chexbert, chexbert.pth, sha256 ")


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("chexbert.pth", None, "chexbert.pth is missing; beside weights of CheXbert belong config.json and vocab"),
        ("vocab.txt", None, "vocab.txt is missing"),
        ("config.json", None, "config.json is missing"),
        ("chexbert.pth", {"linear_heads.3.weight": torch.zeros(4, 16)}, "does not fit CheXbert with the config.json"),
        ("chexbert.pth", [1], "holds no weights under model_state_dict"),
        ("chexbert.pth", "<html>", "is a text file and holds no weights"),
        ("config.json", "{", "config.json is damaged"),
    ],
)
def test_files_that_do_not_fit_are_refused(
    weights: Path, tmp_path: Path, name: str, content: object, complaint: str
) -> None:
    folder = Path(shutil.copytree(weights.parent, tmp_path / "copy"))
    (folder / name).unlink()
    if isinstance(content, str):
        (folder / name).write_text(content)
    elif content is not None:
        torch.save({"model_state_dict": content}, folder / name)

    with pytest.raises(ModelError, match=complaint):
        ChexbertLabeler(folder / "chexbert.pth")


RECORDED = json.loads((FIXTURES / "pycocoevalcap.json").read_text())
TRUE: list[str] = RECORDED["true"]
GENERATED: list[str] = RECORDED["generated"]


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


def test_bertscore_is_that_of_its_formula(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "bertscore"
    folder.mkdir()
    small_bert(seed=5, positions=32)[1].save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer", "do_lower_case": true}')

    def refuse(*_arguments: object) -> None:
        raise AssertionError("nothing may go over the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    pairs = [("Lungs are clear.", "edema"), ("no pleural effusion", "No effusion. No edema."), ("no edema", "")]

    expected = []
    tokens, model = BertTokenizer.from_pretrained(folder), BertModel.from_pretrained(folder)
    for pair in pairs[:2]:
        with torch.no_grad():
            hidden = [model.eval()(**tokens(text, return_tensors="pt")).last_hidden_state for text in pair]
        own, said = (vectors[0] for vectors in hidden)
        best = [[float(torch.cosine_similarity(a, b, dim=0)) for b in own] for a in said]
        precision = np.mean([max(row) for row in best[1:-1]])
        recall = np.mean([max(column) for column in list(zip(*best, strict=True))[1:-1]])
        expected.append(2 * precision * recall / (precision + recall))
    assert figure("bertscore_f1", pairs, tmp_path) == pytest.approx(sum(expected) / 3, abs=1e-6)


def test_what_is_missing_or_damaged_is_the_reason_of_a_figure(tmp_path: Path) -> None:
    (tmp_path / "bertscore").mkdir()

    wordnet = "needs NLTK's wordnet.zip, unpacked; give it as DIR/nltk/corpora/wordnet, with --metric-files DIR"
    assert reason("meteor") == wordnet
    assert reason("bertscore_f1").endswith("give it as DIR/bertscore, with --metric-files DIR")
    assert reason("meteor", tmp_path).startswith("nltk/corpora/wordnet is missing in the folder of --metric-files")
    assert reason("bertscore_f1", tmp_path).startswith("transformers failed on bertscore (")
    check_folder(tmp_path)
    with pytest.raises(ModelError, match="has none of nltk/corpora/wordnet, bertscore;"):
        check_folder(tmp_path / "bertscore")


def test_texts_are_written_and_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = []
    for number, report in enumerate(("Pulmonary edema.", "The lungs are clear.")):
        name = f"film{number}.png"
        cv2.imwrite(str(tmp_path / name), np.random.default_rng(number).integers(0, 255, (224, 224), dtype=np.uint8))
        lines.append(json.dumps({"file": name, "patient": str(number), "report": report}))
    (tmp_path / "films.jsonl").write_text("\n".join(lines))
    model = ["--model", str(VOCABULARIES.parent), "--engine", "torch", "--resamples", "0", "--task", "report_mimic"]

    assert main([*model, "--data", f"boxes:{tmp_path / 'films.jsonl'}", "--out", str(tmp_path / "out")]) == 0

    told = capsys.readouterr().out
    assert "| labeler | rules |" in told
    assert "| meteor | not computed: needs NLTK's wordnet.zip, unpacked; give it as DIR/nltk/corpora/wordnet, " in told
    made = json.loads((tmp_path / "out" / "evaluation.json").read_text())["tasks"]["report_mimic"]
    assert {name for name in FIGURES if made[name] is None} == set(made["not_computed"])
    with (tmp_path / "out" / "texts.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    assert [row[:4] for row in rows[1:]] == [
        ["report_mimic", f"film{number}.png", "0", kind] for number in (0, 1) for kind in ("true", "generated")
    ]
    assert (rows[0][4], rows[1][4], rows[3][4]) == ("Report Impression", "Pulmonary edema.", "The lungs are clear.")
