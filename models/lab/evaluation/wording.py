"""Chooses how a manifest's decisions are put into words, on validation films, after the decisions are chosen.

First the emphasis: among the values whose sentences do not contradict the decisions, the one with the best clinical
efficacy.
Then the shortest report that loses nothing: the lowest similarity above which a sentence may replace another, as long
as both report and deny the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from language.labels import NO_FINDING, Labeler, Mark
from models.contract import FilmReading
from models.lab.evaluation import reports
from models.lab.evaluation.cases import Truth
from models.manifest import ReportRule

EMPHASES: Final = (0.0, 0.2, 0.3, 0.4)
LIKENESSES: Final = (0.95, 0.98, 0.99, 0.995)
_MOST_WRONG: Final = 0.01
"""The largest share of sentences that may contradict a decision, or be wrongly replaced by another sentence."""
_OPPOSITE: Final[Mapping[str, Mark]] = {"present": "negative", "absent": "positive"}
"""For each decision, the mark of a sentence that contradicts it."""

Read = Callable[[ReportRule], Sequence[FilmReading]]


def best_wording(start: ReportRule, read: Read, truths: Sequence[Truth], labeler: Labeler) -> ReportRule:
    """Choose emphasis and similarity; among equals the first.

    read: reads all films by a rule
    """
    whole = replace(start, remove_above=1.0, soft_remove_above=1.0)
    said = {emphasis: read(replace(whole, emphasis=emphasis)) for emphasis in EMPHASES}
    wrong = {candidate: contradicted(said[candidate], labeler) for candidate in EMPHASES}
    allowed = max(_MOST_WRONG, min(wrong.values()))
    emphasis = max(
        (candidate for candidate in EMPHASES if wrong[candidate] <= allowed),
        key=lambda candidate: efficacy(said[candidate], truths, labeler),
    )
    for likeness in LIKENESSES:
        rule = replace(whole, emphasis=emphasis, remove_above=likeness, soft_remove_above=likeness)
        if wrongly_removed(said[emphasis], read(rule), labeler) <= _MOST_WRONG:
            return rule
    return replace(whole, emphasis=emphasis)


def efficacy(readings: Sequence[FilmReading], truths: Sequence[Truth], labeler: Labeler) -> float:
    """Return the micro F1 of reports."""
    texts = [" ".join(sentence.text for sentence in reading.sentences) for reading in readings]
    labels = reports.labels_of(truths, reports.said_of(labeler, texts), labeler.classes)
    return float(reports.efficacy(labels)["ce_micro_f1"] or 0.0)


def contradicted(readings: Sequence[FilmReading], labeler: Labeler) -> float:
    """Return the share of decided findings whose sentence says the opposite; 0 if there are none."""
    contradictions = [
        labeler.label(text).get(prompt.key) == _OPPOSITE[prompt.state]
        for reading in readings
        for prompt, text in zip(reading.prompts, _texts(reading), strict=True)
        if prompt.key != NO_FINDING and prompt.state is not None and prompt.state in _OPPOSITE
    ]
    return sum(contradictions) / len(contradictions) if contradictions else 0.0


def wrongly_removed(whole: Sequence[FilmReading], short: Sequence[FilmReading], labeler: Labeler) -> float:
    """Return the share of removed sentences whose replacement says something else; 0 if there are none."""
    removed = [
        labeler.label(own) != labeler.label(instead)
        for before, after in zip(whole, short, strict=True)
        for own, instead in zip(_texts(before), _texts(after), strict=True)
        if own != instead
    ]
    return sum(removed) / len(removed) if removed else 0.0


def _texts(reading: FilmReading) -> list[str]:
    """Return the sentence that stands for each prompt."""
    return ["" if prompt.sentence is None else reading.sentences[prompt.sentence].text for prompt in reading.prompts]
