"""Turns features into sentences: moves them toward the decision, generates, removes duplicates. Numpy only."""

from __future__ import annotations

import time
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from models.contract import FindingState, SentenceRule
from models.engines import Engine, FloatArray, IntArray
from models.manifest import ReportRule
from models.reading.contradictions import denied_by_sentence
from models.reading.decided_film import DecidedFilm
from models.reading.deduplicate import deduplicate, similarity_of
from models.reading.phrasebook import Phrasebook, emphasize
from models.reading.sentence_check import Settled, settle
from models.reading.tokenizers import SENTENCE_END, SentenceTokenizer

DIRECTIONS: Final[Mapping[FindingState, int]] = {
    FindingState.PRESENT: 1,
    FindingState.INDETERMINATE: 0,
    FindingState.UNCALIBRATED: 1,
    FindingState.ABSENT: -1,
    FindingState.LEFT_OUT: -1,
}
"""Where the sentence of a finding is moved to; see `ReportRule.emphasis`."""

_FIRM: Final = 0.5
"""The least emphasis of a second try, after a sentence contradicted the decision."""

_FEW: Final = 4
"""So many sentences, as for a question, are generated with their second tries beside them. On a processor twice as many
rows take hardly longer, because each token reads all weights once."""

_BATCH: Final = 32
"""Sentences generated at once, as published (spec §7.3): 25 MB of keys and values each at full size."""

OnWritten = Callable[[int, float], None]
"""Called with the number of generated tokens and the seconds that took."""


class Speech:
    """Generates sentences with one engine, by one manifest's rule."""

    def __init__(
        self,
        engine: Engine,
        sentences: SentenceTokenizer,
        phrasebook: Phrasebook,
        rule: ReportRule,
        *,
        on_written: OnWritten,
    ) -> None:
        self._engine = engine
        self._sentences = sentences
        self._phrasebook = phrasebook
        self._rule = rule
        self._on_written = on_written

    def sentences(
        self, film: DecidedFilm, prompt_indices: Sequence[int], *, rule: SentenceRule
    ) -> tuple[DecidedFilm, Settled]:
        """Generate the sentences of some prompts, and let those pass that may leave.

        Returns also the film, with the findings in doubt that all of their own sentences deny.
        """
        emphasis = self._rule.emphasis
        shares = emphasis, max(2 * emphasis, _FIRM)
        tried = [index for index in prompt_indices if index in film.reported]
        if rule == "raw" or len(prompt_indices) > _FEW:
            tried = []
        features = [
            self._emphasized(film, share=share)[list(indices)]
            for share, indices in zip(shares, (prompt_indices, tried), strict=True)
        ]
        generated = self.generate(np.concatenate(features))
        texts = dict(zip(prompt_indices, generated[: len(prompt_indices)], strict=True))
        firm = dict(zip(tried, generated[len(prompt_indices) :], strict=True))

        def again(indices: Sequence[int]) -> list[str]:
            new = [index for index in indices if index not in firm]
            firm.update(zip(new, self._generate(film, new, share=shares[1]), strict=True))
            return [firm[index] for index in indices]

        decided = film.decided()
        doubtful = denied_by_sentence(decided, texts)
        denied = denied_by_sentence(decided, dict(zip(doubtful, again(doubtful), strict=True)))
        doubting = film.doubting(dict.fromkeys(denied, "sentence_denies"))
        if rule == "raw":
            return doubting, Settled(texts={index: text for index, text in texts.items() if text}, generated=texts)
        deniable = doubting.deniable if rule == "marked" else frozenset[int]()
        return doubting, settle(replace(doubting.decided(), deniable=deniable), texts, again)

    def _generate(self, film: DecidedFilm, indices: Sequence[int], *, share: float) -> list[str]:
        """Generate sentences of features that are moved toward the decision by a share of their length."""
        return self.generate(self._emphasized(film, share=share)[list(indices)])

    def _emphasized(self, film: DecidedFilm, *, share: float) -> FloatArray:
        """Move features [prompt, dim] toward the decision; an indeterminate one is unchanged."""
        features, vectors = film.features, film.vectors
        if not share:
            return features
        steps = np.array([share * DIRECTIONS[film.states[index]] for index in vectors.judged], dtype=np.float32)
        judged = list(vectors.judged)
        moved = features.copy()
        moved[judged] = emphasize(features[judged], positive=vectors.positive, negative=vectors.negative, steps=steps)
        return moved

    def generate(self, features: FloatArray) -> list[str]:
        """Generate the sentences of features [sentence, dim]."""
        batches = [features[start : start + _BATCH] for start in range(0, len(features), _BATCH)]
        return [printable(self._sentences.decode(ids)) for batch in batches for ids in self._write(batch)]

    def _write(self, features: FloatArray) -> IntArray:
        """Generate the token ids of one batch, and report their number, without end tokens, and the time."""
        began = time.monotonic()
        ids = self._engine.write(features)
        self._on_written(int(np.count_nonzero(ids != SENTENCE_END)), time.monotonic() - began)
        return ids

    def without_duplicates(
        self, texts: Mapping[int, str], preference: FloatArray, states: Mapping[int, FindingState], *, is_checked: bool
    ) -> tuple[list[tuple[int, str]], dict[int, int]]:
        """Remove duplicate sentences (spec §9.1.6); texts: by index of the prompt; preference: [prompt].

        With emphasis, a sentence never replaces a sentence with another decision, however similar they are. A checked
        sentence of a finding was checked for that finding alone, so it replaces none of another text, and none of a
        region replaces it: that one might be replaced by another text in turn.
        Returns the sentences that stay, and for each prompt with a sentence the index of the one that stands for it.
        """
        spoken = list(texts.items())
        if not spoken:
            return [], {}
        similarity = similarity_of(self._phrasebook.embed([text for _, text in spoken]))
        if self._rule.emphasis:
            decided = np.array([DIRECTIONS[states[index]] if index in states else np.nan for index, _ in spoken])
            similarity[np.subtract.outer(decided, decided) ** 2 > 0] = 0.0
        if is_checked:
            own = np.array([index in states for index, _ in spoken])
            same = np.array([[first == second for _, second in spoken] for _, first in spoken])
            similarity[np.logical_or.outer(own, own) & ~same] = 0.0
        preferred = [preference[index] + (is_checked and index in states) for index, _ in spoken]
        kept, survivors = deduplicate(similarity, preferred, self._rule)
        place = {sentence: number for number, sentence in enumerate(kept)}
        standing = {index: place[survivors[sentence]] for sentence, (index, _) in enumerate(spoken)}
        return [spoken[sentence] for sentence in kept], standing


def printable(text: str) -> str:
    """Remove surrounding blanks and all control characters, which neither DICOM nor HL7 text may contain.

    A line break or tab separates words, so it becomes a blank.
    """
    spaced = "".join(" " if character.isspace() else character for character in text)
    return "".join(character for character in spaced if not unicodedata.category(character).startswith("C")).strip()
