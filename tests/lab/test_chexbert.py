"""CheXbert from a file: a small network with random weights, in the published layout, beside a second program."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertModel, BertTokenizer

from models.errors import ModelError
from models.lab.evaluation.published.chexbert import ChexbertLabeler

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", ".", "no", "edema", "effusion", "pleural", "clear", "lungs", "are", "##s"]
TEXTS = [
    "No pleural effusions.",
    "  Lungs are\n clear. ",
    "Edema, no effusion. Lungs",
    "",
    "lungs are clear . " * 200,
]
CONDITIONS = (
    "Enlarged Cardiomediastinum, Cardiomegaly, Lung Opacity, Lung Lesion, Edema, Consolidation, Pneumonia, "
    "Atelectasis, Pneumothorax, Pleural Effusion, Pleural Other, Fracture, Support Devices, No Finding"
).split(", ")
MARKS = ["", "positive", "negative", "uncertain"]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file as chexbert.pth, with names that begin with module, and what belongs beside it."""
    folder = tmp_path_factory.mktemp("chexbert")
    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=len(WORDS), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
    )
    state = {f"module.bert.{name}": value for name, value in BertModel(config).state_dict().items()}
    state["module.bert.embeddings.position_ids"] = torch.arange(512)[None]
    for number, name in enumerate(CONDITIONS):
        head = torch.nn.Linear(16, 2 if name == "No Finding" else 4)
        state |= {f"module.linear_heads.{number}.{key}": value for key, value in head.state_dict().items()}
    torch.save({"epoch": 3, "model_state_dict": state, "optimizer_state_dict": {}}, folder / "chexbert.pth")
    config.to_json_file(folder / "config.json")
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
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


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def change_a_weight(folder: Path) -> None:
    content = torch.load(folder / "chexbert.pth", weights_only=True)
    del content["model_state_dict"]["module.linear_heads.3.bias"]
    torch.save(content, folder / "chexbert.pth")


def save_a_list(folder: Path) -> None:
    torch.save({"model_state_dict": [1]}, folder / "chexbert.pth")


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (
            without("chexbert.pth"),
            "chexbert.pth is missing; beside weights of CheXbert belong config.json and vocab.txt",
        ),
        (without("vocab.txt"), "vocab.txt is missing"),
        (without("config.json"), "config.json is missing"),
        (change_a_weight, "does not fit CheXbert with the config.json beside it .*linear_heads.3.bias"),
        (save_a_list, "holds no weights under model_state_dict"),
        (lambda folder: (folder / "chexbert.pth").write_text("<html>"), "is a text file and holds no weights"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json is damaged"),
    ],
)
def test_files_that_do_not_fit_are_refused(
    weights: Path, tmp_path: Path, spoil: Callable[[Path], object], complaint: str
) -> None:
    folder = Path(shutil.copytree(weights.parent, tmp_path / "copy"))
    spoil(folder)

    with pytest.raises(ModelError, match=complaint):
        ChexbertLabeler(folder / "chexbert.pth")
