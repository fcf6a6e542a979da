"""The words of `cues.toml` as patterns, read once."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypedDict, cast

from language.labels import any_of
from models.contract import Side

_FILE = Path(__file__).with_name("cues.toml")

Pattern = re.Pattern[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cues:
    """See `cues.toml`; names are those of its tables and keys."""

    rewrite: tuple[tuple[Pattern, str], ...]
    negation: Pattern
    doubt: Pattern
    uncertainty: Pattern
    denied_after: Pattern
    unclear_after: Pattern
    possible_after: Pattern
    part: Pattern
    part_of: Pattern
    hard: Pattern
    exception: Pattern
    joint: Pattern
    transparent: Pattern
    soft: Pattern
    closed: Pattern
    verb: Pattern
    plural: Pattern
    relative: Pattern
    opener: Pattern
    anew: Pattern
    listed: Pattern
    place: Pattern
    elsewhere: Pattern
    rest: Pattern
    sides: Mapping[str, Pattern]
    ignored_sides: Pattern
    ellipsis: Pattern
    normal: Pattern
    normal_unless_before: Pattern
    limits: Pattern
    organs: Mapping[str, Pattern]
    zones: Mapping[str, Pattern]
    denied_by_normal: Mapping[str, tuple[str, ...]]
    earlier: Pattern
    not_earlier: Pattern
    descriptions: Pattern
    severe: Pattern
    graded: Pattern
    minimizing: Pattern
    urgent: tuple[str, ...]
    plain: Pattern
    harmless: Pattern
    denies: Pattern
    tells: Pattern
    gone: Pattern


class _Rewrite(TypedDict):
    steps: list[tuple[str, str]]


class _Normal(TypedDict):
    states: list[str]
    unless_before: str
    limits: str
    organs: dict[str, str]
    zones: dict[str, str]
    denies: dict[str, list[str]]


class _File(TypedDict):
    rewrite: _Rewrite
    stance: dict[str, str | list[str]]
    structure: dict[str, str | list[str]]
    sides: dict[str, str | list[str]]
    normal: _Normal
    film: dict[str, str | list[str]]
    severity: dict[str, list[str]]
    denial: dict[str, list[str]]
    asked: dict[str, str | list[str]]


@cache
def cues() -> Cues:
    """Read the words."""
    file = cast("_File", tomllib.loads(_FILE.read_text(encoding="utf-8")))
    stance, structure, sides, normal, film = (
        file["stance"],
        file["structure"],
        file["sides"],
        file["normal"],
        file["film"],
    )
    severity = file["severity"]
    after = {"{be}": str(stance["be"]), "{adverb}": str(stance["adverb"])}
    return Cues(
        rewrite=tuple((re.compile(pattern), instead) for pattern, instead in file["rewrite"]["steps"]),
        **{key: _any(stance[key]) for key in ("negation", "doubt", "uncertainty", "part")},
        **{key: _any(_filled(stance[key], after)) for key in ("denied_after", "unclear_after", "possible_after")},
        part_of=re.compile(rf"(?:{any_of(_filled(stance['part'], {})).pattern}) of (?:\w+ ){{0,4}}$"),
        **{key: _any(words) for key, words in structure.items()},
        sides={side: _any(sides[side]) for side in Side},
        ignored_sides=_any(sides["ignored"]),
        ellipsis=_any(sides["ellipsis"]),
        normal=any_of(normal["states"]),
        normal_unless_before=re.compile(normal["unless_before"]),
        limits=re.compile(normal["limits"]),
        organs={name: re.compile(pattern) for name, pattern in normal["organs"].items()},
        zones={name: re.compile(pattern) for name, pattern in normal["zones"].items()},
        denied_by_normal={name: tuple(keys) for name, keys in normal["denies"].items()},
        **{key: _any(words) for key, words in film.items()},
        severe=any_of([*severity["sized"], *severity["minimizing"], *severity["graded"]]),
        graded=any_of(severity["graded"]),
        minimizing=any_of(severity["minimizing"]),
        urgent=tuple(severity["urgent"]),
        plain=any_of(file["denial"]["plain"]),
        **{key: _any(words) for key, words in file["asked"].items()},
    )


def _any(words: str | list[str]) -> Pattern:
    """Match any word of a list as a whole, or a pattern as it is."""
    return re.compile(words) if isinstance(words, str) else any_of(words)


def _filled(words: str | list[str], values: Mapping[str, str]) -> list[str]:
    filled = [words] if isinstance(words, str) else words
    for name, value in values.items():
        filled = [word.replace(name, value) for word in filled]
    return filled
