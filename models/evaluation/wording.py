"""How a manifest puts decisions into words, chosen on films for validation after the decisions themselves.

First the emphasis: of those with which sentences do not contradict what was decided, the one that finds best what is
there. Then the shortest report that loses nothing: the lowest likeness from which a sentence may stand for another one,
as long as both find and deny the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from models.answers import FilmReading
from models.evaluation import reports
from models.evaluation.cases import NO_FINDING, Truth
from models.evaluation.labeler import Labeler, Mark
from models.manifest import ReportRule

EMPHASES: Final = (0.0, 0.2, 0.3, 0.4)
LIKENESSES: Final = (0.95, 0.98, 0.99, 0.995)
_MOST_WRONG: Final = 0.01
"""Of sentences: those that contradict a decision, and those whose place another one should not take."""
_OPPOSITE: Final[Mapping[str, Mark]] = {"present": "negative", "absent": "positive"}
"""By decision: how a sentence that contradicts it is marked."""

Read = Callable[[ReportRule], Sequence[FilmReading]]


def best_wording(start: ReportRule, read: Read, truths: Sequence[Truth], labeler: Labeler) -> ReportRule:
    """Choose emphasis and likeness; of equals the first.

    read: reads all films by a rule
    """
    whole = replace(start, remove_above=1.0, soft_remove_above=1.0)
    said = {emphasis: read(replace(whole, emphasis=emphasis)) for emphasis in EMPHASES}
    wrong = {one: contradicted(said[one], labeler) for one in EMPHASES}
    allowed = max(_MOST_WRONG, min(wrong.values()))
    emphasis = max(
        (one for one in EMPHASES if wrong[one] <= allowed), key=lambda one: efficacy(said[one], truths, labeler)
    )
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


def contradicted(readings: Sequence[FilmReading], labeler: Labeler) -> float:
    """Give the share of decided findings whose sentence says the opposite; 0 without any."""
    contradictions = [
        labeler.label(text).get(prompt.key) == _OPPOSITE[prompt.state]
        for reading in readings
        for prompt, text in zip(reading.prompts, _texts(reading), strict=True)
        if prompt.key != NO_FINDING and prompt.state is not None and prompt.state in _OPPOSITE
    ]
    return sum(contradictions) / len(contradictions) if contradictions else 0.0


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
