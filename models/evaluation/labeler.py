"""What a report says of the 14 classes of CheXpert: there, uncertain, or not there. By rules, written for this project.

The words stand in `labels.toml`. Another labeler takes its place by keeping `Labeler`; figures made by two of them are
not comparable.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NotRequired, Protocol, TypedDict, cast

from models.evaluation.cases import DEVICES, NO_FINDING

Mark = Literal["positive", "uncertain", "negative"]

_FILE = Path(__file__).with_name("labels.toml")
_ORDER: tuple[Mark, ...] = ("positive", "uncertain", "negative")
_END_OF_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")


class Labeler(Protocol):
    """Reads reports."""

    @property
    def name(self) -> str:
        """The name that figures are printed with."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes it knows, by CheXpert's keys."""

    def label(self, report: str) -> Mapping[str, Mark]:
        """Mark every class that a report speaks of; of several sentences the one that finds most counts."""


def says(marks: Mapping[str, Mark], key: str) -> bool:
    """Say whether a report finds a class; what is uncertain counts, as in CheXbert's figures of generated reports."""
    return marks.get(key) in ("positive", "uncertain")


class RuleLabeler:
    """Mentions, negation and uncertainty by words around a mention."""

    name = "rules"

    def __init__(self) -> None:
        """Read the rules."""
        file = cast("_File", tomllib.loads(_FILE.read_text(encoding="utf-8")))
        self._cues = {kind: _any(words) for kind, words in file["cues"].items()}
        self._rules = {key: _rule(one) for key, one in file["classes"].items()}
        self.classes = (*sorted(self._rules), NO_FINDING)

    def label(self, report: str) -> Mapping[str, Mark]:
        """As in `Labeler`; nothing is found where no class but devices is."""
        found: dict[str, set[Mark]] = {}
        for sentence in _END_OF_SENTENCE.split(report.lower()):
            text = self._cues["nothing_said"].sub(" ", sentence)
            for key, rule in self._rules.items():
                found.setdefault(key, set()).update(self._marks(text, rule))
        marks = {key: next(mark for mark in _ORDER if mark in some) for key, some in found.items() if some}
        if report.strip() and not any(says(marks, key) for key in marks if key != DEVICES):
            marks[NO_FINDING] = "positive"
        return marks

    def _marks(self, sentence: str, rule: _Rule) -> Iterator[Mark]:
        """Mark every mention of a class in a sentence."""
        if rule.normal is not None and rule.normal.search(sentence):
            yield "negative"
            return
        for mention in rule.mentions.finditer(sentence):
            if rule.unless is None or not all(
                pattern.search(text) for pattern, text in zip(rule.unless, (mention[0], sentence), strict=True)
            ):
                yield self._mark(sentence, mention)

    def _mark(self, sentence: str, mention: re.Match[str]) -> Mark:
        breaks = self._cues["breaks"]
        start = max((one.end() for one in breaks.finditer(sentence[: mention.start()])), default=0)
        # What a mention spans is looked at too: "the heart is not enlarged".
        before = sentence[start : mention.end()]
        after = breaks.split(sentence[mention.end() :].partition(",")[0], maxsplit=1)[0]
        cues = self._cues
        if cues["doubt"].search(before) or cues["doubt_after"].search(after):
            return "uncertain"
        if cues["negation"].search(before) or cues["negation_after"].search(after):
            return "negative"
        if cues["uncertainty"].search(before) or cues["uncertainty_after"].search(after):
            return "uncertain"
        return "positive"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    mentions: re.Pattern[str]
    normal: re.Pattern[str] | None
    unless: tuple[re.Pattern[str], re.Pattern[str]] | None


class _Class(TypedDict):
    mentions: list[str]
    normal: NotRequired[list[str]]
    unless: NotRequired[list[str]]


class _File(TypedDict):
    cues: dict[str, list[str]]
    classes: dict[str, _Class]


def _rule(one: _Class) -> _Rule:
    unless = [re.compile(pattern) for pattern in one.get("unless", [])]
    return _Rule(
        mentions=re.compile("|".join(f"(?:{pattern})" for pattern in one["mentions"])),
        normal=re.compile("|".join(one["normal"])) if "normal" in one else None,
        unless=(unless[0], unless[1]) if unless else None,
    )


def _any(words: list[str]) -> re.Pattern[str]:
    """Find any of some words or patterns, as whole words."""
    return re.compile("|".join(rf"(?<!\w)(?:{word})(?!\w)" for word in words))
