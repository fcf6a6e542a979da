"""Texts that are no valid question: the network searches for the named finding, and would drop the text's "no"."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from language.cues import cues


class Hindrance(StrEnum):
    """Why a text is not asked: it denies something, gives an instruction, or asks for a change over time."""

    DENIES = "denies"
    TELLS = "tells"
    GONE = "gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hindered:
    """A reason against asking a text; words: its words that cause it, in lower case."""

    why: Hindrance
    words: str


def hindered(text: str) -> Hindered | None:
    """Return the reason against asking a text; None if there is none."""
    words = cues()
    typed = words.harmless.sub(" ", re.sub("[\u2018\u2019`\u00b4]", "'", " ".join(text.lower().split())))
    for why, pattern in (
        (Hindrance.DENIES, words.denies),
        (Hindrance.TELLS, words.tells),
        (Hindrance.GONE, words.gone),
    ):
        if (found := pattern.search(typed)) is not None:
            return Hindered(why=why, words=found[0])
    return None


def is_about_change(text: str) -> bool:
    """Return whether a text asks for a change over time, without denial and instruction."""
    found = hindered(text)
    return found is not None and found.why is Hindrance.GONE
