"""Compares the name of a patient in a film (PN, PS3.5 6.2.1) with the one that a message says, group by group.

A group is the name in one representation: alphabetic, ideographic, phonetic. A message may have some of them.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Final

from node.hl7.patient import PatientUpdate

_GROUPS: Final = 3
_KATAKANA: Final = {hiragana: hiragana + 0x60 for hiragana in range(0x3041, 0x3097)}


def merged(known: str, update: PatientUpdate) -> str:
    """Return a film's name with the groups of an update; one that the message lacks, or knows alike, stays."""
    groups = zip(_groups(known), _placed(known, update), strict=True)
    return "=".join(own if not new or _is_alike(own, new) else new for own, new in groups).rstrip("=")


def shares_no_letter(known: str, update: PatientUpdate) -> bool:
    """Say whether an update has nothing of a film's name, or replaces a group by one that has nothing of it.

    Case and the form of kana count for nothing. Accents count: letters of a wrong character set have them. A group that
    stands elsewhere in the message, as a name in Kanji that a modality wrote as the alphabetic one, is not lost. A name
    without letters and digits, on either side, cannot be compared.
    """
    own, new = _groups(known), _placed(known, update)
    said = _letters("".join(new))
    if not said or not _letters(known):
        return False
    replaced = [group for group, by in zip(own, new, strict=True) if by and _letters(group)]
    return not said & _letters(known) or any(not said & _letters(group) for group in replaced)


def _placed(known: str, update: PatientUpdate) -> Sequence[str]:
    """Return the groups of an update; a name that does not say its group is the one with which it shares a letter."""
    new = _groups(update.name)
    if update.has_groups:
        return new
    letters = _letters(new[0])
    place = next((number for number, own in enumerate(_groups(known)) if letters & _letters(own)), 0)
    return [new[0] if number == place else "" for number in range(_GROUPS)]


def _groups(name: str) -> list[str]:
    return [*name.split("="), *[""] * _GROUPS][:_GROUPS]


def _is_alike(own: str, new: str) -> bool:
    """Say whether two groups are one name: films and information systems seldom agree on case."""
    return _folded(own) == _folded(new)


def _folded(group: str) -> str:
    return unicodedata.normalize("NFC", group.rstrip("^ ")).casefold()


def _letters(text: str) -> set[str]:
    """Return the letters and digits of a text without case, width and, of kana, form."""
    return {sign for sign in unicodedata.normalize("NFKC", text).casefold().translate(_KATAKANA) if sign.isalnum()}
