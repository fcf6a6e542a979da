"""Finds generated sentences with the same content, and decides which of them stays (spec §9.1.6). Numpy only.

For every removed sentence the sentence that replaces it is known, so that no finding loses its sentence.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from models.manifest import ReportRule


def similarity_of(embeddings: NDArray[np.float32]) -> NDArray[np.float32]:
    """Compare sentence embeddings [sentence, dim]: (cosine + 1) / 2; 0 on the diagonal, so none matches itself."""
    unit = unit_length(embeddings)
    similarity: NDArray[np.float32] = (unit @ unit.T + np.float32(1.0)) / np.float32(2.0)
    np.fill_diagonal(similarity, 0.0)
    return similarity


def unit_length(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scale vectors along the last axis to length 1; a zero vector stays zero."""
    length = np.linalg.norm(vectors, axis=-1, keepdims=True)
    unit: NDArray[np.float32] = (vectors / np.maximum(length, np.float32(1e-12))).astype(np.float32)
    return unit


def deduplicate(
    similarity: NDArray[np.float32], preference: Sequence[float] | NDArray[np.float32], rule: ReportRule
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Repeatedly remove the less preferred of the two most similar sentences.

    similarity: [sentence, sentence], symmetric, 0 on the diagonal
    Returns the indices that stay, in order, and for every sentence the index of the sentence that stands for it, its
    own if it stays.
    Ties as published: among equally similar pairs the first in reading order; at equal preference the second sentence
    is removed.
    """
    count = len(similarity)
    among = np.array(similarity, dtype=np.float32)
    stands_for = list(range(count))
    kept = count
    while kept > 1:
        first, second = (int(index) for index in np.unravel_index(np.argmax(among), among.shape))
        likeness = among[first, second]
        crowded = kept > rule.max_sentences
        if likeness < rule.remove_above and not (crowded and likeness >= rule.soft_remove_above):
            break
        gone, stays = (first, second) if preference[first] < preference[second] else (second, first)
        among[gone, :] = among[:, gone] = -1.0
        stands_for[gone] = stays
        kept -= 1
    survivors = tuple(_last(stands_for, index) for index in range(count))
    return tuple(index for index in range(count) if stands_for[index] == index), survivors


def _last(stands_for: Sequence[int], index: int) -> int:
    """Follow the chain of removals to the sentence that stayed."""
    while stands_for[index] != index:
        index = stands_for[index]
    return index
