"""Finds the 14 classes of CheXpert in a report, each present, uncertain or absent, by rules written for this project.

The rules are in `labels.toml`. Another labeler can replace this one by implementing `Labeler`; figures of different
labelers are not comparable.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NotRequired, Protocol, TypedDict, cast

Mark = Literal["positive", "uncertain", "negative"]

NO_FINDING: Final = "no_finding"
DEVICES: Final = "support_devices"

_FILE = Path(__file__).with_name("labels.toml")
_ORDER: tuple[Mark, ...] = ("positive", "uncertain", "negative")
_END_OF_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")


class Labeler(Protocol):
    """Labels reports."""

    @property
    def name(self) -> str:
        """The name that is printed with the figures."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes it knows, by CheXpert's keys."""

    def label(self, report: str) -> Mapping[str, Mark]:
        """Mark every class that a report mentions; if several sentences do, the most positive mark counts."""


def says(marks: Mapping[str, Mark], key: str) -> bool:
    """Whether a report finds a class; uncertain counts as found, as in CheXbert's figures for generated reports."""
    return marks.get(key) in ("positive", "uncertain")


class RuleLabeler:
    """Finds mentions, and negation and uncertainty by the words around a mention."""

    name = "rules"

    def __init__(self) -> None:
        """Read the rules."""
        self._cues = {kind: any_of(words) for kind, words in _read()["cues"].items()}
        self._rules = class_rules()
        self.classes = (*sorted(self._rules), NO_FINDING)

    def label(self, report: str) -> Mapping[str, Mark]:
        """See `Labeler`; "no finding" is positive if no class except devices is found."""
        found: dict[str, set[Mark]] = {}
        for sentence in _END_OF_SENTENCE.split(report.lower()):
            text = self._cues["nothing_said"].sub(" ", sentence)
            for key, rule in self._rules.items():
                found.setdefault(key, set()).update(self._marks(text, rule))
        marks = {key: next(mark for mark in _ORDER if mark in some) for key, some in found.items() if some}
        if report.strip() and not any(says(marks, key) for key in marks if key != DEVICES):
            marks[NO_FINDING] = "positive"
        return marks

    def _marks(self, sentence: str, rule: ClassRule) -> Iterator[Mark]:
        """Mark every mention of a class in a sentence."""
        if rule.normal is not None and rule.normal.search(sentence):
            yield "negative"
            return
        for mention in rule.mentions_in(sentence):
            yield self._mark(sentence, mention)

    def _mark(self, sentence: str, mention: re.Match[str]) -> Mark:
        breaks = self._cues["breaks"]
        start = max((boundary.end() for boundary in breaks.finditer(sentence[: mention.start()])), default=0)
        # The mention itself is searched too, because a cue may be inside it: "the heart is not enlarged".
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
class ClassRule:
    """How a class is spoken of, in lower case (see `labels.toml`)."""

    mentions: re.Pattern[str]
    normal: re.Pattern[str] | None = None
    unless: tuple[re.Pattern[str], re.Pattern[str]] | None = None

    def mentions_in(self, sentence: str) -> Iterator[re.Match[str]]:
        """Find the mentions of the class, present or not."""
        for mention in self.mentions.finditer(sentence):
            if self.unless is None or not all(
                pattern.search(text) for pattern, text in zip(self.unless, (mention[0], sentence), strict=True)
            ):
                yield mention


def class_rules() -> Mapping[str, ClassRule]:
    """Read the rules of the 13 classes that a report can name, by CheXpert's keys."""
    return {key: _rule(words) for key, words in _read()["classes"].items()}


def named_rule(names: Iterable[str], known: ClassRule | None = None) -> ClassRule:
    """Make the rule for a finding with these names, beside what is known of its class."""
    own = "|".join(rf"(?<!\w){_any_spelling(name)}(?!\w)" for name in names)
    if known is None:
        return ClassRule(mentions=re.compile(own))
    mentions = re.compile(f"{known.mentions.pattern}|{own}")
    return ClassRule(mentions=mentions, normal=known.normal, unless=known.unless)


def any_of(words: Iterable[str]) -> re.Pattern[str]:
    """Match any of these words or patterns, as whole words."""
    return re.compile("|".join(rf"(?<!\w)(?:{word})(?!\w)" for word in words))


class _Class(TypedDict):
    mentions: list[str]
    normal: NotRequired[list[str]]
    unless: NotRequired[list[str]]


class _LabelerFile(TypedDict):
    cues: dict[str, list[str]]
    classes: dict[str, _Class]


def _read() -> _LabelerFile:
    return cast("_LabelerFile", tomllib.loads(_FILE.read_text(encoding="utf-8")))


def _rule(words: _Class) -> ClassRule:
    unless = [re.compile(pattern) for pattern in words.get("unless", [])]
    return ClassRule(
        mentions=re.compile("|".join(f"(?:{pattern})" for pattern in words["mentions"])),
        normal=re.compile("|".join(words["normal"])) if "normal" in words else None,
        unless=(unless[0], unless[1]) if unless else None,
    )


def _any_spelling(name: str) -> str:
    """Match a name, of one or of several, with spaces or hyphens.

    Without what stands in parentheses, and without the "other" of a class for the rest.
    """
    words = re.sub(r"\(.*?\)", " ", name.lower()).removeprefix("other ").split() or [name.lower()]
    return r"[\s-]+".join(f"{re.escape(_stem(word))}(?:y|ies|x|ces|e?s)?" for word in words)


def _stem(word: str) -> str:
    return re.sub(r"(y|x)$", "", word)
