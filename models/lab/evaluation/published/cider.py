"""CIDEr-D (Vedantam, Zitnick, Parikh 2015, arXiv 1411.5726) of generated texts with one true text each.

Our own, because pycocoevalcap, which the published code uses, has had no release since 2020 and is 100 MB of Java
programs; aac-metrics brings sentence-transformers. How many true texts hold an n-gram is counted in the texts that are
measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import exp, log, sqrt
from typing import Final

Words = Sequence[str]
_Gram = tuple[str, ...]

_LONGEST: Final = 4
_SPREAD: Final = 6.0
"""The standard deviation of the penalty for another length, in bigrams."""


def words_of(text: str) -> list[str]:
    """Cut a text into words, as published: at blanks, with a blank before each period; capitals are kept."""
    return text.replace(".", " .").split()


def cider(true: Sequence[Words], generated: Sequence[Words]) -> list[float]:
    """Return the score of each text, 0 to 10; 0 for all if there is only one, for then no n-gram is rarer than others.

    For each length of n-grams: the cosine of the two texts' counts, weighted by rarity; of n-grams that the generated
    text has more often or with more weight, what the true one has. The score is the mean, times 10, times the penalty.
    """
    documents = Counter(gram for words in true for gram in _grams(words))
    rarest = log(len(true)) if true else 0.0

    def weighted(words: Words) -> list[dict[_Gram, float]]:
        weights: list[dict[_Gram, float]] = [{} for _ in range(_LONGEST)]
        for gram, count in _grams(words).items():
            weights[len(gram) - 1][gram] = count * (rarest - log(max(1, documents[gram])))
        return weights

    scores = []
    for own, said in zip(true, generated, strict=True):
        longer = max(0, len(said) - 1) - max(0, len(own) - 1)
        alike = [_alike(*pair) for pair in zip(weighted(said), weighted(own), strict=True)]
        scores.append(10 * sum(alike) / _LONGEST * exp(-(longer**2) / (2 * _SPREAD**2)))
    return scores


def _grams(words: Words) -> Counter[_Gram]:
    """Count the n-grams of one to four words."""
    return Counter(
        tuple(words[start : start + length])
        for length in range(1, _LONGEST + 1)
        for start in range(len(words) - length + 1)
    )


def _alike(said: Mapping[_Gram, float], own: Mapping[_Gram, float]) -> float:
    lengths = sqrt(sum(weight**2 for weight in said.values()) * sum(weight**2 for weight in own.values()))
    shared = sum(min(weight, own[gram]) * own[gram] for gram, weight in said.items() if gram in own)
    return shared / lengths if lengths else 0.0
