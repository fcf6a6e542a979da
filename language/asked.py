"""What a person may not ask a network that looks for what a text names: it would drop the "no" of the text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from language.cues import cues


class Hindrance(StrEnum):
    """Why a text is not asked: it denies something, tells what to do or say, or asks what became of something."""

    DENIES = "denies"
    TELLS = "tells"
    GONE = "gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hindered:
    """What hinders a text from being asked; words: as they stand in it, in lower case."""

    why: Hindrance
    words: str


def hindered(text: str) -> Hindered | None:
    """Return what hinders a text from being asked; None if nothing does."""
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
    """Return whether a text asks what became of something, and denies and tells nothing."""
    found = hindered(text)
    return found is not None and found.why is Hindrance.GONE
