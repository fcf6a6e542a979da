"""Extracts the statements of a report's sentence: findings, each asserted or denied, with the side.

The words are in `cues.toml`, the names of findings in `labels.toml`. A sentence is cut into clauses, a clause at commas
and conjunctions into pieces. A denial goes on through a list ("no effusion, consolidation, or nodule") and ends where
something is said anew ("no pneumothorax, a small effusion"). Where people would read a sentence in two ways, the stance
is UNCLEAR, so that a caller can take it for either. `labels.RuleLabeler` measures reports and is simpler; its figures
must not move when this file learns a turn of phrase.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from language.clauses import Clause, Piece, clauses_of
from language.cues import Cues, cues
from language.labels import ClassRule
from models.contract import Side


class Stance(Enum):
    """How a sentence states a finding."""

    AFFIRMED = "affirmed"
    POSSIBLE = "possible"
    DENIED = "denied"
    UNCLEAR = "unclear"


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One mention of a finding.

    sides: the sides of the patient that it is stated for; both for "bilateral", none if the sentence does not say
    """

    key: str
    stance: Stance
    sides: frozenset[Side]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mention:
    key: str
    start: int
    end: int
    stance: Stance


def statements_of(sentence: str, rules: Mapping[str, ClassRule]) -> tuple[Statement, ...]:
    """Find all mentions of findings, in the order of the text."""
    found: list[Statement] = []
    clauses = clauses_of(sentence)
    mentions = [sorted(_mentions(clause, rules), key=lambda mention: mention.start) for clause in clauses]
    elsewhere = frozenset(
        side
        for clause, own in zip(clauses, mentions, strict=True)
        if not own and not cues().normal.search(clause.text)
        for side in sides_in(clause.text)
    )
    for number, (clause, own) in enumerate(zip(clauses, mentions, strict=True)):
        # "No effusion except on the left": the exception names no finding, so it is one to the denial.
        excepted = number + 1 < len(clauses) and clauses[number + 1].is_exception and not mentions[number + 1]
        for mention in own:
            stance = Stance.UNCLEAR if excepted and mention.stance is Stance.DENIED else mention.stance
            sides = (_sides(clause, mention, own) or elsewhere) | _said_next(clauses[number + 1 : number + 2])
            found.append(Statement(key=mention.key, stance=stance, sides=sides))
    return tuple(found)


def _said_next(clauses: tuple[Clause, ...]) -> frozenset[Side]:
    """Return the side of a clause that leaves out of what it speaks: "and the right is small"."""
    words = cues()
    return frozenset[Side]().union(
        *(
            sides_in(clause.text)
            for clause in clauses
            if words.ellipsis.search(clause.text) and not words.normal.search(clause.text)
        )
    )


def sides_in(text: str) -> frozenset[Side]:
    """Return the sides of the patient that a text in lower case names."""
    text = cues().ignored_sides.sub(" ", text)
    named = frozenset(side for side in Side if cues().sides[side].search(text))
    return frozenset((Side.LEFT, Side.RIGHT)) if Side.BILATERAL in named else named


def _mentions(clause: Clause, rules: Mapping[str, ClassRule]) -> Iterator[_Mention]:
    spans = [
        (key, mention.start(), mention.end())
        for key, rule in rules.items()
        for mention in rule.mentions_in(clause.text)
    ]
    starts = tuple(start for _, start, _ in spans)
    for key, rule in rules.items():
        own = [(start, end) for name, start, end in spans if name == key]
        for normal in rule.normal.finditer(clause.text) if rule.normal else ():
            if cues().limits.search(normal[0]) or cues().rest.search(clause.text):
                continue
            # "heart is enlarged, mediastinum is normal" spans the other, which says less.
            if not any(normal.start() <= start and end <= normal.end() for start, end in own):
                denied = not re.search(r"\bnot\b", normal[0])
                stance = Stance.DENIED if denied else Stance.UNCLEAR
                own = [(start, end) for start, end in own if end <= normal.start() or normal.end() <= start]
                yield _Mention(key=key, start=normal.start(), end=normal.end(), stance=stance)
        for start, end in own:
            stated = _stance(clause, start, end, starts)
            if stated is not None:
                yield _Mention(key=key, start=start, end=end, stance=stated)


def _stance(clause: Clause, start: int, end: int, starts: tuple[int, ...]) -> Stance | None:
    """Judge a mention by the words before and after it; None for a denial of others ("no other opacity")."""
    before = _before(clause, end)
    if before is None:
        return None
    # "The tip of the tube is not seen" says nothing of the tube.
    after = None if cues().part_of.search(clause.text[:start]) else _after(clause, end, starts)
    if after is None:
        return before
    if Stance.POSSIBLE in (before, after) and Stance.AFFIRMED in (before, after):
        return Stance.POSSIBLE
    if after is Stance.POSSIBLE:
        return Stance.POSSIBLE  # "no effusion can be excluded" is doubt, however it is meant
    # A denial of a denial is read by people in either way.
    return Stance.UNCLEAR if before in (Stance.DENIED, Stance.UNCLEAR) else after


def _before(clause: Clause, end: int) -> Stance | None:
    words = cues()
    scope, spoken = Stance.AFFIRMED, False  # spoken: whether a verb came since the cue
    for number, piece in enumerate(clause.pieces):
        text = clause.text[piece.start : min(piece.end, end)]
        if number and scope is not Stance.AFFIRMED:
            scope = _carried(scope, clause, number, spoken=spoken)
        scope, spoken = _in_piece(scope, text, words, spoken=spoken)
        if end <= piece.end:
            return None if words.elsewhere.search(text) and scope is Stance.DENIED else scope
    return scope


def _in_piece(scope: Stance, text: str, words: Cues, *, spoken: bool) -> tuple[Stance, bool]:
    """Return the stance at the end of a text in one piece, and whether a verb came since its last cue."""
    doubts = list(words.doubt.finditer(text))
    denials = [
        found
        for found in words.negation.finditer(text)
        if not any(doubt.start() <= found.start() < doubt.end() for doubt in doubts)
    ]
    last = max((found.end() for found in (*doubts, *denials)), default=-1)
    if denials and denials[-1].end() == last:
        state = Stance.UNCLEAR if len(denials) > 1 else Stance.DENIED
        return state, bool(words.verb.search(text, last))
    if doubts:
        return Stance.POSSIBLE, bool(words.verb.search(text, last))
    if scope in (Stance.AFFIRMED, Stance.POSSIBLE) and (cue := words.uncertainty.search(text)):
        return Stance.POSSIBLE, bool(words.verb.search(text, cue.end()))
    return scope, spoken or bool(words.verb.search(text))


def _carried(scope: Stance, clause: Clause, number: int, *, spoken: bool) -> Stance:
    """Return the part of a denial or doubt that continues from one piece of a list into the next."""
    words, piece = cues(), clause.pieces[number]
    text = clause.text[piece.start : piece.end]
    ambiguous = Stance.AFFIRMED if scope is Stance.POSSIBLE else Stance.UNCLEAR
    if piece.joint == "closed":
        return Stance.AFFIRMED
    if piece.joint == "soft":
        return ambiguous
    if piece.joint == "or":
        return scope
    begins_anew = bool(words.opener.match(text) or words.anew.match(text))
    if _goes_on_with_or(clause, number):
        return scope if not spoken and (not begins_anew or words.listed.match(text)) else ambiguous
    if begins_anew:
        return Stance.AFFIRMED
    if spoken and words.place.search(text):
        return Stance.AFFIRMED
    if spoken or words.place.search(text) or words.verb.search(text):
        return ambiguous
    return scope


def _goes_on_with_or(clause: Clause, number: int) -> bool:
    for piece, later in zip(clause.pieces[number:], clause.pieces[number + 1 :], strict=False):
        if cues().verb.search(clause.text[piece.start : piece.end]):
            return False
        if later.joint == "or":
            return True
    return False


def _after(clause: Clause, end: int, starts: tuple[int, ...]) -> Stance | None:
    """Judge a mention by the words after it; None if they do not decide."""
    words, text = cues(), clause.text[end:]
    for pattern, stance in (
        (words.possible_after, Stance.POSSIBLE),
        (words.denied_after, Stance.DENIED),
        (words.unclear_after, Stance.UNCLEAR),
    ):
        found = pattern.search(text)
        if found is None:
            continue
        stop = end + found.end()
        if stance is Stance.UNCLEAR and any(0 < start - stop < len(" another ") for start in starts):
            continue  # "the opacity is not a pneumonia"
        between = [piece for piece in clause.pieces if end <= piece.start and piece.end <= end + found.end()]
        between += [piece for piece in clause.pieces if end <= piece.start < end + found.start() < piece.end]
        gap = text[: found.start()]
        if stance is not Stance.POSSIBLE and gap.endswith(", ") and words.verb.search(gap):
            return Stance.UNCLEAR  # "an opacity lies over the lung, not seen on the other view"
        if words.part.search(gap) or words.verb.search(gap) or words.negation.search(gap):
            continue
        return _through(stance, between, clause, end + found.start(), is_plural=bool(words.plural.search(found[0])))
    return None


def _through(stance: Stance, between: list[Piece], clause: Clause, verb: int, *, is_plural: bool) -> Stance | None:
    """Judge whether a verb's statement applies to a mention some pieces before it."""
    joints = {piece.joint for piece in between if piece.start < verb}
    ambiguous = Stance.AFFIRMED if stance is Stance.POSSIBLE else Stance.UNCLEAR
    if not joints:
        return stance
    if joints & {"soft", "closed"}:
        return ambiguous
    if "or" in joints or ("and" in joints and is_plural):
        return stance
    if "and" in joints:
        return ambiguous
    # Commas alone: an aside, unless another subject comes before the verb.
    last = max((piece for piece in between if piece.start < verb), key=lambda piece: piece.start)
    return stance if not clause.text[last.start : verb].strip() else None


def _sides(clause: Clause, mention: _Mention, others: list[_Mention]) -> frozenset[Side]:
    """Return the sides that a clause states a mention for.

    They stand in its own piece, or in the pieces beside it that name no finding; otherwise in the nearest piece of
    another finding that is stated alike: "left effusion and atelectasis".
    """
    owners = [_owner(clause, piece, others) for piece in clause.pieces]
    texts = [clause.text[piece.start : piece.end] for piece in clause.pieces]
    own = _piece_of(clause, mention.start)
    last = _piece_of(clause, mention.end - 1)
    sides: frozenset[Side] = frozenset()
    for number, (owner, text) in enumerate(zip(owners, texts, strict=True)):
        if own <= number <= last or owner == own:
            sides |= sides_in(text)
    if sides:
        return sides
    alike = {
        _piece_of(clause, other.start)
        for other in others
        if (other.stance is Stance.DENIED) is (mention.stance is Stance.DENIED)
    }
    near = sorted(
        (number for number, owner in enumerate(owners) if owner in alike and sides_in(texts[number])),
        key=lambda number: (number > own, abs(number - own)),
    )
    return sides_in(texts[near[0]]) if near else frozenset()


def _owner(clause: Clause, piece: Piece, mentions: list[_Mention]) -> int | None:
    """Return the piece whose finding a piece speaks of: itself, or the one before it, or the next one."""
    number = clause.pieces.index(piece)
    text = clause.text[piece.start : piece.end]
    holders = sorted({_piece_of(clause, mention.start) for mention in mentions})
    if number in holders:
        return number
    if cues().normal.search(text) or cues().negation.search(text):
        return None
    earlier = [holder for holder in holders if holder < number]
    if earlier:
        return earlier[-1]
    return next(iter(holders), None)


def _piece_of(clause: Clause, position: int) -> int:
    return max(number for number, piece in enumerate(clause.pieces) if number == 0 or piece.start <= position)
