"""Checks a generated sentence against the decisions: its faults, and the decisions that it contradicts.

Where a sentence can be read in two ways, it has the fault: another sentence can be made by rule (`sentences.by_rule`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from typing import Final

from language.clauses import clauses_of
from language.cues import cues
from language.labels import DEVICES, NO_FINDING, ClassRule, class_rules, named_rule
from language.legible import is_legible, speaks_of_an_earlier_film
from language.normal import Normality, names_in, normal_statements
from language.statements import Stance, Statement, sides_in, statements_of
from models.contract import FindingState, Side

_REPORTED: Final = tuple(state for state in FindingState if state.is_reported)
_UNREPORTED: Final = tuple(state for state in FindingState if not state.is_reported)
_ASSERTED: Final = (Stance.AFFIRMED, Stance.UNCLEAR)
_DENIED: Final = (Stance.DENIED, Stance.UNCLEAR)
_STATES_NOTHING: Final = re.compile(
    r"\b(the|a|an|is|are|seen|noted|shown|visible|present|evident|there|imaged|displayed|demonstrated|identified|area|region|zone|"
    r"structures?|side|left|right|upper|mid|middle|lower|lungs?|of|in|and|at)\b|\W"
)


class Fault(StrEnum):
    """Why a sentence may not stand for a decision. The values are a label of a metric, and stand in report.json."""

    NOT_NAMED = "not_named"
    """The sentence of a finding does not name it, or that of a region calls another region normal."""
    DENIED = "denied"
    """The finding is reported, and the sentence denies it."""
    ASSERTED = "asserted"
    """The finding was not seen, or no finding lies in the region, and the sentence asserts one. What else a sentence
    asserts is for `contradictions` to compare; the caller gives it this fault."""
    WRONG_SIDE = "wrong_side"
    """The sentence names another side, or both for one, or one for both."""
    EARLIER_FILM = "earlier_film"
    """The sentence speaks of an earlier film, which the network never saw."""
    NORMAL_WITH_FINDING = "normal_with_finding"
    """The sentence calls a region normal in which a finding lies."""
    SAYS_NOTHING = "says_nothing"
    """The sentence names no finding and no state of a region."""
    UNREADABLE = "unreadable"
    """The sentence repeats itself, breaks off, or is no text."""
    DENIAL = "denial"
    """The sentence denies something, or calls something normal. Only a reader may: the network may have missed it."""
    SEVERITY = "severity"
    """The sentence says how much, how large or how bad something is that is not reported, or by a measure or grade, or
    in comparison; or it plays down a critical finding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The decision about the prompt of a sentence.

    finding: a key of the prompt set, None for a sentence about a region; state: the state of the finding
    side: the patient's side, None if it is not known or there is none
    region: the phrase of a region's prompt, such as "left lower lung zone"
    region_has_finding: whether a finding is reported there
    names: words that name the finding, beside those that are known for the classes of CheXpert
    """

    finding: str | None
    state: FindingState
    side: Side | None
    region: str | None
    region_has_finding: bool
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """A sentence as it was read. own: the statements about the claim's finding."""

    text: str
    own: tuple[Statement, ...]
    statements: tuple[Statement, ...]
    normal: tuple[Normality, ...]


def faults(sentence: str, claim: Claim) -> tuple[Fault, ...]:
    """Return the faults of a sentence for a claim, each once, in the order of `Fault`; see `never_said`."""
    rules = _rules() | _rule_of(claim)
    statements = statements_of(sentence, rules)
    read = _Read(
        text=" ".join(sentence.lower().split()),
        own=tuple(statement for statement in statements if statement.key == claim.finding),
        statements=statements,
        normal=normal_statements(sentence),
    )
    return tuple(fault for fault, has in _CHECKS.items() if has(read, claim))


def never_said(sentence: str, *, names: Iterable[str] = (), is_reported: bool = False) -> tuple[Fault, ...]:
    """Return the faults that no generated sentence may have, for any decision: a denial, a forbidden severity.

    names: names of its finding, whose own words are no fault
    is_reported: whether the sentence asserts a reported finding, whose size and severity it may word
    """
    text, own, words = " ".join(sentence.lower().split()), tuple(names), cues()
    unnamed = named_rule(own).mentions.sub(" ", text) if own else text
    is_urgent = any(statement.key in words.urgent for statement in assertions(text))
    refused = [words.graded, *([words.minimizing] if is_urgent else [])] if is_reported else [words.severe]
    found = {
        Fault.DENIAL: _denies_something(text),
        Fault.SEVERITY: any(pattern.search(unnamed) for pattern in refused),
    }
    return tuple(fault for fault, holds in found.items() if holds)


def words_severity(sentence: str) -> bool:
    """Return whether a sentence names an amount, a size or a severity."""
    return bool(cues().severe.search(sentence.lower()))


def denied_alone(sentence: str) -> frozenset[str]:
    """Return the classes of CheXpert that a sentence denies; none if it says anything else, or is not clear."""
    text = " ".join(sentence.lower().split())
    statements = statements_of(text, _rules())
    is_clear = all(statement.stance is Stance.DENIED for statement in statements) and not normal_statements(text)
    if not is_clear or re.search(r"\w", cues().plain.sub(" ", text)):
        return frozenset()
    return frozenset(statement.key for statement in statements)


def contradictions(sentence: str, decided: Mapping[str, FindingState]) -> tuple[str, ...]:
    """Return the classes of CheXpert that a sentence asserts though absent, or denies though reported.

    decided: the state of each class; a class that is missing is not contradicted. "No finding" is denied only if it is
    present, because a reported finding denies it anyway. Decisions have no side, so a denial for one side counts,
    unless the sentence itself reports the finding for the other.
    """
    statements = statements_of(sentence, _rules())
    normal = normal_statements(sentence)
    by_normal = frozenset(key for statement in normal for key in statement.denied())
    is_normal = any(not statement.organs and statement.is_of_all for statement in normal)
    found = []
    for key in (*_rules(), NO_FINDING):
        own = tuple(statement for statement in statements if statement.key == key)
        if key == NO_FINDING:
            asserted = is_normal and not _asserts_any(statements)
            denied = _asserts_any(statements) and decided.get(key) is FindingState.PRESENT
        else:
            asserted = any(statement.stance in _ASSERTED for statement in own)
            denied = _denies(own, frozenset()) or (key in by_normal and not own)
        if (asserted and decided.get(key) in _UNREPORTED) or (denied and decided.get(key) in _REPORTED):
            found.append(key)
    return tuple(found)


def assertions(sentence: str) -> tuple[Statement, ...]:
    """Return the statements of a sentence that do not deny a class of CheXpert."""
    return tuple(statement for statement in statements_of(sentence, _rules()) if statement.stance is not Stance.DENIED)


def called_normal(sentence: str, regions: Iterable[str]) -> tuple[str, ...]:
    """Return the regions that a sentence names in these words and calls normal."""
    text, normal = " ".join(sentence.lower().split()), normal_statements(sentence)
    return tuple(
        region
        for region in regions
        if region.lower() in text and any(statement.is_about(region) for statement in normal)
    )


def _is_not_named(read: _Read, claim: Claim) -> bool:
    if claim.finding == NO_FINDING:
        return not read.normal and not any(statement.stance is Stance.DENIED for statement in read.statements)
    if claim.region is not None:
        # "The abdomen is normal" is no sentence for the heart. Sides have a fault of their own.
        anywhere = [replace(statement, sides=frozenset()) for statement in read.normal]
        return bool(anywhere) and not read.statements and not any(each.is_about(claim.region) for each in anywhere)
    return claim.finding is not None and not read.own


def _is_denied(read: _Read, claim: Claim) -> bool:
    if claim.state not in _REPORTED:
        return False
    if claim.finding == NO_FINDING:
        return bool(re.search(r"\babnormal\b|\bnot normal\b", read.text))
    return _denies(read.own, _SIDES[claim.side] if claim.side else frozenset())


def _is_asserted(read: _Read, claim: Claim) -> bool:
    if claim.finding == NO_FINDING:
        if not claim.state.is_reported:
            return any(statement.is_of_all for statement in read.normal)
        return _asserts_any(read.statements)
    if claim.finding is not None:
        return not claim.state.is_reported and any(statement.stance is not Stance.DENIED for statement in read.own)
    return not claim.region_has_finding and any(statement.stance in _ASSERTED for statement in read.statements)


def _names_wrong_side(read: _Read, claim: Claim) -> bool:
    if claim.side is None:
        return False
    asked = _SIDES[claim.side]
    if claim.finding is None:
        reported = frozenset[Side]().union(
            *(each.sides for each in read.statements if each.stance is not Stance.DENIED)
        )
        named = sides_in(read.text)
        return bool(reported and reported != asked) or bool(named and not named & asked)
    stated = [
        statement.sides
        for statement in read.own
        if not claim.state.is_reported or statement.stance is not Stance.DENIED
    ]
    named = frozenset[Side]().union(*stated)
    return bool(named) and named != asked


def _calls_finding_normal(read: _Read, claim: Claim) -> bool:
    return claim.region_has_finding and any(statement.is_about(claim.region or "") for statement in read.normal)


def _says_nothing(read: _Read, _claim: Claim) -> bool:
    if read.statements or read.normal or cues().descriptions.search(read.text):
        return False
    return not names_in(read.text, "organs") or not _STATES_NOTHING.sub("", _without_organs(read.text))


_CHECKS: Final[Mapping[Fault, Callable[[_Read, Claim], bool]]] = {
    Fault.NOT_NAMED: _is_not_named,
    Fault.DENIED: _is_denied,
    Fault.ASSERTED: _is_asserted,
    Fault.WRONG_SIDE: _names_wrong_side,
    Fault.EARLIER_FILM: lambda read, _claim: speaks_of_an_earlier_film(read.text),
    Fault.NORMAL_WITH_FINDING: _calls_finding_normal,
    Fault.SAYS_NOTHING: _says_nothing,
    Fault.UNREADABLE: lambda read, _claim: not is_legible(read.text),
}
_SIDES: Final[Mapping[Side, frozenset[Side]]] = {
    Side.LEFT: frozenset((Side.LEFT,)),
    Side.RIGHT: frozenset((Side.RIGHT,)),
    Side.BILATERAL: frozenset((Side.LEFT, Side.RIGHT)),
}


def _denies(own: tuple[Statement, ...], asked: frozenset[Side]) -> bool:
    """Return whether a finding is denied, but not for a side that is not asked for while another has it."""
    reported = frozenset[Side]().union(
        *(statement.sides for statement in own if statement.stance in (Stance.AFFIRMED, Stance.POSSIBLE))
    )
    return any(
        statement.stance in _DENIED
        and not (
            statement.stance is Stance.DENIED
            and statement.sides
            and reported
            and not statement.sides & (reported | asked)
        )
        for statement in own
    )


def _denies_something(text: str) -> bool:
    """Whether a text denies a finding or anything else, or calls anything normal; "cannot be excluded" does not."""
    words = cues()
    return (
        any(statement.stance in _DENIED for statement in statements_of(text, _rules()))
        or bool(normal_statements(text))
        or any(words.negation.search(words.doubt.sub(" ", clause.text)) for clause in clauses_of(text))
    )


def _asserts_any(statements: tuple[Statement, ...]) -> bool:
    return any(statement.stance in _ASSERTED and statement.key != DEVICES for statement in statements)


def _without_organs(text: str) -> str:
    for organ in cues().organs.values():
        text = re.sub(rf"\w*(?:{organ.pattern})\w*", " ", text)
    return text


@cache
def _rules() -> dict[str, ClassRule]:
    return dict(class_rules())


def _rule_of(claim: Claim) -> dict[str, ClassRule]:
    """Make the rule for a claim's own names; a finding that is no class and has no names is called by its key."""
    if claim.finding in (None, NO_FINDING):
        return {}
    known = _rules().get(claim.finding)
    if known is not None and not claim.names:
        return {}
    words = claim.names or (claim.finding.replace("_", " "),)
    return {claim.finding: named_rule(words, known)}
