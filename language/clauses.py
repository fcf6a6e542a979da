"""Cuts a sentence into clauses, and a clause into the pieces of its lists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from language.cues import cues

Joint = Literal["first", "comma", "and", "or", "soft", "closed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of a clause between two joints. joint: what joins it to the part before it."""

    start: int
    end: int
    joint: Joint


@dataclass(frozen=True, slots=True, kw_only=True)
class Clause:
    """A clause with a statement of its own, in lower case. is_exception: it came after "except"."""

    text: str
    is_exception: bool
    pieces: tuple[Piece, ...]


def clauses_of(sentence: str) -> tuple[Clause, ...]:
    """Cut a sentence, or several, into clauses, with words rewritten as `cues.toml` says."""
    words, text = cues(), " ".join(sentence.lower().split())
    for pattern, instead in words.rewrite:
        text = pattern.sub(instead, text)
    found: list[Clause] = []
    for part in words.hard.sub("\n", text).split("\n"):
        start, is_exception = 0, False
        for exception in (*words.exception.finditer(part), None):
            stop = exception.start() if exception else len(part)
            for clause in _independent(part[start:stop]):
                found.append(Clause(text=clause, is_exception=is_exception, pieces=tuple(_pieces(clause))))
                is_exception = False
            start, is_exception = (exception.end() if exception else stop), True
    return tuple(clause for clause in found if clause.text.strip())


def _independent(text: str) -> Iterator[str]:
    """Cut at a comma or "and" after which a new subject with its own verb stands."""
    words, start = cues(), 0
    joints = list(words.joint.finditer(text))
    for number, joint in enumerate(joints):
        if joint[0].strip(", ") not in ("", "and"):
            continue
        left = text[start : joint.start()]
        right = text[joint.end() : joints[number + 1].start() if number + 1 < len(joints) else len(text)]
        verb = words.verb.search(right)
        if verb is None or words.relative.match(right):
            continue
        opened = words.opener.match(right) and not words.plural.fullmatch(verb[0])
        if words.verb.search(left) or opened or re.match(r"\s*there\b", right):
            yield left
            start = joint.end()
    yield text[start:]


def _pieces(text: str) -> Iterator[Piece]:
    words, start, joint = cues(), 0, "first"
    kind: Joint = "first"
    for found in words.joint.finditer(text):
        if found[0] == "with" and words.transparent.search(text[: found.start()]):
            continue
        yield Piece(start=start, end=found.start(), joint=kind)
        start, joint = found.end(), found[0].strip(", ")
        kind = _kind(joint)
    yield Piece(start=start, end=len(text), joint=kind)


def _kind(joint: str) -> Joint:
    words = cues()
    if joint in ("or", "nor", "/"):
        return "or"
    if joint in ("and", "as well as"):
        return "and"
    if words.soft.fullmatch(joint):
        return "soft"
    return "closed" if words.closed.fullmatch(joint) else "comma"
