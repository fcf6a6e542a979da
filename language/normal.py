"""Statements that a region, an organ or the whole film is normal."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from language.clauses import Clause, clauses_of
from language.cues import cues
from language.statements import sides_in
from models.contract import Side


@dataclass(frozen=True, slots=True, kw_only=True)
class Normality:
    """A statement that something is normal.

    organs, zones: as `cues.toml` calls them, none if the statement names none; sides: the patient's
    is_of_all: it covers both lungs or the whole film; is_acute: only acute disease is denied
    """

    organs: frozenset[str]
    zones: frozenset[str]
    sides: frozenset[Side]
    is_of_all: bool
    is_acute: bool

    def is_about(self, region: str) -> bool:
        """Return whether the statement takes in a region, such as "left lower lung zone"."""
        region = region.lower()
        pairs = (
            (self.organs, names_in(region, "organs")),
            (self.zones, names_in(region, "zones")),
            (self.sides, sides_in(region)),
        )
        return not any(said and asked and not said & asked for said, asked in pairs)

    def denied(self) -> frozenset[str]:
        """Return the CheXpert classes that cannot be there if the statement is true."""
        by_normal = cues().denied_by_normal
        if self.is_acute:
            return frozenset(by_normal["acute"]) if self.is_of_all else frozenset()
        found = set(by_normal["lungs"]) if self.is_of_all else set()
        if "bone" in self.organs and not self.sides:
            found |= set(by_normal["bone"])
        return frozenset(found)


def normal_statements(sentence: str) -> tuple[Normality, ...]:
    """Find the statements that something is normal; "otherwise normal" and "normal except ..." are none."""
    clauses = clauses_of(sentence)
    return tuple(
        statement
        for number, clause in enumerate(clauses)
        if not (number + 1 < len(clauses) and clauses[number + 1].is_exception)
        for statement in _in(clause)
    )


def names_in(text: str, kind: str) -> frozenset[str]:
    """Return the organs or zones that a text in lower case names."""
    patterns = cues().organs if kind == "organs" else cues().zones
    return frozenset(name for name, pattern in patterns.items() if pattern.search(text))


def _in(clause: Clause) -> Iterator[Normality]:
    words = cues()
    for found in words.normal.finditer(clause.text):
        before = clause.text[: found.start()]
        subject = _subject(clause, found)
        if words.normal_unless_before.search(before) or words.rest.search(subject):
            continue
        organs = names_in(subject, "organs")
        zones = names_in(subject, "zones")
        yield Normality(
            organs=organs,
            zones=zones,
            sides=sides_in(subject),
            is_of_all=not zones
            and (not organs or bool(re.search(r"\blungs\b", subject)))
            and len(sides_in(subject)) != 1,
            is_acute="acute" in found[0],
        )


def _subject(clause: Clause, found: re.Match[str]) -> str:
    """Return the words that name what is normal: the statement's piece, and earlier pieces that share its verb."""
    words = cues()
    number = max(index for index, piece in enumerate(clause.pieces) if index == 0 or piece.start <= found.start())
    first = number
    while first and clause.pieces[first].joint in ("and", "comma"):
        earlier = clause.pieces[first - 1]
        text = clause.text[earlier.start : earlier.end]
        if words.verb.search(text) or words.place.search(text.replace("left", "").replace("right", "")):
            break
        first -= 1
    return clause.text[clause.pieces[first].start : clause.pieces[number].end]
