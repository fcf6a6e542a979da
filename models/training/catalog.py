"""What a run asks about, by number: C classes, A regions with one box, B regions with two, and the phrases of each."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict, cast

from models.phantoms.truth import CIG_CLASSES
from models.tasks.prompts import class_prompts, region_prompts
from models.training.runfile import ClassSet

_FILE = Path(__file__).with_name("phrases.toml")
_ONE_SIDED = frozenset({"aortic arch", "svc", "cavoatrial junction", "right atrium"})
# Of chambers of the heart the side is a name, not a place.
_SIDE = re.compile(r"\b(left|right)\b(?!\s+(?:atri|ventric))", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassPhrases:
    """One class. finding: the key of what phantoms show of it, None where they never show it."""

    name: str
    finding: str | None
    positive: tuple[str, ...]
    negative: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """All that is asked about.

    regions: names of those with one box; pairs: the numbers of the two of each of the others
    region_phrases: of the regions, then of the pairs; mirrored: what each region is called on a film that was flipped,
    None where it has no name then
    hints: wordings with a finding, a side, and maybe a zone
    """

    classes: tuple[ClassPhrases, ...]
    regions: tuple[str, ...]
    pairs: tuple[tuple[int, int], ...]
    region_phrases: tuple[tuple[str, ...], ...]
    mirrored: tuple[int | None, ...]
    hints: tuple[str, ...]

    @property
    def texts(self) -> list[str]:
        """Every phrase there is, hints with both sides and all zones, to learn the vocabulary from."""
        phrases = [phrase for one in self.classes for phrase in (*one.positive, *one.negative)]
        phrases += [phrase for group in self.region_phrases for phrase in group]
        named = sorted({phrase for one in self.classes for phrase in one.positive})
        places = [(side, zone) for side in ("right", "left") for zone in ("upper", "mid", "lower")]
        phrases += [
            hint_text(wording, finding, side=side, zone=zone)
            for wording in self.hints
            for finding in named
            for side, zone in places
        ]
        return list(dict.fromkeys(phrases))


def hint_text(wording: str, finding: str, *, side: str, zone: str) -> str:
    """Word a question about one side."""
    text = wording.format(finding=finding[:1].lower() + finding[1:], side=side, zone=zone)
    return text[:1].upper() + text[1:]


def catalog_of(sets: Sequence[ClassSet]) -> Catalog:
    """Collect the classes of some sets, and all regions."""
    file = cast("_File", tomllib.loads(_FILE.read_text(encoding="utf-8")))
    classes = tuple(one for name in sets for one in _classes(name, file))
    singles = [region for region in region_prompts() if not region.members]
    joined = [region for region in region_prompts() if region.members]
    names = tuple(region.name for region in singles)
    return Catalog(
        classes=classes,
        regions=names,
        pairs=tuple((names.index(one.members[0]), names.index(one.members[1])) for one in joined),
        region_phrases=tuple(tuple(file["regions"].get(one.name, one.phrases)) for one in (*singles, *joined)),
        mirrored=tuple(_mirrored(name, names) for name in names),
        hints=tuple(file["hints"]["wordings"]),
    )


def exchange_sides(text: str) -> str:
    """Call left what was right, and the reverse; capitals stay."""
    return _SIDE.sub(lambda found: _other(found[0]), text)


def _other(word: str) -> str:
    lower = "right" if word.lower() == "left" else "left"
    if word.isupper():
        return lower.upper()
    return lower.capitalize() if word[0].isupper() else lower


def _mirrored(name: str, names: tuple[str, ...]) -> int | None:
    other = exchange_sides(name)
    return names.index(other) if other in names and name not in _ONE_SIDED else None


def _classes(name: ClassSet, file: _File) -> list[ClassPhrases]:
    if name == "chexpert":
        return [
            ClassPhrases(name=key, finding=key, positive=tuple(one["positive"]), negative=tuple(one["negative"]))
            for key, one in file["classes"].items()
        ]
    findings = {cig: key for key, cig in CIG_CLASSES.items()}
    return [
        ClassPhrases(name=one.name, finding=findings.get(one.name), positive=(one.positive,), negative=(one.negative,))
        for one in class_prompts(name)
    ]


class _Phrases(TypedDict):
    positive: list[str]
    negative: list[str]


class _File(TypedDict):
    classes: dict[str, _Phrases]
    hints: dict[str, list[str]]
    regions: dict[str, list[str]]
