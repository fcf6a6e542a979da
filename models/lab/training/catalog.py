"""The classes and regions of a run, by number, and their phrases: C classes, A regions with one box, B with two."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TypedDict, cast

from models.lab.phantoms.truth import CIG_CLASSES
from models.lab.tasks.prompts import region_prompts, trained_prompts
from models.lab.training.runfile import ClassSet

_FILE = Path(__file__).with_name("phrases.toml")
_ONE_SIDED = frozenset({"aortic arch", "svc", "cavoatrial junction", "right atrium"})
# "Left atrium" and "right ventricle" are names, not sides of the film.
_SIDE = re.compile(r"\b(left|right)\b(?!\s+(?:atri|ventric))", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassPhrases:
    """One class. finding: the key of the phantom finding that shows it; None if phantoms never show it."""

    name: str
    finding: str | None
    positive: tuple[str, ...]
    negative: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """All classes, regions and question wordings of a run.

    sets: the numbers of the classes of each data set; classes are drawn for each data set separately
    regions: names of the regions with one box; pairs: for each region with two boxes, the numbers of its two regions
    region_phrases: phrases of the regions, then of the pairs
    mirrored: the number of each region on a mirrored film, None if it has no counterpart
    hints: wordings with a finding, a side, and possibly a lung zone
    """

    classes: tuple[ClassPhrases, ...]
    sets: tuple[range, ...]
    regions: tuple[str, ...]
    pairs: tuple[tuple[int, int], ...]
    region_phrases: tuple[tuple[str, ...], ...]
    mirrored: tuple[int | None, ...]
    hints: tuple[str, ...]

    @property
    def texts(self) -> list[str]:
        """All phrases, and all hints with both sides and all zones; the vocabulary is built from them."""
        phrases = [phrase for entry in self.classes for phrase in (*entry.positive, *entry.negative)]
        phrases += [phrase for group in self.region_phrases for phrase in group]
        named = sorted({phrase for entry in self.classes for phrase in entry.positive})
        places = [(side, zone) for side in ("right", "left") for zone in ("upper", "mid", "lower")]
        phrases += [
            hint_text(wording, finding, side=side, zone=zone)
            for wording in self.hints
            for finding in named
            for side, zone in places
        ]
        return list(dict.fromkeys(phrases))


def hint_text(wording: str, finding: str, *, side: str, zone: str) -> str:
    """Return the text of a question about one side."""
    text = wording.format(finding=finding[:1].lower() + finding[1:], side=side, zone=zone)
    return text[:1].upper() + text[1:]


def catalog_of(sets: Sequence[ClassSet]) -> Catalog:
    """Build the catalog of these class sets, with all regions."""
    file = cast("_PhrasesFile", tomllib.loads(_FILE.read_text(encoding="utf-8")))
    groups = [_classes(name, file) for name in sets]
    ends = list(accumulate(len(group) for group in groups))
    singles = [region for region in region_prompts() if not region.members]
    joined = [region for region in region_prompts() if region.members]
    names = tuple(region.name for region in singles)
    return Catalog(
        classes=tuple(phrases for group in groups for phrases in group),
        sets=tuple(range(end - len(group), end) for group, end in zip(groups, ends, strict=True)),
        regions=names,
        pairs=tuple((names.index(region.members[0]), names.index(region.members[1])) for region in joined),
        region_phrases=tuple(tuple(file["regions"].get(region.name, region.phrases)) for region in (*singles, *joined)),
        mirrored=tuple(_mirrored(name, names) for name in names),
        hints=tuple(file["hints"]["wordings"]),
    )


def exchange_sides(text: str) -> str:
    """Exchange the words left and right in a text; capitals are kept."""
    return _SIDE.sub(lambda found: _other(found[0]), text)


def _other(word: str) -> str:
    lower = "right" if word.lower() == "left" else "left"
    if word.isupper():
        return lower.upper()
    return lower.capitalize() if word[0].isupper() else lower


def _mirrored(name: str, names: tuple[str, ...]) -> int | None:
    other = exchange_sides(name)
    return names.index(other) if other in names and name not in _ONE_SIDED else None


def _classes(name: ClassSet, file: _PhrasesFile) -> list[ClassPhrases]:
    if name == "chexpert":
        return [
            ClassPhrases(name=key, finding=key, positive=tuple(words["positive"]), negative=tuple(words["negative"]))
            for key, words in file["classes"].items()
        ]
    findings = {cig: key for key, cig in CIG_CLASSES.items()}
    return [
        ClassPhrases(
            name=prompt.name,
            finding=findings.get(prompt.name),
            positive=(prompt.positive,),
            negative=(prompt.negative,),
        )
        for prompt in trained_prompts(name)
    ]


class _Phrases(TypedDict):
    positive: list[str]
    negative: list[str]


class _PhrasesFile(TypedDict):
    classes: dict[str, _Phrases]
    hints: dict[str, list[str]]
    regions: dict[str, list[str]]
