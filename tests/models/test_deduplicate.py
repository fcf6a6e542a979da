"""De-duplication against the published selections, and against its own words in an independent form."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from models.engines import FloatArray
from models.manifest import ReportRule
from models.reading.deduplicate import deduplicate


def _one_by_one(
    similarity: FloatArray, preference: Sequence[float], rule: ReportRule
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """spec §9.1.6, word by word: an independent form to compare with."""
    kept = list(range(len(similarity)))
    follows: dict[int, int] = {}
    while len(kept) > 1:
        likeness, first, second = max(
            ((similarity[a, b], -a, -b) for a in kept for b in kept if a != b), key=lambda pair: pair
        )
        first, second = -first, -second
        if likeness < rule.remove_above and (likeness < rule.soft_remove_above or len(kept) <= rule.max_sentences):
            break
        gone = first if preference[first] < preference[second] else second
        follows[gone] = second if gone == first else first
        kept.remove(gone)

    def survivor(index: int) -> int:
        return survivor(follows[index]) if index in follows else index

    return tuple(kept), tuple(survivor(index) for index in range(len(similarity)))


@st.composite
def _sentences(draw: st.DrawFn) -> tuple[FloatArray, list[float], ReportRule]:
    count = draw(st.integers(0, 7))
    # Few distinct values, so that ties are common.
    half = draw(arrays.arrays(np.float32, (count, count), elements=st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])))
    similarity = np.triu(half, 1) + np.triu(half, 1).T
    preference = draw(st.lists(st.sampled_from([0.1, 0.2, 0.3]), min_size=count, max_size=count))
    rule = ReportRule(
        remove_above=draw(st.sampled_from([0.5, 0.75, 1.0])),
        soft_remove_above=draw(st.sampled_from([0.25, 0.5])),
        max_sentences=draw(st.integers(1, 4)),
    )
    return similarity, preference, rule


@given(_sentences())
def test_duplicates_go_in_the_published_order_and_break_ties_so(
    drawn: tuple[FloatArray, list[float], ReportRule],
) -> None:
    similarity, preference, rule = drawn

    assert deduplicate(similarity, preference, rule) == _one_by_one(similarity, preference, rule)
