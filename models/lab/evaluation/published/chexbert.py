"""CheXbert (Smit and others 2020, arXiv 2004.09167), which labels reports, from a file of its published weights.

It is BERT-base with a linear layer for each of 14 classes. Beside the weights lie `config.json` and `vocab.txt` of
bert-base-uncased. Nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch
from tokenizers.implementations.bert_wordpiece import BertWordPieceTokenizer
from torch import Tensor, nn
from transformers import BertConfig, BertModel

from language.labels import NO_FINDING, Mark
from models.checkpoint.files import file_sha256
from models.checkpoint.source import open_weights
from models.errors import ModelError
from models.progress import quiet

_CLASSES: Final = (
    "enlarged_cardiomediastinum",
    "cardiomegaly",
    "lung_opacity",
    "lung_lesion",
    "edema",
    "consolidation",
    "pneumonia",
    "atelectasis",
    "pneumothorax",
    "pleural_effusion",
    "pleural_other",
    "fracture",
    "support_devices",
    NO_FINDING,
)
"""In the order of its layers."""
_MARKS: Final[tuple[Mark | None, ...]] = (None, "positive", "negative", "uncertain")
"""By the number of an output; of "no finding" only the first two."""
_BESIDE: Final = "config.json and vocab.txt of bert-base-uncased"
_LONGEST: Final = 512
_POSITIONS: Final = "bert.embeddings.position_ids"
"""A table of numbers from 0 that older versions of `transformers` stored."""


class Chexbert(nn.Module):
    """The network; its weights have the published names."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.bert = BertModel(config)
        outputs = [2 if key == NO_FINDING else len(_MARKS) for key in _CLASSES]
        self.linear_heads = nn.ModuleList(nn.Linear(config.hidden_size, count) for count in outputs)

    def forward(self, ids: Tensor) -> list[int]:
        """Return the output of each class for the token ids [1, token] of a text."""
        first = self.bert(ids).last_hidden_state[0, 0]
        return [int(head(first).argmax()) for head in self.linear_heads]


class ChexbertLabeler:
    """Labels texts; see `language.labels.Labeler`."""

    classes = _CLASSES

    def __init__(self, weights: Path) -> None:
        """Open the weights. Raises ModelError if a file is missing, damaged, or of another network."""
        folder, place = weights.parent, f"--labeler: {weights}"
        for needed in (weights, folder / "config.json", folder / "vocab.txt"):
            if not needed.is_file():
                raise ModelError(f"{needed} is missing; beside weights of CheXbert belong {_BESIDE}")
        content = open_weights(weights, place=place, report=quiet)
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            self._network = Chexbert(BertConfig.from_json_file(folder / "config.json")).eval()
        except (OSError, TypeError, ValueError) as error:
            raise ModelError(f"{folder / 'config.json'} is damaged ({error}); it is not that of a BERT") from error
        self._fill(content.get("model_state_dict", content), place)
        self._network.to(self._device)
        self._tokenizer = BertWordPieceTokenizer(str(folder / "vocab.txt"), lowercase=True)
        self.name = f"chexbert, {weights.name}, sha256 {file_sha256(weights)[:12]}"

    def _fill(self, content: object, place: str) -> None:
        if not isinstance(content, Mapping):
            raise ModelError(f"{place} holds no weights under model_state_dict; give the published chexbert.pth")
        own = {str(name).removeprefix("module."): value for name, value in content.items()}
        own.pop(_POSITIONS, None)
        try:
            self._network.load_state_dict(own)
        except RuntimeError as error:
            cause = " ".join(str(error).split())[:300]
            raise ModelError(f"{place} does not fit CheXbert with the config.json beside it ({cause})") from error

    def label(self, report: str) -> Mapping[str, Mark]:
        """Mark the classes of a text; of a long one only the first 511 tokens count, as published."""
        ids = self._tokenizer.encode(" ".join(report.split())).ids
        if len(ids) > _LONGEST:
            ids = [*ids[: _LONGEST - 1], ids[-1]]
        with torch.inference_mode():
            outputs = self._network(torch.tensor([ids], device=self._device))
        marks = {key: _MARKS[output] for key, output in zip(_CLASSES, outputs, strict=True)}
        return {key: mark for key, mark in marks.items() if mark is not None}
