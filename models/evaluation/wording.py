"""How a manifest puts decisions into words, chosen on films for validation after the decisions themselves.

First the emphasis with which sentences find what is there best. Then the shortest report that loses nothing: the lowest
likeness from which a sentence may stand for another one, as long as both find and deny the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from models.answers import FilmReading
from models.evaluation import reports
from models.evaluation.cases import Truth
from models.evaluation.labeler import Labeler
from models.manifest import ReportRule

EMPHASES: Final = (0.0, 0.2, 0.3, 0.4)
LIKENESSES: Final = (0.95, 0.98, 0.99, 0.995)
_MOST_WRONG: Final = 0.01
"""Of the sentences that another one stands for, those whose place it should not take."""

Read = Callable[[ReportRule], Sequence[FilmReading]]


def best_wording(start: ReportRule, read: Read, truths: Sequence[Truth], labeler: Labeler) -> ReportRule:
    """Choose emphasis and likeness; of equals the first.

    read: reads all films by a rule
    """
    whole = replace(start, remove_above=1.0, soft_remove_above=1.0)
    said = {emphasis: read(replace(whole, emphasis=emphasis)) for emphasis in EMPHASES}
    emphasis = max(EMPHASES, key=lambda one: efficacy(said[one], truths, labeler))
    for likeness in LIKENESSES:
        rule = replace(whole, emphasis=emphasis, remove_above=likeness, soft_remove_above=likeness)
        if wrongly_removed(said[emphasis], read(rule), labeler) <= _MOST_WRONG:
            return rule
    return replace(whole, emphasis=emphasis)


def efficacy(readings: Sequence[FilmReading], truths: Sequence[Truth], labeler: Labeler) -> float:
    """Give the micro F1 of reports."""
    texts = [" ".join(sentence.text for sentence in reading.sentences) for reading in readings]
    labels = reports.labels_of(truths, reports.said_of(labeler, texts), labeler.classes)
    return float(reports.efficacy(labels)["ce_micro_f1"] or 0.0)


def wrongly_removed(whole: Sequence[FilmReading], short: Sequence[FilmReading], labeler: Labeler) -> float:
    """Give the share of removed sentences that stood for something else than what stands for them; 0 without any."""
    removed = [
        labeler.label(own) != labeler.label(instead)
        for one, other in zip(whole, short, strict=True)
        for own, instead in zip(_texts(one), _texts(other), strict=True)
        if own != instead
    ]
    return sum(removed) / len(removed) if removed else 0.0


def _texts(reading: FilmReading) -> list[str]:
    """Give the sentence that stands for each prompt's own."""
    return ["" if one.sentence is None else reading.sentences[one.sentence].text for one in reading.prompts]
