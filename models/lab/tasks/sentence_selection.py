"""The published selection of a report's sentences (spec §9.1), for the comparison with the published network.

The node's reports come from `models.reading.reader`, which does not have the errors of this selection.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from models.engines import FloatArray
from models.lab.tasks.batch import as_array
from models.manifest import ReportRule
from models.reading.deduplicate import deduplicate
from models.reading.phrasebook import contrast


def positiveness(features: Tensor, positive: Tensor, negative: Tensor) -> FloatArray:
    """Return the positiveness of features [F, Q, dim] against the means of K prompt pairs [K, dim]: [F, Q]."""
    return contrast(
        as_array(features), positive=as_array(positive.mean(dim=0)), negative=as_array(negative.mean(dim=0))
    )


def greatest_positiveness(features: Tensor, positive: Tensor, negative: Tensor) -> FloatArray:
    """Return the same by the pair [K, dim] with the greatest value: [F, Q]; published as cls_prompt_average = false."""
    by_pair = contrast(as_array(features)[:, :, np.newaxis], positive=as_array(positive), negative=as_array(negative))
    greatest: FloatArray = by_pair.max(axis=-1)
    return greatest


def gets_sentence(
    noted: FloatArray,
    pathologies: Sequence[bool],
    *,
    ignore_negative_pathologies: bool = False,
    all_regions: bool = False,
) -> NDArray[np.bool_]:
    """Choose the prompts that get a sentence, by their positiveness [F, Q]: [F, Q].

    pathologies: whether each of the Q prompts asks for a pathology, which always gets a sentence unless ignored
    all_regions: whether a region always gets one, too
    """
    always = np.where(pathologies, not ignore_negative_pathologies, all_regions)
    chosen: NDArray[np.bool_] = (noted > 0.5) | always
    return chosen


def published_selection(similarity: FloatArray, preference: FloatArray, *, rule: ReportRule) -> list[int]:
    """Choose the sentences that stay; each is shown with the prompt of the same number (spec §9.1, BUG-8).

    The published code uses a sentence's number as an index into all prompts: after the first prompt without a sentence,
    every sentence is ranked, named and located by another prompt's numbers. Never show the result to a person: it only
    serves to prove that nothing else differs.
    similarity: [S, S], of the generated sentences; preference: [Q], of all prompts
    """
    kept, _ = deduplicate(similarity, preference[: len(similarity)], rule)
    return list(kept)
