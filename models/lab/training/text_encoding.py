"""Texts as vectors and as target tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.lab.losses.language import Lesson, lesson
from models.network.prompt_encoder import PromptEncoder
from models.reading.tokenizers import PromptTokenizer, SentenceTokenizer

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """The two tokenizers of a run, with a cache of encoded texts.

    learned: the words of all its texts, sorted; empty if the prompt encoder keeps every token
    """

    prompts: PromptTokenizer
    sentences: SentenceTokenizer
    max_length: int
    learned: tuple[str, ...] = ()
    _prompt_ids: dict[str, IntArray] = field(default_factory=dict)
    _sentence_ids: dict[str, list[int]] = field(default_factory=dict)

    def prompt_ids(self, texts: Sequence[str]) -> Tensor:
        """Return the ids of texts [text, token], without the trailing padding that all of them share."""
        if new := [text for text in dict.fromkeys(texts) if text not in self._prompt_ids]:
            self._prompt_ids.update(zip(new, self.prompts.encode(new), strict=True))
        rows = np.stack([self._prompt_ids[text] for text in texts])
        longest = int(rows.argmax(axis=1).max()) + 1
        return torch.from_numpy(rows[:, :longest])

    def lesson(self, texts: Sequence[str]) -> Lesson:
        """Return sentences as target tokens."""
        for text in texts:
            if text not in self._sentence_ids:
                self._sentence_ids[text] = self.sentences.encode(text)
        return lesson([self._sentence_ids[text] for text in texts], max_length=self.max_length)


class TextEncoder:
    """Vectors of texts. If the prompt encoder is frozen, each text is encoded only once."""

    def __init__(self, encoder: PromptEncoder, vocabulary: Vocabulary, *, learns: bool, forgets: float) -> None:
        """Take forgets: while the encoder learns, the share of tokens to replace by the token for unseen words."""
        self._encoder = encoder
        self._vocabulary = vocabulary
        self._learns = learns
        self._forgets = forgets if encoder.tokens.shared else 0.0
        self._kept: dict[str, Tensor] = {}

    def vectors(self, texts: Sequence[str]) -> dict[str, Tensor]:
        """Encode texts, each once."""
        unique = list(dict.fromkeys(texts))
        if self._learns:
            ids = self._vocabulary.prompt_ids(unique).to(self._encoder.projection.device)
            return dict(zip(unique, self._encoder(self._forget(ids)), strict=True))
        if new := [text for text in unique if text not in self._kept]:
            with torch.no_grad():
                ids = self._vocabulary.prompt_ids(new).to(self._encoder.projection.device)
                self._kept.update(zip(new, self._encoder(ids), strict=True))
        return {text: self._kept[text] for text in unique}

    def _forget(self, ids: Tensor) -> Tensor:
        if not self._forgets:
            return ids
        forgotten = torch.rand(ids.shape, device=ids.device) < self._forgets
        marks = torch.zeros_like(forgotten)
        marks[:, 0] = True
        # The end token has the largest id; it must stay, because the encoder reads the vector there.
        marks.scatter_(1, ids.argmax(dim=1, keepdim=True), True)
        return ids.masked_fill(forgotten & ~marks, self._encoder.tokens.shared_id)
