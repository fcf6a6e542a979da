"""Phrases as vectors, and the comparison of a feature with a phrase and its opposite. Numpy only.

Embeddings are not normalized, and synonyms are averaged as raw embeddings (spec §3); only the comparison of spec §8
normalizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from models.contract import PromptKind, Question, ReaderPrompt
from models.decisions import sigmoid
from models.engines import Engine, FloatArray
from models.engines.scheduler import MOST_TOKENS
from models.errors import ModelError
from models.reading.deduplicate import unit_length
from models.reading.tokenizers import PROMPT_LIMIT, PromptTokenizer

_NONE: FloatArray = np.zeros((0, 0), dtype=np.float32)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PromptVectors:
    """Embeddings of a tuple of prompts.

    queries: [prompt, dim]
    judged: the indices of the prompts that have negatives, J of them
    positive, negative: [J, dim]
    """

    queries: FloatArray
    judged: tuple[int, ...]
    positive: FloatArray
    negative: FloatArray


class Phrasebook:
    """Embeds phrases with an engine and caches those of prompt sets, which are used for every film."""

    def __init__(self, engine: Engine, tokenizer: PromptTokenizer) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self.vectors = lru_cache(maxsize=16)(self._vectors)

    def embed(self, texts: Sequence[str]) -> FloatArray:
        """Embed at least one phrase or sentence: [text, dim]. Each text is encoded once, without its padding.

        The encoder is causal (spec §3), so no padding after the end token changes a vector. Texts of like length are
        encoded together.
        """
        distinct = list(dict.fromkeys(texts))
        tokens = self._tokenizer.encode(distinct)
        lengths = tokens.argmax(axis=1) + 1  # the end token has the largest id
        vectors: dict[str, FloatArray] = {}
        for part in _parts_of(lengths):
            encoded = self._engine.encode_prompts(tokens[part, : lengths[part[-1]]])
            vectors.update(zip([distinct[index] for index in part], encoded, strict=True))
        return np.stack([vectors[text] for text in texts])

    def check(self, prompts: Sequence[ReaderPrompt]) -> None:
        """Raise ModelError if a phrase of a prompt would be truncated."""
        for prompt in prompts:
            for phrase in (*prompt.phrases, *prompt.negatives):
                if (count := self._tokenizer.count(phrase)) > PROMPT_LIMIT:
                    raise ModelError(
                        f'prompt {prompt.key}: the phrase "{phrase[:40]}..." has {count} tokens, '
                        f"the network reads {PROMPT_LIMIT}; shorten it"
                    )

    def pairs(
        self, questions: Sequence[Question], reference: tuple[ReaderPrompt, ...]
    ) -> tuple[FloatArray, FloatArray]:
        """Embed each question and its opposite: two arrays [question, dim].

        A box alone is compared with the mean of the judged prompts of the reference (spec §9.1.3); raises ValueError
        if there are none, and for a prompt that would be truncated.
        """
        phrases = [question.prompt.strip() for question in questions if question.prompt is not None]
        texts = phrases + [opposite(phrase, reference) for phrase in phrases]
        if any(self._tokenizer.count(text) > PROMPT_LIMIT for text in texts):
            raise ValueError(
                f"the prompt is longer than the network reads ({PROMPT_LIMIT} tokens, also when negated); shorten it"
            )
        embeddings = self.embed(texts) if texts else _NONE
        worded = iter(zip(embeddings[: len(phrases)], embeddings[len(phrases) :], strict=True))
        pairs = [next(worded) if question.prompt is not None else self._common(reference) for question in questions]
        return np.stack([positive for positive, _ in pairs]), np.stack([negative for _, negative in pairs])

    def _common(self, reference: tuple[ReaderPrompt, ...]) -> tuple[FloatArray, FloatArray]:
        vectors = self.vectors(reference)
        if not vectors.judged:
            raise ValueError("a question about a box alone needs reference prompts that have negatives")
        return vectors.positive.mean(axis=0), vectors.negative.mean(axis=0)

    def _vectors(self, prompts: tuple[ReaderPrompt, ...]) -> PromptVectors:
        """Embed all phrases of a tuple of prompts in one call."""
        judged = tuple(index for index, prompt in enumerate(prompts) if prompt.kind is not PromptKind.REGION)
        groups = [prompt.phrases for prompt in prompts] + [prompts[index].negatives for index in judged]
        embeddings = self.embed([phrase for group in groups for phrase in group])
        ends = np.cumsum([len(group) for group in groups])[:-1]
        means = np.stack([group.mean(axis=0) for group in np.split(embeddings, ends)])
        queries = means[: len(prompts)]
        return PromptVectors(
            queries=queries, judged=judged, positive=queries[list(judged)], negative=means[len(prompts) :]
        )


def _parts_of(lengths: NDArray[np.int64]) -> list[list[int]]:
    """Divide texts [text] into parts of at most MOST_TOKENS tokens with their padding, the longest of a part last."""
    parts: list[list[int]] = [[]]
    for index in np.argsort(lengths, kind="stable").tolist():
        if parts[-1] and (len(parts[-1]) + 1) * lengths[index] > MOST_TOKENS:
            parts.append([])
        parts[-1].append(index)
    return parts


def opposite(phrase: str, reference: Sequence[ReaderPrompt]) -> str:
    """Word the absence of a phrase (spec §11); if the reference has a negative for the phrase, use that.

    An abbreviation keeps its capitals, as published: "No COPD or emphysema".
    """
    for prompt in reference:
        if phrase in prompt.phrases and prompt.negatives:
            return prompt.negatives[0]
    abbreviated = phrase[1:2].isupper()
    return "No " + (phrase if abbreviated else phrase[:1].lower() + phrase[1:])


def differences(features: FloatArray, *, positive: FloatArray, negative: FloatArray) -> FloatArray:
    """Return the difference of the cosines of each feature to a pair of embeddings (spec §8).

    features: [feature, dim]; positive, negative: [feature, dim], or [dim] for all
    """
    unit = unit_length(features)
    made: FloatArray = (unit * (unit_length(positive) - unit_length(negative))).sum(axis=-1)
    return made


def contrast(
    features: FloatArray, *, positive: FloatArray, negative: FloatArray, temperature: float = 1.0
) -> FloatArray:
    """Compare features with pairs of embeddings as published (spec §8): returns a probability per feature."""
    made = sigmoid(differences(features, positive=positive, negative=negative) / temperature)
    return made.astype(np.float32)


def emphasize(features: FloatArray, *, positive: FloatArray, negative: FloatArray, steps: FloatArray) -> FloatArray:
    """Move features along the line between a pair of embeddings, the same pair that `contrast` uses.

    features, positive, negative: [feature, dim]; steps: [feature], as shares of a feature's length, above 0 toward the
    positive one
    """
    line = unit_length(unit_length(positive) - unit_length(negative))
    lengths = np.linalg.norm(features, axis=-1, keepdims=True)
    moved: FloatArray = (features + steps[:, np.newaxis] * lengths * line).astype(np.float32)
    return moved
