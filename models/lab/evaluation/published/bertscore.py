"""BERTScore (Zhang and others 2020, arXiv 1904.09675), without weights of rarity and without rescaling.

Our own: bert-score has had no release since 2023 and fails with tokenizers of `transformers` 5 that have no longest
text; torchmetrics 1.9 compares texts of different lengths with those of other pairs once it takes several at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

import torch
from torch import Tensor
from transformers import AutoModel, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

_LAYER: Final = 17
"""The layer of roberta-large that bert-score takes; of a smaller network the last one is taken."""
_LONGEST: Final = 512


def bertscore(folder: Path, true: Sequence[str], generated: Sequence[str]) -> list[float]:
    """Return the F1 of each pair of texts by the model in a folder; 0 if one is empty."""
    disable_progress_bar()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModel.from_pretrained(folder, local_files_only=True).eval().to(device)
    layer = min(_LAYER, model.config.num_hidden_layers)
    # RoBERTa's words begin with a blank, the first one too. Its positions count from 2.
    before = " " if model.config.model_type == "roberta" else ""
    longest = min(_LONGEST, model.config.max_position_embeddings - 2)

    @lru_cache(maxsize=4096)
    def vectors(text: str) -> Tensor:
        """Return the vectors of the tokens [token, dim], of length 1, with those of begin and end."""
        ids = tokenizer(before + text.strip(), truncation=True, max_length=longest, return_tensors="pt").to(device)
        with torch.inference_mode():
            (hidden,) = model(**ids, output_hidden_states=True).hidden_states[layer]
        return torch.nn.functional.normalize(hidden.float(), dim=-1)

    def score(own: str, said: str) -> float:
        if not (own.strip() and said.strip()):
            return 0.0
        # As in bert-score begin and end have no say, but a word may be like them.
        cosines = vectors(said) @ vectors(own).T
        precision, recall = cosines.amax(dim=1)[1:-1].mean(), cosines.amax(dim=0)[1:-1].mean()
        return float(2 * precision * recall / (precision + recall))

    return [score(*pair) for pair in zip(true, generated, strict=True)]
